"""Auto's step where numbers are read on the host: Adam's without its first moment, and what it moves."""

from __future__ import annotations

import torch
from torch import Tensor

from ..finite import keep_finite_, zero_nonfinite_
from .update import GroupUpdate

__all__ = ["UnitStep", "newest_share", "round_to"]


class UnitStep:
    """The step against ``g / below``, at every feature's rate, with the decay of the weights."""

    def __init__(self, u: GroupUpdate, g: list[Tensor], below: list[Tensor], unbias: list[float]) -> None:
        factor = u.factor
        if u.constant is not None:
            factor *= u.constant
        else:
            torch._foreach_div_(below, u.rates)  # a rate of 0: no step, by division by infinity
        self._u, self._g, self._below = u, g, below
        self._lengths = [factor * each for each in unbias]
        self._decay: list[Tensor] = []

    def decay_by(self, weight_decay: float, y: list[Tensor]) -> None:
        """Decay the weights in proportion to their rates, at most to zero."""
        u = self._u
        for each, rate in zip(y, u.rates, strict=True):
            part = rate * (u.factor * weight_decay)
            self._decay.append(each * (part.clamp(max=1) if isinstance(part, Tensor) else min(1.0, part)))

    def directions(self) -> list[Tensor]:
        """Return where the gradients lead, without a common factor."""
        return list(torch._foreach_div(self._g, self._below))

    def apply(self, to: list[Tensor], shares: list[float]) -> None:
        """Move some tensors, each by its share of the step."""
        lengths = [-share * length for share, length in zip(shares, self._lengths, strict=True)]
        torch._foreach_addcdiv_(to, self._g, self._below, lengths)
        for each, decay, share in zip(to, self._decay, shares, strict=False):
            each.sub_(decay, alpha=share)


def newest_share(k: int, newest: int = 1) -> float:
    """Return k² / (1² + … + k²), the weight of the newest of k points in their average, or of the newest."""
    if newest == 1:
        return 6 * k / ((k + 1) * (2 * k + 1))
    before = max(0, k - newest)
    return 1 - before * (before + 1) * (2 * before + 1) / (k * (k + 1) * (2 * k + 1))


def round_to(p: Tensor, rest: Tensor, wide: Tensor) -> None:
    """Round the weights to a parameter of a narrow type, and keep what that takes from them."""
    rounded = wide.to(p.dtype)
    keep_finite_(rounded, p)
    p.copy_(rounded)
    rest.copy_(wide - rounded)
    zero_nonfinite_(rest)
