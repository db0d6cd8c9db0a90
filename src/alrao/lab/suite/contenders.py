"""The contenders of the suite: methods at their defaults, or at the best rate of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..methods import GRID
from ..values import Interval, MethodSpec
from ..zooming import Zooming

__all__ = ["ABLATIONS", "CONTENDERS", "Contender"]


@dataclass(frozen=True)
class Contender:
    """A way to train, at a method's defaults or at the best of several rates on validation."""

    name: str
    method: str
    schedule: str = "none"
    rates: tuple[float, ...] = ()
    """The rates to search; none for the method's default."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its other settings."""

    @property
    def methods(self) -> tuple[MethodSpec, ...]:
        """The method at each of the rates."""
        return tuple(MethodSpec(self.method, rate) for rate in self.rates or (None,))

    @property
    def tuned(self) -> bool:
        """Whether its rate is searched for."""
        return bool(self.rates)


# A cosine where the authors of a method train it with one.
CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("sgd", "sgd", rates=GRID),
        Contender("sgd-cosine", "sgd", "cosine", GRID),
        Contender("adamw-cosine", "adamw", "cosine", GRID),
        Contender("adam", "adam"),
        Contender("adamw", "adamw"),
        Contender("prodigy", "prodigy", "cosine"),
        Contender("dadapt-sgd", "dadapt-sgd", "cosine"),
        Contender("dadapt-adam", "dadapt-adam", "cosine"),
        Contender("dog", "dog"),
        Contender("schedulefree", "schedulefree"),
        Contender("alrao", "alrao"),
        Contender("alrao-zoom", "alrao-zoom", "cosine"),
    )
}

NEAR = Zooming(copies=3)
"""Copies as near to each other as features."""


def _zoom(name: str, zoom: Zooming = NEAR, schedule: str = "cosine", **settings: Any) -> Contender:
    """Zoom's first version: Adam's whole interval, the mean, near copies."""
    first = {"zoom": zoom, "lr": Interval(1e-6, 1), "evidence": "mean"}
    return Contender(name, "alrao-zoom", schedule, settings={**first, **settings})


def _second(name: str, zoom: Zooming = NEAR, **settings: Any) -> Contender:
    """The same with an interval ten times lower."""
    return _zoom(name, zoom, lr=Interval(1e-6, 0.1), **settings)


def _unit(name: str, unit: str) -> Contender:
    settings = {"zoom": NEAR, "lr": Interval(1e-6, 0.1), "normalise": unit, "momentum": 0.9}
    return Contender(name, "alrao", "cosine", settings=settings)


# Zoom's first version, and with one thing changed; the same with a lower interval; and with the sum, which
# with copies of width 300 is ``alrao-zoom``. They run where they are named.
ABLATIONS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        _zoom("first"),
        _zoom("first-constant", schedule="none"),
        _zoom("first-average", schedule="none", average=True),
        _zoom("first-average-cosine", average=True),
        _zoom("first-no-rewind", Zooming(copies=3, rewind=False)),
        _zoom("first-fast", Zooming(part=0.05, copies=3)),
        _zoom("first-slow", Zooming(part=0.5, copies=3)),
        _zoom("first-narrow", Zooming(width=1.5, copies=1.5)),
        _zoom("first-wide", Zooming(width=10, copies=10)),
        _zoom("first-short-memory", Zooming(copies=3, memory=0.1)),
        _zoom("first-long-memory", Zooming(copies=3, memory=2)),
        _zoom("first-mode", Zooming(copies=3, mode=True)),
        _zoom("first-sum", evidence="sum"),
        _zoom("first-copies-still", Zooming(copies=inf)),
        Contender("first-sgd", "alrao", "cosine", settings={"zoom": NEAR}),
        Contender("no-zoom", "alrao-adam", "cosine"),
        Contender("no-zoom-sgd", "alrao", "cosine"),
        _second("second"),
        _second("second-copies-still", Zooming(copies=inf)),
        _second("second-slow-body", body_lr=Interval(3e-7, 0.03)),
        _second("second-fast-body", body_lr=Interval(3e-6, 0.3)),
        _unit("second-unit-features", "feature"),
        _unit("second-unit-layers", "layer"),
        _second("second-sum", evidence="sum"),
        _second("second-sum-mode", Zooming(copies=3, mode=True), evidence="sum"),
        _second("second-sum-copies-30", Zooming(copies=30), evidence="sum"),
        _second("second-sum-copies-still", Zooming(copies=inf), evidence="sum"),
    )
}
