"""Typed values of a run: read once from the command line's spelling, and printed once."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import Self

from .errors import LabError


def spelled(number: float) -> str:
    """Return the one spelling of a number: short, and exact all the same."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def parse_rate(text: str) -> float:
    """Read a learning rate."""
    rate = _number(text, "a learning rate")
    if rate == 0:
        raise LabError("a learning rate must be positive, got 0")
    return rate


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise LabError(f"{what} must be a number, got {text!r}") from None
    if not isfinite(number) or number < 0:
        raise LabError(f"{what} must be a finite number that is not negative, got {text}")
    return number


class Spelled:
    """A value with a spelling on the command line (``parse``, ``str``) and an object in JSON."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read the spelling."""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the value itself, or read it from its spelling or from ``dataclasses.asdict`` of it."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        try:
            return cls(**value)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise LabError(f"{value!r} is no {cls.__name__}: {error}") from None


@dataclass(frozen=True)
class Interval(Spelled):
    """An interval of learning rates, spelled ``1e-5:10``; ``0.1`` is the interval of one rate."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Read ``LOW:HIGH`` or one rate."""
        low, colon, high = text.partition(":")
        interval = cls(parse_rate(low), parse_rate(high if colon else low))
        if interval.low > interval.high:
            raise LabError(f"an interval of rates goes from low to high, got {text}")
        return interval

    def __str__(self) -> str:
        return f"{spelled(self.low)}:{spelled(self.high)}"


@dataclass(frozen=True)
class MethodSpec(Spelled):
    """A method at a rate, spelled ``sgd@0.1``, ``adam`` (its default rate) or ``frozen@0.1:0.5``."""

    name: str
    lr: float | None = None
    fraction: float | None = None
    """The fraction of features that is trained, where the method takes one."""

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read ``NAME``, ``NAME@RATE`` or ``NAME@RATE:FRACTION``; the name is not looked up."""
        name, _, rates = text.partition("@")
        rate, _, part = rates.partition(":")
        fraction = _number(part, "the fraction of trained features") if part else None
        if fraction is not None and fraction > 1:
            raise LabError(f"the fraction of trained features is at most 1, got {part}")
        return cls(name, parse_rate(rate) if rate else None, fraction)

    @property
    def rates(self) -> str:
        """The rate and the fraction, for reading: ``0.1``, ``0.1:0.5`` or nothing."""
        return ":".join(spelled(value) for value in (self.lr, self.fraction) if value is not None)

    def __str__(self) -> str:
        return f"{self.name}@{self.rates}" if self.rates else self.name
