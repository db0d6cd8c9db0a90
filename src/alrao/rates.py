"""Distributions of learning rates, as quantile functions."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite, log, sqrt
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Generator, Tensor

Interval: TypeAlias = tuple[float, float]  # the lowest and the highest learning rate


class RateDistribution(ABC):
    """A distribution of learning rates, given by its quantile function.

    An optimizer draws a place ``u`` in [0, 1] for every feature, once; the feature's rate is the quantile at
    ``u``. To add a distribution, subclass this with :meth:`quantile`.

    Example:
        >>> import torch, alrao
        >>> class Uniform(alrao.RateDistribution):
        ...     def quantile(self, u):
        ...         return 0.1 * u
        >>> Uniform().grid(3).tolist()
        [0.0, 0.05, 0.1]
    """

    per_weight: ClassVar[bool] = False
    """Whether places are drawn for single weights, in the place of features."""
    redrawn: ClassVar[bool] = False
    """Whether places are drawn again at each step."""

    @abstractmethod
    def quantile(self, u: Tensor) -> Tensor:
        """Return the rates at the places ``u``, in their type and on their device."""

    def grid(self, copies: int) -> Tensor:
        """Return the rates of ``copies`` copies of the head, lowest first: the quantiles at even places."""
        ends = (0.5, 0.5) if copies == 1 else (0.0, 1.0)
        return self.quantile(torch.linspace(*ends, copies, dtype=torch.float64, device="cpu"))

    def draw(self, count: int, generator: Generator | None = None) -> Tensor:
        """Draw ``count`` independent rates, in float64 on the CPU."""
        return self.quantile(torch.rand(count, generator=generator, dtype=torch.float64, device="cpu"))

    @property
    def interval(self) -> Interval | None:
        """The ends of the interval, of a distribution that has one."""
        return None

    def on(self, interval: Interval) -> RateDistribution:
        """Return this distribution on another interval."""
        raise ValueError(f"{self!r} has no interval that can be moved: give an interval as lr=(low, high)")


def _check_rate(name: str, value: float) -> float:
    try:
        rate = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not (isfinite(rate) and rate > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return rate


@dataclass(frozen=True)
class LogUniform(RateDistribution):
    r"""Rates whose logarithm is uniform in :math:`[\log \mathrm{lo}, \log \mathrm{hi}]`: the paper's.

    Copy :math:`j` of :math:`N` gets :math:`\log\eta_j = \log \mathrm{lo} + \frac{j-1}{N-1}\log(\mathrm{hi} /
    \mathrm{lo})`; a single copy gets the geometric mean.

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
        for name, end in (("lo", "lower"), ("hi", "upper")):
            rate = _check_rate(f"the {end} end of the interval", getattr(self, name))
            object.__setattr__(self, name, rate)
        if self.lo > self.hi:
            raise ValueError(
                f"an interval of rates goes from low to high, got ({self.lo:g}, {self.hi:g}): swap the ends"
            )

    def quantile(self, u: Tensor) -> Tensor:
        """Return the rates at the places ``u``: geometric between the ends."""
        low, high = log(self.lo), log(self.hi)
        return (u * (high - low)).add_(low).exp_().clamp_(self.lo, self.hi)

    def grid(self, copies: int) -> Tensor:
        """Return rates evenly spaced in the logarithm, both ends included."""
        grid = super().grid(copies)
        grid[0], grid[-1] = self.lo, self.hi  # exactly
        return grid if copies > 1 else torch.full_like(grid, sqrt(self.lo) * sqrt(self.hi))

    @property
    def interval(self) -> Interval | None:
        """The ends."""
        return self.lo, self.hi

    def on(self, interval: Interval) -> LogUniform:
        """Return the log-uniform distribution on another interval."""
        return LogUniform(*interval)


@dataclass(frozen=True)
class Constant(RateDistribution):
    """One rate for every feature and copy: with one copy, this is the plain optimizer.

    Args:
        lr: the rate.
    """

    lr: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", _check_rate("lr", self.lr))

    def quantile(self, u: Tensor) -> Tensor:
        """Return the rate, at every place."""
        return torch.full_like(u, self.lr)

    @property
    def interval(self) -> Interval:
        """The rate, as both ends."""
        return self.lr, self.lr


@dataclass(frozen=True)
class Bernoulli(RateDistribution):
    """The rate ``lr`` with probability ``p``, else 0: features frozen at random (the paper's appendix G).

    The copies of the head are never frozen.

    Args:
        lr: the rate of the features that learn.
        p: the fraction that learns.
    """

    lr: float
    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", _check_rate("lr", self.lr))
        if not 0.0 <= self.p <= 1.0:
            raise ValueError(f"p must be a probability, between 0 and 1, got {self.p!r}")

    def quantile(self, u: Tensor) -> Tensor:
        """Return 0 at the places below ``1 - p``, ``lr`` at the others."""
        return (u >= 1 - self.p).to(u.dtype) * self.lr

    def grid(self, copies: int) -> Tensor:
        """Return the rate ``lr`` for every copy."""
        return Constant(self.lr).grid(copies)


@dataclass(frozen=True)
class _Variant(RateDistribution):
    """Another distribution, drawn in another way."""

    distribution: Any  # a distribution; an interval is accepted

    def __post_init__(self) -> None:
        if isinstance(self.distribution, _Variant):
            raise TypeError(
                f"{type(self).__name__} takes a plain distribution or an interval, got {self.distribution!r}"
            )
        object.__setattr__(self, "distribution", as_distribution(self.distribution))

    def quantile(self, u: Tensor) -> Tensor:
        """Return the quantiles of the distribution inside."""
        return self.distribution.quantile(u)

    def grid(self, copies: int) -> Tensor:
        """Return the grid of the distribution inside."""
        return self.distribution.grid(copies)


class PerWeight(_Variant):
    """An ablation: one rate for every weight instead of one for each feature.

    The paper expects it to do worse, because every feature then has some weights that diverge. It costs a
    tensor of rates as large as the weights.

    Args:
        distribution: where the rates come from: a distribution or an interval.
    """

    per_weight = True

    @property
    def interval(self) -> Interval | None:
        """The interval of the distribution inside."""
        return self.distribution.interval

    def on(self, interval: Interval) -> PerWeight:
        """Return the same on another interval."""
        return PerWeight(self.distribution.on(interval))


class Redrawn(_Variant):
    """An ablation: the features' rates are drawn again at every step.

    In expectation this is plain SGD at the mean rate, with more noise. The copies keep their rates.

    Args:
        distribution: where the rates come from: a distribution or an interval.
    """

    redrawn = True


Rate: TypeAlias = float | Interval | RateDistribution
"""What an optimizer takes as ``lr``: a number, an interval, or a distribution."""


def as_distribution(lr: Rate) -> RateDistribution:
    """Return ``lr`` as a distribution: an interval is log-uniform, a number is constant."""
    if isinstance(lr, RateDistribution):
        return lr
    if isinstance(lr, tuple | list):
        if len(lr) != 2:
            raise ValueError(f"an interval of rates has two ends, such as (1e-5, 10), got {lr!r}")
        return LogUniform(*lr)
    if isinstance(lr, str | bool) or not hasattr(lr, "__float__"):
        raise TypeError(
            "lr must be an interval (low, high), a number or a RateDistribution such as LogUniform, got "
            f"{lr!r}"
        )
    return Constant(lr)


def scaled(distribution: RateDistribution, factor: float) -> RateDistribution:
    """Return a distribution of ``factor`` times the rates."""
    if factor == 1:
        return distribution
    _check_rate("lr_scale", factor)
    if isinstance(distribution, _Variant):
        return type(distribution)(scaled(distribution.distribution, factor))
    if isinstance(distribution, Constant | Bernoulli):
        return dataclasses.replace(distribution, lr=distribution.lr * factor)
    if (interval := distribution.interval) is not None:
        return distribution.on((interval[0] * factor, interval[1] * factor))
    raise ValueError(
        f"lr_scale={factor:g} cannot scale the rates of {distribution!r}, which has no interval: give the "
        "group its own lr, and leave lr_scale out"
    )


# For checkpoints: a distribution as plain values, and back.


def describe(distribution: RateDistribution) -> dict[str, Any]:
    """Return a distribution as plain values, equal for equal distributions."""
    fields: Any = dataclasses.fields(distribution) if dataclasses.is_dataclass(distribution) else ()
    values = {field.name: getattr(distribution, field.name) for field in fields}
    values = {k: describe(v) if isinstance(v, RateDistribution) else v for k, v in values.items()}
    return {"kind": type(distribution).__name__, **values}


def rebuild(description: dict[str, Any]) -> RateDistribution:
    """Return the distribution that :func:`describe` was given, unless its class is a user's."""
    values = {k: rebuild(v) if isinstance(v, dict) else v for k, v in description.items() if k != "kind"}
    kinds: tuple[Any, ...] = (Bernoulli, Constant, LogUniform, PerWeight, Redrawn)
    kind = {each.__name__: each for each in kinds}.get(description["kind"])
    if kind is None:
        raise ValueError(
            f"the rates were drawn from {description['kind']}, which is not a distribution of alrao: build "
            "the optimizer with the same lr before loading its state"
        )
    return kind(**values)
