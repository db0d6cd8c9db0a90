"""Checks of the arguments that all optimizers take."""

from __future__ import annotations

__all__ = ["check_at_least_0", "refuse_flags"]


def check_at_least_0(**values: float) -> None:
    """Raise a ValueError for a negative value."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value!r}")


def refuse_flags(**flags: bool | None) -> None:
    """Raise a ValueError for a flag of torch's optimizers that is not supported."""
    reasons = {
        "capturable": "each step reads the evidence on the host, which a CUDA graph cannot",
        "differentiable": "the update of the posterior has no derivative",
        "fused": "there is no fused kernel with a rate for each feature",
    }
    for name, flag in flags.items():
        if flag:
            raise ValueError(f"{name}=True is not supported: {reasons[name]}. Leave it out")
