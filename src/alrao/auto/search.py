"""The search for the learning rate: how far the weights have to go, estimated while they go."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from operator import index
from typing import Self

from ..finite import is_finite

START = 1e-6
"""First estimate of the distance: below that of every network, also of one that is fine-tuned."""

PACE = 6.0
"""Rate during the search, in units of the estimate, which grows only while it is behind."""

PRIOR = 0.034
"""The rate after the search is the geometric mean of this and the estimate. Over the choosing workloads the
best rates, from 1e-3 to 0.016, vary with the root of the estimate rather than with itself."""

GROWTH = 1.3
"""Largest growth of the estimate in a step: a faster one overshoots before gradients can object."""

LEAST = 3e-5
"""Smallest distance that counts as found, for a rate of 1e-3: below, it may be noise."""

NOTEWORTHY = 1.05
"""Growth of the estimate that keeps the search going."""

PATIENCE = 20
"""Steps without such growth after which the search is over."""

SHORTEST = 50
"""Steps of a search at least, unless the training is short. Both sums forget as fast: after a plateau, what
was seen on it is forgotten."""

LONGEST = 500
"""Steps of a search that finds nothing."""

LARGEST_SHARE = 0.3
"""Largest part of the training that a search takes, where the number of steps is known."""

HIGHEST = 0.1
"""Highest rate."""


@dataclass
class RateSearch:
    r"""Estimates how far the weights have to go from their start, which is the rate of unit steps.

    With the start :math:`\theta_0`, the weights :math:`\theta_k`, their rate :math:`\eta_k`, the gradient
    :math:`g_k` and Adam's :math:`v_k`,

    .. math:: \hat d_k = \frac{\sum_{i \le k} 0.98^{k - i} \eta_i \langle g_i, \theta_0 - \theta_i \rangle}
        {\max_{i \le k} 0.98^{k - i} \lVert (\theta_0 - \theta_i) \odot \sqrt{v_i} \rVert_1}

    stands for the distance to a minimum. With a convex loss, a constant :math:`v` and nothing forgotten (1 in
    place of 0.98), it is at most the largest coordinate of that distance; otherwise it is a heuristic. The
    estimate :math:`d` follows it upwards, by at most 30 % a step, and :math:`\eta = 6 d`. While rates are too
    low, gradients agree and :math:`d` grows exponentially. The search is over once it has stood still for 20
    steps, after 50 at least, and the rate found is :math:`\sqrt{0.034 d}`.

    Reference: Defazio and Mishchenko, "Learning-Rate-Free Learning by D-Adaptation", 2023; Mishchenko and
    Defazio, "Prodigy", 2024. There the denominator is a weighted sum of gradients, one more number for each
    weight; steps of unit size have added it up already.

    Args:
        longest: steps of a search that finds nothing.
    """

    longest: int = LONGEST
    steps: int = 0
    """Steps made."""
    over: bool = False
    distance: float = START
    gained: float = 0.0
    """The numerator."""
    size: float = 0.0
    """The denominator."""
    noted: float = START
    """The estimate when it last grew noteworthily."""
    noted_at: int = 0
    """The step at which it did."""

    @classmethod
    def of(cls, total: int | None) -> Self:
        """Return the search for a training of ``total`` steps, or of an unknown number."""
        if total is None:
            return cls()
        if isinstance(total, bool) or not hasattr(total, "__index__") or index(total) < 1:
            raise ValueError(
                f"steps must be a whole number of at least 1, or None if it is not known, got {total!r}"
            )
        return cls(max(1, min(LONGEST, int(LARGEST_SHARE * index(total)))))

    @property
    def settled(self) -> bool:
        """Whether the estimate has grown, and then stood still."""
        return self.distance > LEAST and self.steps - self.noted_at >= PATIENCE

    @property
    def rate(self) -> float:
        """The learning rate of the next step of the search; the rate found once it is over."""
        if not self.over:
            return min(PACE * self.distance, HIGHEST)
        return min(sqrt(PRIOR * max(self.distance, LEAST)), HIGHEST)

    def observe(self, gained: float, size: float) -> None:
        r"""Count a step, before which :math:`\langle g, \theta_0 - \theta \rangle` and the norm are given."""
        self.steps += 1
        if is_finite(gained) and is_finite(size):
            kept = 1 - 1 / SHORTEST
            self.gained = kept * self.gained + self.rate * gained
            self.size = max(kept * self.size, size)
        if self.gained > self.distance * self.size > 0:
            self.distance = min(self.gained / self.size, GROWTH * self.distance)
        if self.distance > NOTEWORTHY * self.noted:
            self.noted, self.noted_at = self.distance, self.steps
        self.over = (self.settled and self.steps >= SHORTEST) or self.steps >= self.longest
