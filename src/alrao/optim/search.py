"""The search for the body's interval of learning rates, by what the copies of the head gain at theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from typing import Self

from ..finite import without_failed
from ..rates import Interval

__all__ = ["COPIES", "RateSearch"]

COPIES = (1e-6, 0.1)
"""The copies' rates for steps of unit size: wide enough for every network, and a fast copy harms no other."""

BODY = (3e-4, 3e-3)
"""The body's interval at the start: rates above 0.01 ruin a Transformer before anything is known."""

BEGUN = log(sqrt(BODY[0] * BODY[1]))
"""The logarithm of its middle there."""

WIDTH = 1.5
"""The ratio of the highest to the lowest rate of the body at the end."""

LONGEST = 50
"""Steps of a search that learns at once. Longer ones find the same rates and leave fewer to the average."""

SLOWEST = 0.1
"""What a step of the search counts while nothing has been learned: on a plateau copies cannot be compared."""

PART = 0.3
"""The part of the training that a search takes at most, where the number of steps is known."""

EVERY = 5
"""Steps from one move of the interval to the next."""

USUAL = 1e-3
"""Where the centre starts, and where it is drawn to while nothing is learned."""

RECENT = 20
"""Steps over which a copy's log-likelihood is averaged."""

SHARPNESS = 0.1
"""How far behind the best copy one may be and still count, in leads of the best on the slowest."""

PROGRESS = 0.1
"""The gain, as a part of the first loss, at which the copies decide half of the centre: less may be noise."""

WORST = -50.0
"""The log-likelihood of an observation that a failed copy counts with, and the lowest one of any copy, unless
three times the first one is below."""

TINY_LEAD = 1e-6
"""The smallest lead on the slowest copy, so that it can divide."""


@dataclass
class RateSearch:
    r"""Where the body's interval is, and what has been seen of the copies.

    With copy :math:`j`'s mean log-likelihood of a batch :math:`\ell_j`, its recent average :math:`R_j`, its
    gain :math:`g_j = R_j - \ell_j(1)`, and :math:`G = \max g - g_\mathrm{slowest}`, the centre :math:`c`
    follows the copies' log-rates, weighted by :math:`q_j \propto \exp(-(\max g - g_j) / 0.1\, G)`. On a
    plateau no gain is worth following, and slow copies look best: there the centre moves up only, and a step
    of the search counts less. With the largest gain so far as a part :math:`p` of the first loss, it counts
    :math:`\max(0.1, p^4 / (p^4 + 0.1^4))`.

    Args:
        steps: steps of a search that learns at once.
    """

    steps: int
    slowest: float = SLOWEST
    """What a step counts at least."""
    made: int = 0
    """The steps made."""
    step: float = 0.0
    """What they count."""
    progress: float = 0.0
    """What a step counts by what has been learned: 1 after a clear gain."""
    centre: float = log(USUAL)
    seen: int = 0
    recent: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, total: int | None) -> Self:
        """Return the search for a training of ``total`` steps, or of an unknown number."""
        if total is None:
            return cls(LONGEST)
        most = max(1, int(PART * total))
        steps = min(LONGEST, most)
        return cls(steps, max(SLOWEST, steps / most))

    @property
    def over(self) -> bool:
        """Whether the interval has its final place."""
        return self.step >= self.steps

    @property
    def due(self) -> bool:
        """Whether the interval moves after this step."""
        return self.made % EVERY == 0 or self.over

    def count(self) -> None:
        """Count a step."""
        self.made += 1
        pace = 1.0 if len(self.recent) < 2 else max(self.slowest, self.progress)
        self.step = min(self.step + pace, float(self.steps))

    def observe(self, log_likelihood: list[float], log_rates: list[float]) -> None:
        """Follow the copies with the mean log-likelihoods that they gave to a batch; slowest copy first."""
        numbers = without_failed(log_likelihood)
        if not self.seen:
            self.first = [x if x > -inf else WORST for x in numbers]
            self.recent = [0.0] * len(self.first)
        worst = min(WORST, 3 * min(self.first))
        numbers = [max(x, worst) for x in numbers]
        self.seen += 1
        memory = min(self.seen, RECENT)
        self.recent = [r + (x - r) / memory for r, x in zip(self.recent, numbers, strict=True)]
        if len(numbers) < 2:
            return  # a single copy compares with nothing
        gains = [r - x for r, x in zip(self.recent, self.first, strict=True)]
        best = max(gains)
        scale = SHARPNESS * max(best - gains[0], TINY_LEAD)
        weights = [exp(-(best - gain) / scale) for gain in gains]
        favoured = sum(q * rate for q, rate in zip(weights, log_rates, strict=True)) / sum(weights)
        progress = max(0.0, best) ** 4
        gate = progress / (progress + (PROGRESS * max(abs(self.first[0]), TINY_LEAD)) ** 4)
        self.progress = max(self.progress, gate)
        favoured = gate * favoured + (1 - gate) * max(favoured, log(USUAL))
        self.centre += (favoured - self.centre) / max(1.0, self.steps / 4)

    def middle(self) -> float:
        """Return the logarithm of the middle of the body's interval: nearer to the centre with every step."""
        return BEGUN + min(1.0, self.step / self.steps) * (self.centre - BEGUN)

    def interval(self) -> Interval:
        """Return the body's interval: narrower with every step."""
        start = log(BODY[1] / BODY[0])
        width = start + min(1.0, self.step / self.steps) * (log(WIDTH) - start)
        low, high = (log(end) for end in COPIES)
        centre = min(max(self.middle(), low + width / 2), high - width / 2)
        return exp(centre - width / 2), exp(centre + width / 2)
