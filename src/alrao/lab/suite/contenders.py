"""What learns in the suite: a method at its defaults, or at the best rate of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..methods import GRID

__all__ = ["ABLATIONS", "CONTENDERS", "Contender"]


@dataclass(frozen=True)
class Contender:
    """A way to train, without a choice or with the best of several rates on validation."""

    name: str
    methods: tuple[str, ...]
    schedule: str = "none"
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What else is special about it."""

    @property
    def tuned(self) -> bool:
        """Whether its rate is searched for."""
        return len(self.methods) > 1


def _grid(method: str) -> tuple[str, ...]:
    return tuple(f"{method}@{rate}" for rate in GRID)


# A cosine where the authors of a method train it with one.
CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("sgd", _grid("sgd")),
        Contender("sgd-cosine", _grid("sgd"), "cosine"),
        Contender("adamw-cosine", _grid("adamw"), "cosine"),
        Contender("adam", ("adam",)),
        Contender("adamw", ("adamw",)),
        Contender("prodigy", ("prodigy",), "cosine"),
        Contender("dadapt-sgd", ("dadapt-sgd",), "cosine"),
        Contender("dadapt-adam", ("dadapt-adam",), "cosine"),
        Contender("dog", ("dog",)),
        Contender("schedulefree", ("schedulefree",)),
        Contender("alrao", ("alrao",)),
        Contender("alrao-zoom", ("alrao-zoom",), "cosine"),
    )
}


def _zoom(name: str, zoom: str = "copies=3", schedule: str = "cosine", **settings: Any) -> Contender:
    """As it was at first: Adam's whole interval, the mean, copies as near to each other as features."""
    first = {"zoom": zoom, "lr": "1e-6:1", "evidence": "mean"}
    return Contender(name, ("alrao-zoom",), schedule, {**first, **settings})


def _second(name: str, zoom: str = "copies=3", **settings: Any) -> Contender:
    """The same with an interval ten times lower."""
    return _zoom(name, zoom, lr="1e-6:0.1", **settings)


def _unit(name: str, unit: str) -> Contender:
    settings = {"zoom": "copies=3", "lr": "1e-6:0.1", "normalise": unit, "momentum": 0.9}
    return Contender(name, ("alrao",), "cosine", settings)


# Zoom as it was at first, and with one thing changed; the same with a lower interval; and with the sum, which
# with copies of width 300 is what ``alrao-zoom`` is. They take part where they are named.
ABLATIONS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        _zoom("first"),
        _zoom("first-constant", schedule="none"),
        _zoom("first-average", schedule="none", average=True),
        _zoom("first-average-cosine", average=True),
        _zoom("first-no-rewind", "copies=3,rewind=0"),
        _zoom("first-fast", "part=0.05,copies=3"),
        _zoom("first-slow", "part=0.5,copies=3"),
        _zoom("first-narrow", "width=1.5,copies=1.5"),
        _zoom("first-wide", "width=10,copies=10"),
        _zoom("first-short-memory", "copies=3,memory=0.1"),
        _zoom("first-long-memory", "copies=3,memory=2"),
        _zoom("first-mode", "copies=3,mode=1"),
        _zoom("first-sum", evidence="sum"),
        _zoom("first-copies-still", "copies=inf"),
        Contender("first-sgd", ("alrao",), "cosine", {"zoom": "copies=3"}),
        Contender("no-zoom", ("alrao-adam",), "cosine"),
        Contender("no-zoom-sgd", ("alrao",), "cosine"),
        _second("second"),
        _second("second-copies-still", "copies=inf"),
        _second("second-slow-body", body_lr="3e-7:0.03"),
        _second("second-fast-body", body_lr="3e-6:0.3"),
        _unit("second-unit-features", "feature"),
        _unit("second-unit-layers", "layer"),
        _second("second-sum", evidence="sum"),
        _second("second-sum-mode", "copies=3,mode=1", evidence="sum"),
        _second("second-sum-copies-30", "copies=30", evidence="sum"),
        _second("second-sum-copies-still", "copies=inf", evidence="sum"),
    )
}
