"""The search for rates on a network without copies, by what the body's own way has been worth."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

import torch
from torch import Tensor

from ..finite import zero_nonfinite_
from ..rates import Interval
from .body import BodyStep
from .search import BODY, COPIES, LONGEST, WIDTH, RateSearch

__all__ = ["ClimbingSearch", "pull_of"]

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


@dataclass
class ClimbingSearch(RateSearch):
    r"""Follows the rates at which the way that features have come is worth most.

    To first order, the way of feature :math:`i` from its start :math:`\theta_i(0)` has been worth
    :math:`-\langle g_i, \theta_i - \theta_i(0) \rangle` of the loss at a step, with the gradient :math:`g` of
    that step. With its running mean :math:`w_i` over 20 steps, the slope :math:`b` of a straight line through
    :math:`w_i` over the logarithms of the rates, the standard error :math:`\sigma` of :math:`b`, and means
    over features written with a bar, the logarithm of the centre moves at each step by

    .. math:: 0.1\, s \cdot \frac{b + \max(0, \bar w) / 2}{\overline{|w|} + 2 \sigma}

    and by at most 0.1. The steadiness :math:`s` is the running mean of the worth of all features together,
    without its sign, over the running mean of its size. While rates are too low, a way is worth in proportion
    to its rate, and the centre rises. Where the loss is noise, the sign of the worth changes from step to
    step, :math:`s` is small, and the centre stays.

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation", 2023, and Cutkosky et
    al., "Mechanic: A Learning Rate Tuner", 2023, for the same worth of the whole network's way.
    """

    watches_body: ClassVar[bool] = True

    usual: float = 0.0
    """The running mean of a feature's worth at a step, without its sign."""
    total: float = 0.0
    """The running mean of all features' worth together."""
    total_size: float = 0.0
    """The same, without its sign at each step."""

    def __post_init__(self) -> None:
        self._shown: list[tuple[Tensor, Tensor, Tensor]] = []

    def observe_body(self, step: BodyStep) -> None:
        """Note what the features' ways are worth at this step."""
        low, high = (log(end) for end in step.interval)
        shown = zip(step.grads, step.weights, step.starts, step.places, step.worths, strict=True)
        for g, weight, start, place, worth in shown:
            now = -(g * (weight - start)).sum_to_size(place.shape)
            self._shown.append((zero_nonfinite_(now), worth, (place - 0.5) * (high - low)))

    def follow_body(self) -> None:
        """Move the centre by what has been shown of all parameters."""
        shown, self._shown = self._shown, []
        if not shown:
            return
        self.seen += 1
        now = torch.cat([each.flatten() for each, _, _ in shown]).double()
        size = float(now.abs().mean())
        memory = max(1, min(self.seen - 1, RECENT))
        self.usual += (min(size, LARGEST_STEP * self.usual) - self.usual) / memory if self.usual else size
        part = min(1.0, LARGEST_STEP * self.usual / size) if size else 0.0
        for each, worth, _ in shown:
            worth.lerp_(each * part, 1 / memory)
        total = part * float(now.mean())
        self.total += (total - self.total) / memory
        self.total_size += (abs(total) - self.total_size) / memory
        if self.seen >= FIRST and self.total_size > 0:
            worth = torch.cat([worth.flatten() for _, worth, _ in shown]).double()
            log_rate = torch.cat([rate.flatten() for _, _, rate in shown]).double()
            steady = abs(self.total) / self.total_size
            pull = min(max(steady * float(pull_of(worth, log_rate)), -1.0), 1.0)
            centre = self.centre + pull * SPEED * LONGEST / self.steps
            self.centre = min(max(centre, log(COPIES[0])), log(COPIES[1]))

    def interval(self) -> Interval:
        """Return the body's interval: around the centre, and narrower with every step."""
        start = log(BODY[1] / BODY[0])
        width = start + min(1.0, self.step / self.steps) * (log(WIDTH) - start)
        low, high = (log(end) for end in COPIES)
        centre = min(max(self.centre, low + width / 2), high - width / 2)
        return exp(centre - width / 2), exp(centre + width / 2)


def pull_of(worth: Tensor, log_rate: Tensor) -> Tensor:
    """Return where the centre is drawn to: 1 is up, where features of a higher rate are worth more."""
    tiny = torch.finfo(worth.dtype).tiny
    away = log_rate - log_rate.mean()
    spread = away.square().sum() + tiny
    mean = worth.mean()
    slope = (away * worth).sum() / spread
    error = (away * (worth - mean - slope * away)).square().sum().sqrt() / spread
    return (slope + BEYOND * mean.clamp(min=0)) / (worth.abs().mean() + ERRORS * error + tiny)
