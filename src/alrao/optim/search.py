"""The search for the body's interval of learning rates, by what the copies of the head gain at theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt
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
"""Steps of a search. Longer ones find the same rates and leave fewer steps to the average."""

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

PROGRESS = 0.2
"""The gain, in nats an observation, at which the copies decide half of the centre: less may be noise."""

WORST = -50.0
"""The lowest log-likelihood of an observation: that of a failed copy too."""

TINY_LEAD = 1e-6
"""The smallest lead on the slowest copy, so that it can divide."""


@dataclass
class RateSearch:
    r"""Where the body's interval is, and what has been seen of the copies.

    With copy :math:`j`'s mean log-likelihood of a batch :math:`\ell_j`, its recent average :math:`R_j`, its
    gain :math:`g_j = R_j - \ell_j(1)`, and :math:`G = \max g - g_\mathrm{slowest}`, the centre :math:`c`
    follows the copies' log-rates, weighted by :math:`q_j \propto \exp(-(\max g - g_j) / 0.1\, G)`. On a
    plateau no gain is worth following, and slow copies look best: there the centre moves up only.

    Args:
        steps: steps of the search.
    """

    steps: int
    step: int = 0
    centre: float = log(USUAL)
    seen: int = 0
    recent: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, total: int | None) -> Self:
        """Return the search for a training of ``total`` steps, or of an unknown number."""
        return cls(LONGEST if total is None else max(1, min(LONGEST, int(PART * total))))

    @property
    def over(self) -> bool:
        """Whether the interval has its final place."""
        return self.step >= self.steps

    @property
    def due(self) -> bool:
        """Whether the interval moves after this step."""
        return self.step % EVERY == 0 or self.over

    def observe(self, log_likelihood: list[float], log_rates: list[float]) -> None:
        """Follow the copies with the mean log-likelihoods that they gave to a batch; slowest copy first."""
        numbers = [max(x, WORST) for x in without_failed(log_likelihood)]
        if not self.seen:
            self.first, self.recent = list(numbers), [0.0] * len(numbers)
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
        gate = progress / (progress + PROGRESS**4)
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
