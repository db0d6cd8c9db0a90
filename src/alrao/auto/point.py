"""Where Auto takes its gradients: nearer to the average where steps swing from side to side."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from typing import Any

import torch
from torch import Tensor

from ..finite import is_finite
from ..runtime.capturable import Sent, widest
from ..runtime.sharding import Shards

__all__ = ["GradientPoint"]

PERIOD = 4
"""Steps from one comparison to the next; a comparison takes a pass over two steps."""

COMPARISONS = 5
"""Comparisons over which the cosine is averaged."""

TOLERANCE = 0.3
"""Mean cosines above −0.3 count as no oscillation: around a minimum directions oppose each other a little."""

MIN_SHARE = 0.1
"""Smallest share of the newest weights, relative to the usual one."""


class GradientPoint:
    r"""The share of the newest weights in the training weights :math:`y = (1 - \beta) z + \beta x`.

    Where a rate is high for the curvature, :math:`z` jumps from one side of a valley to the other, and a
    gradient taken near it says little more than that. With the steps summed over each feature, the cosine of
    two successive ones, every 4 steps, and its running mean :math:`\bar\rho` over 5 of them,

    .. math:: q \leftarrow q \exp(\bar\rho + 0.3), \quad 0.1 \le q \le 1, \qquad 1 - \beta = q\,(1 - \beta_1)

    Noise alone turns directions at random, and leaves :math:`q` at 1. The cosine is used two steps after it
    was computed, so that no device waits for it.

    Args:
        numbers: what :meth:`read` returned, to continue from.
    """

    def __init__(self, numbers: Sequence[float] = (0, 1.0, 0.0, 0)) -> None:
        self._steps, self.share, self._cosine, self._compared, *sums = numbers
        self._noted: dict[int, tuple[Tensor, Tensor]] = {}
        self._sent: Any = sums or None

    def read(self) -> list[float]:
        """Return all numbers that it consists of."""
        return [self._steps, self.share, self._cosine, self._compared, *(self._received() or ())]

    @property
    def compares(self) -> bool:
        """Whether the direction of this step is compared with another one's."""
        return self._steps % PERIOD < 2

    def beta(self, highest: float) -> float:
        """Return the share of the average, in a group where that is at least ``highest``."""
        return 1 - self.share * (1 - highest)

    def note(self, steps: list[Tensor], lasts: list[Tensor]) -> None:
        """Note the steps of some parameters, or of blocks of them.

        Args:
            steps: those steps, in any common unit.
            lasts: what is kept of earlier ones, in the shapes of the features.
        """
        for step, last in zip(steps, lasts, strict=True):
            now = step.sum([i for i, size in enumerate(last.shape) if size == 1], keepdim=True)
            # Blocks of a parameter may share features.
            key = last.data_ptr() if last.numel() and not last.is_meta else id(last)
            before = self._noted.get(key)
            self._noted[key] = (now if before is None else before[0] + now, last)

    def follow(self, features: Shards) -> None:
        """Count a step, and move by what has been noted of all parameters, in all processes."""
        phase = self._steps % PERIOD
        self._steps += 1
        if self._noted:
            nows, lasts = map(list, zip(*self._noted.values(), strict=True))
            self._noted.clear()
            nows = features.summed(nows, lasts)
            if phase == 0:
                torch._foreach_copy_(lasts, nows)
            else:
                both = features.joined([*nows, *lasts], [*lasts, *lasts])
                both = both.to(widest(both.device)).view(2, -1)
                self._sent = Sent(torch.mm(both, both.t()).flatten())
                torch._foreach_zero_(lasts)  # a parameter without a gradient at the next look has none
        if phase == PERIOD - 1 and (sums := self._received()) is not None:
            self._sent = None
            self._compare(*sums)

    def _received(self) -> list[float] | None:
        return self._sent.read() if isinstance(self._sent, Sent) else self._sent

    def _compare(self, now: float, product: float, _: float, last: float) -> None:
        if is_finite(now) and is_finite(last) and now > 0 and last > 0:
            cosine = product / (sqrt(now) * sqrt(last))
            self._compared += 1
            self._cosine += (cosine - self._cosine) / min(self._compared, COMPARISONS)
            self.share = min(max(self.share * exp(self._cosine + TOLERANCE), MIN_SHARE), 1.0)
