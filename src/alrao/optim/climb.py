"""The search for rates by what the body's own way has been worth, with copies or without."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from ..finite import is_finite, zero_nonfinite_
from .body import BodyStep, Shards
from .on_device import widest
from .search import BEGUN, COPIES, LONGEST, RateSearch

__all__ = ["ClimbingSearch", "follow_totals_", "pull_of", "pull_of_each"]

SPEED = 0.1
"""How far the logarithm of the centre moves in a step at most, in a search of the usual length."""

RECENT = 20
"""Steps over which a feature's worth is averaged."""

BEYOND = 0.5
"""At rest, the worth of a feature falls with this power of its rate: averaging likes higher rates."""

ERRORS = 2.0
"""Standard errors of the slope that count as none."""

LARGEST_STEP = 6.0
"""One step counts at most as this many usual ones: after a leap of the loss the search goes on."""

FIRST = 3
"""The first step at which the centre moves: before, the weights are at their start, or one step away."""

APART = 3.0
"""How many times above the copies' centre the body's is before it counts. At the square, it alone counts."""


@dataclass
class ClimbingSearch(RateSearch):
    r"""Follows the copies, and the rates at which the way that features have come is worth most.

    To first order, the way of feature :math:`i` from its start :math:`\theta_i(0)` has been worth
    :math:`-\langle g_i, \theta_i - \theta_i(0) \rangle` of the loss at a step, with the gradient :math:`g` of
    that step. With its running mean :math:`w_i` over 20 steps, the slope :math:`b` of a straight line through
    :math:`w_i` over the logarithms of the rates, the standard error :math:`\sigma` of :math:`b`, and means
    over features written with a bar, the logarithm of the body's centre moves at each step by

    .. math:: 0.1\, s \cdot \frac{b + \max(0, \bar w) / 2}{\overline{|w|} + 2 \sigma}

    and by at most 0.1. The steadiness :math:`s` is the running mean of the worth of all features together,
    without its sign, over the running mean of its size. While rates are too low, a way is worth in proportion
    to its rate, and the centre rises. Where the loss is noise, the sign of the worth changes from step to
    step, :math:`s` is small, and the centre stays.

    Without copies, the loss may have parts of very different size, such as those of a policy and of a value
    function. There every parameter has a fraction of its own, at most 1 in size, times a steadiness of its
    own, and the centre follows their mean, weighted by the number of features, times :math:`s`.

    Copies can tell rates apart once one of them gains. Behind layers of sigmoids features tell sooner. So the
    centre is that of the copies until the body's is 3 times above it, and the body's from 9 times on.

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation", 2023, and Cutkosky et
    al., "Mechanic: A Learning Rate Tuner", 2023, for the same worth of the whole network's way.
    """

    climbed: float = BEGUN
    """The logarithm of the centre that the body has climbed to."""
    shown: int = 0
    """The steps at which something of the body was shown."""
    usual: float = 0.0
    """The running mean of a feature's worth at a step, without its sign."""
    total: float = 0.0
    """The running mean of all features' worth together."""
    total_size: float = 0.0
    """The same, without its sign at each step."""

    def __post_init__(self) -> None:
        self._now: list[tuple[Tensor, Tensor, Tensor]] = []
        self._totals: list[list[Tensor]] = []
        self._width = 0.0

    def observe_body(self, step: BodyStep) -> None:
        """Note what the features' ways are worth at this step."""
        if not step.weights:
            return
        low, high = (log(end) for end in step.interval)
        self._width = high - low  # the same for all groups: their intervals differ in a factor
        now = list(torch._foreach_sub(step.starts, step.weights))
        torch._foreach_mul_(now, step.grads)
        for each, place, worth in zip(now, step.places, step.worths, strict=True):
            self._now.append((each.sum_to_size(place.shape).to(worth.dtype), worth, place))
        self._totals += step.totals

    def follow_body(self, shards: Shards) -> None:
        """Move the centre by what has been shown of all parameters, in all processes."""
        if not self._now:
            return
        nows, worths, places = map(list, zip(*self._now, strict=True))
        totals, self._totals = self._totals, []
        self._now.clear()
        nows = shards.summed(nows, worths)
        self.shown += 1
        now = shards.joined(nows, worths).double()
        size = float(now.abs().mean())
        if not is_finite(size):
            nows, now = [zero_nonfinite_(each) for each in nows], zero_nonfinite_(now)
            size = float(now.abs().mean())
        memory = max(1, min(self.shown - 1, RECENT))
        self.usual += (min(size, LARGEST_STEP * self.usual) - self.usual) / memory if self.usual else size
        part = min(1.0, LARGEST_STEP * self.usual / size) if size else 0.0
        torch._foreach_mul_(nows, part)
        torch._foreach_lerp_(worths, nows, 1 / memory)
        total = part * float(now.mean())
        self.total += (total - self.total) / memory
        self.total_size += (abs(total) - self.total_size) / memory
        for of_one, each, worth in zip(totals, nows, worths, strict=bool(totals)):
            follow_totals_(of_one, shards.joined([each], [worth]).mean(), 1 / memory)
        if self.shown >= FIRST and self.total_size > 0:
            steady = abs(self.total) / self.total_size
            log_rates = [(place - 0.5) * self._width for place in places]
            if totals:
                pull = steady * float(pull_of_each(worths, log_rates, totals, shards))
            else:
                of_all = (shards.joined(x, worths).double() for x in (worths, log_rates))
                pull = min(max(steady * float(pull_of(*of_all)), -1.0), 1.0)
            climbed = self.climbed + pull * SPEED * LONGEST / self.steps
            self.climbed = min(max(climbed, log(COPIES[0])), log(COPIES[1]))

    def middle(self) -> float:
        """Return the logarithm of the middle of the body's interval, by both sources."""
        if len(self.recent) < 2:
            return self.climbed  # no copies, or one, which compares with nothing
        of_copies = super().middle()
        above = self.climbed - of_copies if self.shown else 0.0
        return of_copies + max(0.0, min(above, 2 * (above - log(APART))))


def follow_totals_(totals: list[Tensor], now: Tensor, part: float | Tensor) -> None:
    """Follow the worth of all features of a parameter, with its sign and without, by a part of the way."""
    both = [old + (new.to(old.dtype) - old) * part for old, new in zip(totals, (now, now.abs()), strict=True)]
    torch._foreach_copy_(totals, both)


def pull_of_each(
    worths: list[Tensor], log_rates: list[Tensor], totals: list[list[Tensor]], shards: Shards
) -> Tensor:
    """Return the mean over all parameters of where each draws the centre to, by its features and steadily."""
    pulls, features = [], 0
    for worth, log_rate, (total, size) in zip(worths, log_rates, totals, strict=True):
        of_one, at = (shards.joined([x], [worth]).to(widest(x.device)) for x in (worth, log_rate))
        steady = (total.abs() / size).masked_fill(size == 0, 0.0)
        pulls.append(of_one.numel() * steady * pull_of(of_one, at).clamp(-1.0, 1.0))
        features += of_one.numel()
    return torch.stack(pulls).sum() / features


def pull_of(worth: Tensor, log_rate: Tensor) -> Tensor:
    """Return where the centre is drawn to: 1 is up, where features of a higher rate are worth more."""
    tiny = torch.finfo(worth.dtype).tiny
    away = log_rate - log_rate.mean()
    spread = away.square().sum() + tiny
    mean = worth.mean()
    slope = (away * worth).sum() / spread
    error = (away * (worth - mean - slope * away)).square().sum().sqrt() / spread
    return (slope + BEYOND * mean.clamp(min=0)) / (worth.abs().mean() + ERRORS * error + tiny)
