"""What a search for learning rates can see of the body: its features at a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rates import Interval
from ..shards import is_shard, local, sum_over_shards, summed_as, whole_of

__all__ = ["BodyStep", "Shards", "totals_of"]


class BodyStep(NamedTuple):
    """Parameters of the body, at the weights that a step's gradients belong to, before they move.

    All lists have an entry for each parameter, a tensor on the parameter's device; nothing was read on the
    host. ``weights`` and ``starts`` change after the call: add up what is needed of them, and keep no
    reference. Of sharded parameters, they are this process's parts.
    """

    interval: Interval
    """The interval of the rates."""
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
    totals: list[list[Tensor]]
    """Two running means of the worth of a parameter, with its sign and without, likewise; none
    with copies."""

    @classmethod
    def of(
        cls,
        interval: Interval,
        states: list[dict[str, Any]],
        weights: list[Tensor],
        grads: list[Tensor],
    ) -> BodyStep:
        """Return what a step is about to move, without parameters that do not follow the search."""
        at = [i for i, state in enumerate(states) if "start" in state and "worth" in state]
        return cls(
            interval,
            [weights[i] for i in at],
            [states[i]["start"] for i in at],
            [grads[i] for i in at],
            [states[i]["u"] for i in at],
            [states[i]["worth"] for i in at],
            [totals_of(states[i]) for i in at if "total" in states[i]],
        )


def totals_of(state: dict[str, Any]) -> list[Tensor]:
    """Return the running means of a parameter's worth: two tensors without an axis, as a counter."""
    return [state["total"], state["total_size"]]


class Shards:
    """Puts together what processes know of sharded parameters; of others, every process knows all.

    Args:
        state: what is kept of each parameter.
        params: the parameters.
        key: what of their state tells them apart: methods are given this process's part of it.
    """

    def __init__(self, state: Mapping[Tensor, Any], params: Iterable[Tensor], key: str) -> None:
        shards = [p for p in params if is_shard(p) and key in state[p]]
        self._of = {id(local(state[p][key])): (state[p][key], p) for p in shards}

    def summed(self, sums: Iterable[Tensor], kept: Iterable[Tensor]) -> list[Tensor]:
        """Return sums over the elements of each feature, added up where processes share a feature."""
        if not self._of:
            return list(sums)
        pairs = ((x, self._of.get(id(part))) for x, part in zip(sums, kept, strict=True))
        return [x if found is None else summed_as(x, *found) for x, found in pairs]

    def joined(self, of_features: Iterable[Tensor], kept: Iterable[Tensor]) -> Tensor:
        """Return numbers of features, in the shape of what is kept of them, of all processes in a vector."""
        if self._of:
            pairs = ((x, self._of.get(id(part))) for x, part in zip(of_features, kept, strict=True))
            of_features = [x if found is None else whole_of(x, found[0]) for x, found in pairs]
        return torch.cat([x.flatten() for x in of_features])

    def total(self, sums: Iterable[Tensor], kept: Iterable[Tensor]) -> Tensor:
        """Return the sum over all parameters, from sums over this process's part of each."""
        if not self._of:
            return torch.stack(list(sums)).sum()
        pairs = ((x, self._of.get(id(part))) for x, part in zip(sums, kept, strict=True))
        return torch.stack([x if found is None else sum_over_shards(x, found[1]) for x, found in pairs]).sum()

    def read_total(self, sums: Iterable[Tensor], kept: Iterable[Tensor]) -> float:
        """Return the same sum as a number."""
        return float(self.total(sums, kept)) if self._of else sum([x.item() for x in sums])
