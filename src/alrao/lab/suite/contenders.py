"""The contenders of the suite: methods at their defaults, or at the best rate of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..methods import GRID
from ..values import MethodSpec

__all__ = ["CONTENDERS", "Contender"]


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
    )
}
