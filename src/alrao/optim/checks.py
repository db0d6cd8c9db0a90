"""Checks of the arguments that all optimizers take."""

from __future__ import annotations

from operator import index
from typing import Any

from torch import Tensor

from ..heads import Head
from ..rates import Constant, LogUniform, RateDistribution
from ..runtime.sharding import local
from ..tensors import trail
from ..warn import warn

__all__ = [
    "check_at_least_0",
    "check_head",
    "check_steps",
    "no_likelihood",
    "refuse_flags",
    "refuse_sparse",
    "refuse_strangers",
    "warn_of_copies",
    "warn_without_evidence",
]


def check_at_least_0(**values: float) -> None:
    """Raise a ValueError for a negative value."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value!r}")


def refuse_flags(**flags: bool | None) -> None:
    """Raise a ValueError for a flag of torch's optimizers that is not supported."""
    reasons = {
        "differentiable": "the update of the posterior has no derivative",
        "fused": "there is no fused kernel with a rate for each feature",
    }
    for name, flag in flags.items():
        if flag:
            raise ValueError(f"{name}=True is not supported: {reasons[name]}. Leave it out")


def check_head(groups: list[dict[str, Any]], of_head: set[Any]) -> None:
    """Raise a ValueError if the head's parameters, if there are any, are in none of the groups."""
    if of_head and all(of_head.isdisjoint(group["params"]) for group in groups):
        raise ValueError(
            "params has no parameter of the head: add model.head.parameters() to one of the groups"
        )


def refuse_strangers(params: list[Tensor]) -> None:
    """Raise a ValueError if there are parameters that are not the model's."""
    if params:
        raise ValueError(
            f"{len(params)} parameters, the first of shape {tuple(params[0].shape)}, are not "
            "the model's: convert all modules as one, Alrao(nn.ModuleList([encoder, decoder]), output=…), or "
            "pass all plain networks, [encoder, decoder]"
        )


def refuse_sparse(params: list[Tensor]) -> None:
    """Raise a RuntimeError if a gradient is sparse."""
    if any(p.grad is not None and p.grad.is_sparse for p in params):
        raise RuntimeError(
            "sparse gradients need alrao.SGD without momentum and weight decay, which would make "
            "them dense: use that, or build the embedding with sparse=False"
        )


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


def warn_without_evidence(groups: list[dict[str, Any]], of_head: set[Any]) -> None:
    """Warn if there are gradients, but no evidence of where they come from."""
    trained = [p for group in groups for p in group["params"] if p.grad is not None]
    grads: list[Tensor] = [p.grad for p in trained if p in of_head]
    if any(bool(local(grad).any()) for grad in grads):
        warn(
            "the copies of the head have gradients but no evidence, so the posterior stays as it is: "
            "compute the gradients with loss.backward(), for all leaves, before each step"
        )
    elif trained and not grads and any(p.requires_grad for p in of_head):
        warn(
            "the network has gradients, but the copies of its head have none: check that "
            "Alrao(net, output=…) names the right layer, and that the loss is computed from its output"
        )


def no_likelihood(head: Head) -> str:
    """Return what is wrong with a loss that was refused, and what to do, for an error message."""
    lost = trail.places()
    where = f". The output last became a plain tensor in {lost[-1]}" if lost else ""
    return (
        "not a negative log-likelihood, linear in the model's output, so the copies cannot be trained with "
        f"it: {head.remedy}; or train the plain network with any loss, alrao.Auto(net){where}"
    )


def check_steps(steps: int | None) -> int | None:
    """Return a number of steps, if it is a whole one; None is an unknown one."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or index(steps) < 1:
        raise ValueError(
            f"steps must be a whole number of at least 1, or None if it is not known, got {steps!r}"
        )
    return index(steps)
