"""The search for rates on a network without copies, in tensors."""

from __future__ import annotations

import dataclasses
from math import log
from typing import Any

import torch
from torch import Tensor

from ..finite import zero_nonfinite_
from .body import Shards, totals_of
from .climb import (
    APART,
    FIRST,
    LARGEST_STEP,
    RECENT,
    SPEED,
    ClimbingSearch,
    follow_totals_,
    pull_of,
    pull_of_each,
)
from .search import COPIES, LONGEST
from .search_on_device import SearchOnDevice

__all__ = ["ClimbOnDevice"]


class ClimbOnDevice(SearchOnDevice):
    """A :class:`ClimbingSearch` whose state is on a device.

    Args:
        search: the search to continue.
        log_rates: the logarithms of the copies' rates, if there are any, as in :class:`SearchOnDevice`.
    """

    def __init__(self, search: ClimbingSearch, log_rates: Tensor) -> None:
        super().__init__(search, log_rates)
        known = [search.climbed, search.shown, search.usual, search.total, search.total_size]
        self.climb = log_rates.new_tensor(known)
        self._now: list[tuple[Tensor, Tensor, Tensor]] = []
        self._totals: list[list[Tensor]] = []

    def read(self) -> ClimbingSearch:
        """Return the search as it is now, read on the host."""
        of_copies = dataclasses.asdict(super().read())
        climbed, shown, usual, total, total_size = self.climb.tolist()
        return ClimbingSearch(
            **of_copies, climbed=climbed, shown=int(shown), usual=usual, total=total, total_size=total_size
        )

    def observe_body(
        self, states: list[dict[str, Any]], y: list[Tensor], g: list[Tensor], ends: Tensor
    ) -> None:
        """Note what the features' ways are worth at this step, as :meth:`ClimbingSearch.observe_body`."""
        width = ends[1] - ends[0]
        for state, weight, grad in zip(states, y, g, strict=True):
            if "worth" in state:
                place = state["u"]
                now = -(weight - state["z"]).mul_(grad).sum_to_size(place.shape)
                self._now.append((zero_nonfinite_(now), state["worth"], (place - 0.5) * width))
                self._totals += [totals_of(state)] if "total" in state else []

    def follow_body(self, shards: Shards, counts: Tensor) -> None:
        """Move the centre by what has been shown of all parameters in all processes, if this counts."""
        if not self._now:
            return
        nows, worths, log_rates = map(list, zip(*self._now, strict=True))
        totals, self._totals = self._totals, []
        self._now.clear()
        nows = shards.summed(nows, worths)
        climbed, before, usual, total, total_size = self.climb.clone().unbind()
        memory = before.clamp(1, RECENT)
        now = shards.joined(nows, worths).to(before.dtype)
        size = now.abs().mean()
        usual = torch.where(
            usual > 0, usual + (torch.minimum(size, LARGEST_STEP * usual) - usual) / memory, usual + size
        )
        part = (LARGEST_STEP * usual / size).clamp(max=1.0).masked_fill(size == 0, 0.0)
        kept = [
            torch.where(counts, worth + (each * part - worth) / memory, worth)
            for each, worth in zip(nows, worths, strict=True)
        ]
        torch._foreach_copy_(worths, kept)
        of_all = part * now.mean()
        total = total + (of_all - total) / memory
        total_size = total_size + (of_all.abs() - total_size) / memory
        for of_one, each, kept_one in zip(totals, nows, worths, strict=bool(totals)):
            follow_totals_(of_one, part * shards.joined([each], [kept_one]).mean(), counts / memory)
        moves = (before + 1 >= FIRST) & (total_size > 0)
        steady = (total.abs() / total_size).masked_fill(~moves, 0.0)
        if totals:
            pull = steady * pull_of_each(worths, log_rates, totals, shards).to(before.dtype)
        else:
            both = (shards.joined(x, worths).to(before.dtype) for x in (kept, log_rates))
            pull = (steady * pull_of(*both)).clamp(-1.0, 1.0)
        climbed = (climbed + pull * SPEED * LONGEST / self.steps).clamp(log(COPIES[0]), log(COPIES[1]))
        now_known = torch.stack([climbed, before + 1, usual, total, total_size])
        self.climb.copy_(torch.where(counts, now_known, self.climb))

    def middle(self) -> Tensor:
        """Return the logarithm of the middle of the body's interval, as :meth:`ClimbingSearch.middle`."""
        climbed, shown = self.climb[0], self.climb[1]
        if len(self.log_rates) < 2:
            return climbed
        of_copies = super().middle()
        above = (climbed - of_copies) * (shown > 0)
        raised = of_copies + torch.minimum(above, 2 * (above - log(APART))).clamp(min=0)
        return torch.where(self.numbers[3] > 0, raised, climbed)
