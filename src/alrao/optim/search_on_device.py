"""The search for the body's interval in tensors: none of its numbers is read on the host."""

from __future__ import annotations

from math import ceil, log

import torch
from torch import Tensor

from ..finite import alive, fail
from ..rates import Interval
from .search import (
    BEGUN,
    BODY,
    COPIES,
    EVERY,
    PROGRESS,
    RECENT,
    SHARPNESS,
    TINY_LEAD,
    USUAL,
    WIDTH,
    WORST,
    RateSearch,
)

__all__ = ["SearchOnDevice"]


class SearchOnDevice:
    """A :class:`RateSearch` whose state is on a device; what it is asked is a tensor, but for :meth:`read`.

    Args:
        search: the search to continue.
        log_rates: the logarithms of the copies' rates, slowest first, on the device and in its widest type.
    """

    def __init__(self, search: RateSearch, log_rates: Tensor) -> None:
        self.steps, self.slowest, self.log_rates = search.steps, search.slowest, log_rates
        # In one tensor: torch's compiler drops changes in place of tensors without an axis.
        known = [search.step, search.made, search.centre, search.seen, search.progress]
        self.numbers = log_rates.new_tensor(known)
        zeros = [0.0] * len(log_rates)
        self.recent, self.first = (log_rates.new_tensor(x or zeros) for x in (search.recent, search.first))
        self.calls = search.made
        """The steps that the host has counted, so that it need not ask for those at which nothing moves."""

    def read(self) -> RateSearch:
        """Return the search as it is now, read on the host."""
        step, made, centre, seen, progress = self.numbers.tolist()
        known = [self.recent.tolist(), self.first.tolist()] if seen else [[], []]
        return RateSearch(self.steps, self.slowest, int(made), step, progress, centre, int(seen), *known)

    @property
    def searching(self) -> Tensor:
        """Whether the interval has not its final place yet."""
        return self.numbers[0] < self.steps

    @property
    def over(self) -> bool:
        """Whether the interval has its final place, read on the host."""
        return not bool(self.searching)

    @property
    def due(self) -> Tensor:
        """Whether the interval moves after this step."""
        return (self.numbers[1] % EVERY == 0) | ~self.searching

    @property
    def may_search(self) -> bool:
        """Whether the search may go on, as far as the host knows."""
        return self.calls <= ceil(self.steps / self.slowest)

    def count(self, live: Tensor) -> None:
        """Count a step, 1, or none, 0."""
        step, made, _, seen, progress = self.numbers.clone().unbind()
        pace = progress.clamp(min=self.slowest).masked_fill((seen == 0) | (len(self.log_rates) < 2), 1.0)
        self.numbers[:2].copy_(torch.stack([(step + live * pace).clamp(max=self.steps), made + live]))
        if not torch.compiler.is_compiling():
            self.calls += 1

    def observe(self, log_likelihood: Tensor, counts: Tensor) -> None:
        """Follow the copies, as in :meth:`RateSearch.observe`, if this counts."""
        usable = alive(log_likelihood)
        numbers = fail(log_likelihood, usable)
        _, _, centre, seen, progress = self.numbers.clone().unbind()
        first = numbers.masked_fill(~usable, WORST)
        self.first.copy_(torch.where(counts & (seen == 0), first, self.first))
        numbers = torch.maximum(numbers, (3 * self.first.amin()).clamp(max=WORST))
        recent = self.recent + (numbers - self.recent) / (seen + 1).clamp(max=RECENT)
        self.recent.copy_(torch.where(counts, recent, self.recent))
        self.numbers[3:4].add_(counts)
        if len(numbers) < 2:
            return  # a single copy compares with nothing
        gains = self.recent - self.first
        best = gains.amax()
        scale = SHARPNESS * (best - gains[0]).clamp(min=TINY_LEAD)
        weights = ((gains - best) / scale).softmax(0)
        favoured = (weights * self.log_rates).sum()
        gain = best.clamp(min=0) ** 4
        gate = gain / (gain + (PROGRESS * self.first[0].abs().clamp(min=TINY_LEAD)) ** 4)
        favoured = gate * favoured + (1 - gate) * favoured.clamp(min=log(USUAL))
        pull = (favoured - centre) / max(1.0, self.steps / 4)
        self.numbers[2:3].copy_(torch.where(counts, centre + pull, centre))
        self.numbers[4:].copy_(torch.where(counts, torch.maximum(progress, gate), progress))

    def ends(self) -> Tensor:
        """Return the logarithms of the ends of the body's interval, as in :meth:`RateSearch.interval`."""
        part = (self.numbers[0] / self.steps).clamp(max=1.0)
        start = log(BODY[1] / BODY[0])
        width = start + part * (log(WIDTH) - start)
        low, high = (log(end) for end in COPIES)
        centre = self.middle()
        centre = torch.minimum(torch.maximum(centre, low + width / 2), high - width / 2)
        return torch.stack([centre - width / 2, centre + width / 2])

    def middle(self) -> Tensor:
        """Return the logarithm of the middle of the body's interval, as :meth:`RateSearch.middle`."""
        return BEGUN + (self.numbers[0] / self.steps).clamp(max=1.0) * (self.numbers[2] - BEGUN)

    def interval(self) -> Interval:
        """Return the body's interval, read on the host."""
        low, high = self.ends().exp().tolist()
        return low, high
