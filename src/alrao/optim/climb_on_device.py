"""The search for rates on a network without copies, in tensors."""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor

from ..finite import zero_nonfinite_
from .climb import FIRST, LARGEST_STEP, RECENT, SPEED, ClimbingSearch, pull_of
from .search import COPIES, LONGEST
from .search_on_device import SearchOnDevice

__all__ = ["ClimbOnDevice"]


class ClimbOnDevice(SearchOnDevice):
    """A :class:`ClimbingSearch` whose state is on a device.

    Args:
        search: the search to continue.
        like: a tensor on the device, of its widest type.
    """

    watches_body = True

    def __init__(self, search: ClimbingSearch, like: Tensor) -> None:
        super().__init__(search, like)
        self._worths = like.new_tensor([search.usual, search.total, search.total_size])
        self._shown: list[tuple[Tensor, Tensor, Tensor]] = []

    def read(self) -> ClimbingSearch:
        """Return the search as it is now, read on the host."""
        known = super().read()
        return ClimbingSearch(
            known.steps, known.step, known.centre, known.seen, [], [], *self._worths.tolist()
        )

    def observe_body(
        self, states: list[dict[str, Any]], y: list[Tensor], g: list[Tensor], ends: Tensor
    ) -> None:
        """Note what the features' ways are worth at this step, as :meth:`ClimbingSearch.observe_body`."""
        width = ends[1] - ends[0]
        for state, weight, grad in zip(states, y, g, strict=True):
            if "worth" in state:
                place = state["u"]
                now = -(grad * (weight - state["z"])).sum_to_size(place.shape)
                self._shown.append((zero_nonfinite_(now), state["worth"], (place - 0.5) * width))

    def follow_body(self, counts: Tensor) -> None:
        """Move the centre by what has been shown of all parameters, if this counts."""
        shown, self._shown = self._shown, []
        if not shown:
            return
        numbers = self.numbers
        usual, total, total_size = self._worths.unbind()
        centre, seen = numbers[1], numbers[2] + 1
        memory = (seen - 1).clamp(1, RECENT)
        now = torch.cat([each.flatten() for each, _, _ in shown]).to(numbers.dtype)
        size = now.abs().mean()
        usual = torch.where(
            usual > 0, usual + (torch.minimum(size, LARGEST_STEP * usual) - usual) / memory, usual + size
        )
        part = (LARGEST_STEP * usual / size).clamp(max=1.0).masked_fill(size == 0, 0.0)
        kept = [
            torch.where(counts, worth + (each * part - worth) / memory, worth) for each, worth, _ in shown
        ]
        torch._foreach_copy_([worth for _, worth, _ in shown], kept)
        of_all = part * now.mean()
        total = total + (of_all - total) / memory
        total_size = total_size + (of_all.abs() - total_size) / memory
        worth = torch.cat([each.flatten() for each in kept]).to(numbers.dtype)
        log_rate = torch.cat([rate.flatten() for _, _, rate in shown]).to(numbers.dtype)
        moves = (seen >= FIRST) & (total_size > 0)
        steady = (total.abs() / total_size).masked_fill(~moves, 0.0)
        pull = (steady * pull_of(worth, log_rate)).clamp(-1.0, 1.0)
        centre = (centre + pull * SPEED * LONGEST / self.steps).clamp(log(COPIES[0]), log(COPIES[1]))
        self._worths.copy_(torch.where(counts, torch.stack([usual, total, total_size]), self._worths))
        numbers[1:].copy_(torch.where(counts, torch.stack([centre, seen]), numbers[1:]))

    def _middle(self, part: Tensor) -> Tensor:
        return self.numbers[1]
