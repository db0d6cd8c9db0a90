"""An interval of rates that is moved on a device, without a read on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..rates import Interval, LogUniform, PerWeight, RateDistribution

__all__ = ["MovingInterval", "moved"]


@dataclass(frozen=True, eq=False)
class MovingInterval(RateDistribution):
    """Log-uniform rates on an interval whose ends are on a device; :attr:`interval` reads them.

    Args:
        ends: the logarithms of both ends, ``(2,)``, which change in place.
    """

    ends: Tensor

    def quantile(self, u: Tensor) -> Tensor:
        """Return the rates at the places ``u``: geometric between the ends."""
        low, high = self.ends.unbind()
        rates = (u * (high - low) + low).exp()
        return torch.minimum(torch.maximum(rates, low.exp()), high.exp()).to(u.dtype)

    def grid(self, copies: int) -> Tensor:
        """Return rates evenly spaced in the logarithm, both ends included, on the device."""
        if copies == 1:
            return self.ends.mean(0, keepdim=True).exp()
        return self.quantile(torch.linspace(0, 1, copies, dtype=self.ends.dtype, device=self.ends.device))

    @property
    def interval(self) -> Interval | None:
        """The ends, read on the host."""
        low, high = self.ends.exp().tolist()
        return low, high

    def on(self, interval: Interval) -> RateDistribution:
        """Return the log-uniform distribution on another interval."""
        return LogUniform(*interval)


def moved(
    now: RateDistribution, drawn: RateDistribution, ends: Tensor, where: Tensor | None
) -> RateDistribution:
    """Return a distribution on another interval.

    Args:
        now: the present distribution; the interval of one that moves already changes in place.
        drawn: the distribution at the start.
        ends: the logarithms of the new ends.
        where: whether to move at all, a single Boolean.
    """
    plain = now.inner if isinstance(now, PerWeight) else now
    if isinstance(plain, MovingInterval):
        plain.ends.copy_(ends if where is None else torch.where(where, ends, plain.ends))
        return now
    inner = drawn.inner if isinstance(drawn, PerWeight) else drawn
    if isinstance(inner, LogUniform) and isinstance(plain, LogUniform):
        new = MovingInterval(ends.clone())
        if where is not None:
            before = ends.new_tensor([plain.lo, plain.hi]).log()
            new = MovingInterval(torch.where(where, ends, before))
        return PerWeight(new) if isinstance(drawn, PerWeight) else new
    low, high = ends.exp().tolist()  # a user's own distribution takes numbers
    return drawn.on((low, high)) if where is None or bool(where) else now
