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
        Contender("dadapt-sgd", ("dadapt-sgd",)),
        Contender("dadapt-adam", ("dadapt-adam",)),
        Contender("dog", ("dog",)),
        Contender("schedulefree", ("schedulefree",)),
        Contender("alrao", ("alrao",)),
        Contender("alrao-zoom", ("alrao-zoom",), "cosine"),
    )
}


def _zoom(name: str, zoom: str = "default", schedule: str = "cosine", **settings: Any) -> Contender:
    return Contender(name, ("alrao-zoom",), schedule, {"zoom": zoom, "lr": "1e-6:1", **settings})


def _normed(name: str, unit: str) -> Contender:
    settings = {"zoom": "default", "lr": "1e-6:0.1", "normalise": unit, "momentum": 0.9}
    return Contender(name, ("alrao",), "cosine", settings)


# ``zoom-high`` is Zoom with Adam's whole interval, as it was at first; the others are that with one thing
# changed. They take part where they are named.
ABLATIONS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        _zoom("zoom-high"),
        _zoom("zoom-constant", schedule="none"),
        _zoom("zoom-average", schedule="none", average=True),
        _zoom("zoom-average-cosine", average=True),
        _zoom("zoom-no-rewind", "rewind=0"),
        _zoom("zoom-fast", "part=0.05"),
        _zoom("zoom-slow", "part=0.5"),
        _zoom("zoom-narrow", "width=1.5"),
        _zoom("zoom-wide", "width=10"),
        _zoom("zoom-short-memory", "memory=0.1"),
        _zoom("zoom-long-memory", "memory=2"),
        _zoom("zoom-sum", evidence="sum"),
        _zoom("zoom-low-sum", lr="1e-6:0.1", evidence="sum"),
        _zoom("zoom-still-copies", "copies=0", lr="1e-6:0.1"),
        _zoom("zoom-still-copies-sum", "copies=0", lr="1e-6:0.1", evidence="sum"),
        _zoom("zoom-still-copies-high", "copies=0"),
        _zoom("zoom-slow-body", lr="1e-6:0.1", body_lr="3e-7:0.03"),
        _zoom("zoom-fast-body", lr="1e-6:0.1", body_lr="3e-6:0.3"),
        _normed("zoom-unit-features", "feature"),
        _normed("zoom-unit-layers", "layer"),
        Contender("zoom-sgd", ("alrao",), "cosine", {"zoom": "default"}),
        Contender("no-zoom", ("alrao-adam",), "cosine"),
        Contender("no-zoom-sgd", ("alrao",), "cosine"),
    )
}
