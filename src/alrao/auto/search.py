"""The search for the body's learning rates: by what copies of the head gain, and by what features gain."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..finite import is_finite, without_failed, zero_nan, zero_nonfinite_
from ..rates import Interval
from ..runtime.sharding import Shards

__all__ = ["COPIES", "FeatureGains", "RateSearch", "of_former_state"]

COPIES = (1e-6, 0.1)
"""Interval of the copies' rates: wide enough for every network, since a fast copy harms no other."""

BODY = (3e-4, 3e-3)
"""Interval of the body's rates at the start: rates above 0.01 ruin a Transformer before anything is known."""

USUAL = log(sqrt(BODY[0] * BODY[1]))
"""Logarithm of its centre, and the lower bound of the centre while nothing has been learned."""

WIDTH = 1.5
"""Ratio of the highest to the lowest rate of the body at the end."""

LENGTH = 50
"""Steps of a search that learns at once. Longer ones find the same rates and leave fewer to the average."""

MIN_CREDIT = 0.1
"""Minimum progress credited per step: on a plateau copies cannot be compared."""

MAX_SHARE = 0.3
"""Largest part of the training that a search takes, where the number of steps is known."""

MOVE_EVERY = 5
"""Steps from one move of the interval to the next."""

HORIZON = 20
"""Steps over which log-likelihoods of copies and gains of features are averaged."""

TEMPERATURE = 0.1
"""Softmax temperature, relative to the best-minus-slowest gain of the copies."""

PROGRESS = 0.1
"""Gain, as a part of the first loss, at which the copies decide half of the centre: less may be noise."""

FAILED = -50.0
"""Log-likelihood of a failed copy, and the lowest of any, unless three times the first one is lower."""

SPEED = 0.1
"""Largest move of the logarithm of the body's centre in a step, in a search of the usual length."""

OUTLIER = 6.0
"""A step counts at most as this many usual ones, so that a leap of the loss does not end the search."""

AHEAD = 3.0
"""Ratio of the body's centre to the copies' above which it counts. Above its square, only the body counts."""


class FeatureGains(NamedTuple):
    """What a step shows of one parameter: the gain of each of its features, to first order.

    The first three tensors have the same shape, which broadcasts to the parameter.
    """

    now: Tensor
    """−⟨g, θ − θ₀⟩ of each feature at this step."""
    gain: Tensor
    """EMA of that, saved with the optimizer's state; changes in place."""
    log_rate: Tensor
    """Logarithm of each feature's rate, relative to the middle of the interval."""
    means: list[Tensor]
    """EMAs of the mean over features, with its sign and without; none on a network with copies."""


@dataclass
class RateSearch:
    r"""Where the interval of the body's rates is, and what has been seen of copies and features.

    **By copies.** With copy :math:`j`'s mean log-likelihood of a batch :math:`\ell_j`, its EMA :math:`R_j`,
    its gain :math:`G_j = R_j - \ell_j(1)`, and :math:`T = 0.1 (\max G - G_\mathrm{slowest})`, the centre
    follows the mean of the copies' log-rates, weighted by :math:`\mathrm{softmax}(G / T)`. On a plateau
    slow copies look best: there the centre moves up only, and a step of the search counts less. With the
    largest gain so far as a part :math:`p` of the first loss, it counts :math:`\max(0.1, p^4 / (p^4 +
    0.1^4))`.

    **By features.** To first order, the distance of feature :math:`i` from its start :math:`\theta_i(0)`
    has gained :math:`-\langle g_i, \theta_i - \theta_i(0) \rangle` of the loss. With its EMA :math:`w_i`,
    the slope :math:`b` of a straight line through :math:`w_i` over the log-rates, the standard error
    :math:`\sigma` of :math:`b`, and means over features written with a bar, the logarithm of the body's
    centre moves at each step by

    .. math:: 0.1\, s \cdot \frac{b + \max(0, \bar w) / 2}{\overline{|w|} + 2 \sigma}

    and by at most 0.1. The steadiness :math:`s` is :math:`|\mathrm{EMA}(\bar w)| / \mathrm{EMA}(|\bar w|)`.
    While rates are too low, a gain is proportional to its rate, and the centre rises. Where the loss is
    noise, the sign of the gain changes from step to step, and the centre stays. Without copies, the loss
    may have parts of very different size, such as those of a policy and of a value function: every
    parameter then has its own fraction and steadiness, and the centre follows their mean.

    Copies can tell rates apart once one of them gains; behind layers of sigmoids, features tell sooner. So
    the centre is that of the copies until the body's is 3 times above it, and the body's from 9 times on.

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation", 2023, and Cutkosky et
    al., "Mechanic: A Learning Rate Tuner", 2023, for the same gain of the whole network's distance.

    Args:
        length: steps of a search that learns at once.
    """

    length: int
    min_credit: float = MIN_CREDIT
    steps: int = 0
    """Steps made."""
    credit: float = 0.0
    """Progress credited to them; the search is over at ``length``."""
    progress: float = 0.0
    """Progress credited to the next step, by what has been learned: 1 after a clear gain."""
    centre: float = log(1e-3)
    """Logarithm of the rate that copies favour."""
    observed: int = 0
    recent: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    body_centre: float = USUAL
    """Logarithm of the rate that features favour."""
    body_observed: int = 0
    usual_gain: float = 0.0
    """EMA of the mean absolute gain of a feature at a step."""
    mean_gain: float = 0.0
    mean_gain_size: float = 0.0
    """EMAs of the mean gain of features, with its sign and without."""

    @classmethod
    def of(cls, total: int | None) -> Self:
        """Return the search for a training of ``total`` steps, or of an unknown number."""
        if total is None:
            return cls(LENGTH)
        most = max(1, int(MAX_SHARE * total))
        length = min(LENGTH, most)
        return cls(length, max(MIN_CREDIT, length / most))

    @property
    def over(self) -> bool:
        """Whether the interval has its final place."""
        return self.credit >= self.length

    @property
    def due(self) -> bool:
        """Whether the interval moves after this step."""
        return self.steps % MOVE_EVERY == 0 or self.over

    def count(self) -> None:
        """Count a step."""
        self.steps += 1
        pace = 1.0 if len(self.recent) < 2 else max(self.min_credit, self.progress)
        self.credit = min(self.credit + pace, float(self.length))

    def interval(self) -> Interval:
        """Return the body's interval: narrower, and nearer to the centre, with every step."""
        done = min(1.0, self.credit / self.length)
        start = log(BODY[1] / BODY[0])
        width = start + done * (log(WIDTH) - start)
        low, high = (log(end) for end in COPIES)
        middle = min(max(self._middle(done), low + width / 2), high - width / 2)
        return exp(middle - width / 2), exp(middle + width / 2)

    def _middle(self, done: float) -> float:
        if len(self.recent) < 2:
            return self.body_centre  # no copies, or one, which compares with nothing
        of_copies = USUAL + done * (self.centre - USUAL)
        ahead = self.body_centre - of_copies if self.body_observed else 0.0
        return of_copies + max(0.0, min(ahead, 2 * (ahead - log(AHEAD))))

    def observe_copies(self, log_likelihood: list[float], log_rates: list[float]) -> None:
        """Follow the copies with the mean log-likelihoods that they gave to a batch; slowest copy first."""
        numbers = without_failed(log_likelihood)
        if not self.observed:
            self.first = [x if x > -inf else FAILED for x in numbers]
            self.recent = [0.0] * len(self.first)
        lowest = min(FAILED, 3 * min(self.first))
        self.observed += 1
        share = 1 / min(self.observed, HORIZON)
        self.recent = [r + (max(x, lowest) - r) * share for r, x in zip(self.recent, numbers, strict=True)]
        if len(numbers) < 2:
            return  # a single copy compares with nothing
        gains = [r - x for r, x in zip(self.recent, self.first, strict=True)]
        best = max(gains)
        temperature = TEMPERATURE * max(best - gains[0], 1e-6)
        weights = [exp((gain - best) / temperature) for gain in gains]
        favoured = sum(q * rate for q, rate in zip(weights, log_rates, strict=True)) / sum(weights)
        gained = max(0.0, best) ** 4
        decided = gained / (gained + (PROGRESS * max(abs(self.first[0]), 1e-6)) ** 4)
        self.progress = max(self.progress, decided)
        favoured = decided * favoured + (1 - decided) * max(favoured, log(1e-3))
        self.centre += (favoured - self.centre) / max(1.0, self.length / 4)

    def observe_body(self, seen: list[FeatureGains], shards: Shards) -> None:
        """Move the body's centre by the gains of all features at a step, in all processes."""
        if not seen:
            return
        gains = [each.gain for each in seen]
        nows = shards.summed([each.now for each in seen], gains)
        now = _on_host(nows, gains, shards)
        size = float(now.abs().mean())
        if not is_finite(size):
            nows, now = [zero_nonfinite_(each) for each in nows], zero_nonfinite_(now)
            size = float(now.abs().mean())
        self.body_observed += 1
        share = 1 / max(1, min(self.body_observed - 1, HORIZON))
        usual = self.usual_gain
        self.usual_gain += (min(size, OUTLIER * usual) - usual) * share if usual else size
        part = min(1.0, OUTLIER * self.usual_gain / size) if size else 0.0
        torch._foreach_mul_(nows, part)
        torch._foreach_lerp_(gains, nows, share)
        mean = part * float(now.mean())
        self.mean_gain += (mean - self.mean_gain) * share
        self.mean_gain_size += (abs(mean) - self.mean_gain_size) * share
        means = [mean for each in seen for mean in each.means]
        segments = _Segments([shards.length(each) for each in gains] if means else [len(now)])
        if means:
            of_each = segments.mean(part * now)
            moved = torch.stack(means).view(-1, 2).lerp(torch.stack([of_each, of_each.abs()], 1), share)
            torch._foreach_copy_(means, list(moved.view(-1)))
        if self.body_observed > 2 and self.mean_gain_size > 0:  # before, weights are at most one step away
            log_rates = [each.log_rate for each in seen]
            pulls = segments.pull(*(_on_host(x, gains, shards) for x in (gains, log_rates)))
            if means:
                steadiness = zero_nan(moved[:, 0].abs() / moved[:, 1])
                pulls = steadiness * pulls.clamp_(-1.0, 1.0)
            pull = abs(self.mean_gain) / self.mean_gain_size * float(segments.weighted_mean(pulls))
            moved_by = min(max(pull, -1.0), 1.0) * SPEED * LENGTH / self.length
            self.body_centre = min(max(self.body_centre + moved_by, log(COPIES[0])), log(COPIES[1]))


def _on_host(of_features: list[Tensor], gains: list[Tensor], shards: Shards) -> Tensor:
    """Return numbers of all features, of all processes, as one vector in double precision."""
    return shards.joined(of_features, gains).to("cpu", torch.float64)


class _Segments:
    """Statistics over the parts of a vector: the features of each parameter, or those of all."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = torch.tensor(lengths, dtype=torch.float64)
        self._of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over each part."""
        return self._sum(x) / self._lengths

    def weighted_mean(self, of_parts: Tensor) -> Tensor:
        """Return the mean of one number a part, weighted by the lengths."""
        return (of_parts * self._lengths).sum() / self._lengths.sum()

    def pull(self, gain: Tensor, log_rate: Tensor) -> Tensor:
        """Return where the features of each part draw the centre: 1 is up, where a higher rate gains more."""
        tiny = torch.finfo(gain.dtype).tiny
        away = log_rate - self.mean(log_rate)[self._of]
        spread = self._sum(away.square()) + tiny
        mean = self.mean(gain)
        slope = self._sum(away * gain) / spread
        residual = gain - mean[self._of] - slope[self._of] * away
        error = self._sum((away * residual).square()).sqrt() / spread
        return (slope + mean.clamp(min=0) / 2) / (self.mean(gain.abs()) + 2 * error + tiny)

    def _sum(self, x: Tensor) -> Tensor:
        return torch.zeros_like(self._lengths).index_add_(0, self._of, x)


FORMER_NAMES = {
    "slowest": "min_credit",
    "made": "steps",
    "step": "credit",
    "seen": "observed",
    "climbed": "body_centre",
    "shown": "body_observed",
    "usual": "usual_gain",
    "total": "mean_gain",
    "total_size": "mean_gain_size",
}
"""Names of its numbers in states of format 3."""


def of_former_state(numbers: dict[str, Any]) -> RateSearch:
    """Return the search that a state of format 3 describes."""
    others = {FORMER_NAMES.get(key, key): value for key, value in numbers.items() if key != "steps"}
    return RateSearch(numbers["steps"], **others)
