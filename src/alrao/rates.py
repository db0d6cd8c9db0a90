"""Laws from which learning rates are drawn, and the even grid for the copies of the output layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite, log, sqrt
from typing import TypeAlias

import torch
from torch import Generator, Tensor

__all__ = ["Bernoulli", "Constant", "Law", "LogUniform", "PerWeight", "Rate", "Redrawn", "as_law"]


class Law(ABC):
    """A probability law over learning rates.

    A law of your own gives :meth:`draw`, the rates of the body's features, and :meth:`grid`, those of
    the copies of the output layer.
    """

    @abstractmethod
    def draw(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw ``count`` independent rates: a float64 tensor on the CPU."""

    @abstractmethod
    def grid(self, copies: int) -> Tensor:
        """The rates of ``copies`` output layers, from the lowest to the highest."""


def _check_rate(name: str, value: float) -> float:
    try:
        rate = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not (isfinite(rate) and rate > 0):
        raise ValueError(f"{name} must be a positive, finite learning rate, got {value!r}")
    return rate


@dataclass(frozen=True)
class LogUniform(Law):
    r"""Rates whose logarithm is uniform in :math:`[\log \mathrm{lo}, \log \mathrm{hi}]`: the paper's law.

    The copies get :math:`\log\eta_j = \log \mathrm{lo} + \frac{j-1}{N-1}\log(\mathrm{hi}/\mathrm{lo})`;
    a single copy gets the geometric mean.

    Args:
        lo: lowest rate.
        hi: highest rate.

    Example:
        >>> import alrao
        >>> [round(rate, 6) for rate in alrao.LogUniform(1e-4, 1.0).grid(5).tolist()]
        [0.0001, 0.001, 0.01, 0.1, 1.0]
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        lo, hi = _check_rate("the lower end of the interval", self.lo), _check_rate("its upper end", self.hi)
        if lo > hi:
            raise ValueError(
                f"an interval of rates goes from low to high, got ({lo:g}, {hi:g}): swap the ends"
            )
        object.__setattr__(self, "lo", lo)
        object.__setattr__(self, "hi", hi)

    def draw(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw ``count`` rates."""
        place = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        return place.mul_(log(self.hi / self.lo)).exp_().mul_(self.lo).clamp_(self.lo, self.hi)

    def grid(self, copies: int) -> Tensor:
        """Evenly spaced in the logarithm, both ends included."""
        if copies == 1:
            return torch.tensor([sqrt(self.lo * self.hi)], dtype=torch.float64, device="cpu")
        grid = torch.linspace(log(self.lo), log(self.hi), copies, dtype=torch.float64, device="cpu").exp()
        grid[0], grid[-1] = self.lo, self.hi
        return grid


@dataclass(frozen=True)
class Constant(Law):
    """One rate for all: with one copy, this is the plain optimizer.

    Args:
        lr: the rate.
    """

    lr: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", _check_rate("lr", self.lr))

    def draw(self, count: int, generator: Generator | None = None) -> Tensor:
        """``count`` times the rate."""
        return torch.full((count,), self.lr, dtype=torch.float64, device="cpu")

    def grid(self, copies: int) -> Tensor:
        """``copies`` times the rate."""
        return self.draw(copies)


@dataclass(frozen=True)
class Bernoulli(Law):
    """The rate ``lr`` with probability ``p``, else 0: features frozen at random (the paper's appendix G).

    The copies of the output layer are never frozen.

    Args:
        lr: the rate of the features that learn.
        p: the fraction that learns.
    """

    lr: float
    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", _check_rate("lr", self.lr))
        if not 0.0 <= self.p <= 1.0:
            raise ValueError(f"p is a probability, between 0 and 1, got {self.p!r}")

    def draw(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw ``count`` rates, each ``lr`` or 0."""
        learns = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu") < self.p
        return learns.double() * self.lr

    def grid(self, copies: int) -> Tensor:
        """``copies`` times the rate."""
        return Constant(self.lr).grid(copies)


@dataclass(frozen=True)
class _Variant(Law):
    """Another law, used in another way."""

    law: Law | tuple[float, float]

    def __post_init__(self) -> None:
        if isinstance(self.law, _Variant):
            raise TypeError(f"{type(self).__name__} takes a plain law or an interval, got {self.law!r}")
        object.__setattr__(self, "law", as_law(self.law))

    def draw(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw from the law inside."""
        return as_law(self.law).draw(count, generator)

    def grid(self, copies: int) -> Tensor:
        """The grid of the law inside."""
        return as_law(self.law).grid(copies)


class PerWeight(_Variant):
    """An ablation: one rate for every single weight instead of one for each feature.

    The paper expects it to do worse, since every feature then has some weights that run away. It costs
    a tensor of rates as large as the weights.

    Args:
        law: where the rates come from: a law or an interval.
    """


class Redrawn(_Variant):
    """An ablation: the features' rates are drawn anew at every step.

    In expectation this is plain SGD at the mean rate, with more noise. The copies keep their rates.

    Args:
        law: where the rates come from: a law or an interval.
    """


Rate: TypeAlias = float | tuple[float, float] | Law
"""What an optimizer takes as ``lr``: a number, an interval, or a law."""


def as_law(lr: Rate) -> Law:
    """Read ``lr`` as a law: an interval is log-uniform, a number is constant."""
    if isinstance(lr, Law):
        return lr
    if isinstance(lr, tuple | list):
        if len(lr) != 2:
            raise ValueError(f"an interval of rates has two ends, such as (1e-5, 10), got {lr!r}")
        return LogUniform(*lr)
    if isinstance(lr, str | bool) or not hasattr(lr, "__float__"):
        raise TypeError(f"lr must be an interval (lo, hi), a number or a law such as LogUniform, got {lr!r}")
    return Constant(lr)
