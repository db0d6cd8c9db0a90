"""What a search for learning rates can see of the body: its features at a step, with their rates."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..rates import Interval
from .update import GroupUpdate

__all__ = ["BodyStep"]


class BodyStep(NamedTuple):
    """Parameters of the body, at the weights that a step's gradients belong to, before they move.

    All lists have an entry for each parameter, a tensor on the parameter's device; nothing was read on the
    host. ``weights`` and ``starts`` change after the call: add up what is needed of them, and keep no
    reference. Sharded parameters are not shown.
    """

    interval: Interval
    """The interval of the rates."""
    params: list[Tensor]
    """The parameters, to tell them apart."""
    weights: list[Tensor]
    """Their values, at least in float32."""
    starts: list[Tensor]
    """Their values before the first step."""
    grads: list[Tensor]
    """The gradients of the loss, which is minimized; finite."""
    places: list[Tensor]
    """The place of each feature in the interval, in [0, 1]; broadcasts to the parameter."""
    worths: list[Tensor]
    """What the way of each feature has been worth, in the shape of ``places``: 0 at the start, for the search
    to change in place, and saved with the optimizer's state."""
    rates: list[Tensor]
    """The rate of each feature at this step, without ``factor``; broadcasts to the parameter."""
    factor: float
    """The factor ``param_groups[…]["lr"]`` on all rates."""

    @classmethod
    def of(
        cls,
        interval: Interval,
        update: GroupUpdate,
        states: list[dict[str, Any]],
        weights: list[Tensor],
        grads: list[Tensor],
    ) -> BodyStep:
        """Return what an update is about to move, without parameters that do not follow the search."""
        at = [i for i, state in enumerate(states) if "start" in state and "worth" in state]
        return cls(
            interval,
            [update.params[i] for i in at],
            [weights[i] for i in at],
            [states[i]["start"] for i in at],
            [grads[i] for i in at],
            [states[i]["u"] for i in at],
            [states[i]["worth"] for i in at],
            [update.rates[i] for i in at],
            update.factor,
        )
