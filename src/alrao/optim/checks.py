"""Checks of the arguments that all optimizers take."""

from __future__ import annotations

from ..rates import Constant, LogUniform, RateDistribution
from ..warn import warn

__all__ = ["check_at_least_0", "refuse_flags", "warn_of_copies"]


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


def warn_of_copies(distribution: RateDistribution, copies: int) -> None:
    """Warn of rates from which the copies of the head learn nothing about the others."""
    if isinstance(distribution, Constant) and copies > 1:
        warn(
            f"lr={distribution.lr:g} gives all {copies} copies of the head the same rate, so the "
            "posterior cannot tell them apart: pass an interval such as lr=(1e-5, 10), or use one copy"
        )
    if isinstance(distribution, LogUniform) and copies == 1 and distribution.lo < distribution.hi:
        warn(
            f"the single copy of the head gets the middle of the interval, "
            f"{distribution.grid(1).item():.3g}: use several copies to cover it"
        )
