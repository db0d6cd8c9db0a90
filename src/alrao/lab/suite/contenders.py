"""What learns in the suite: a method at its defaults, or at the best rate of a grid."""

from __future__ import annotations

from dataclasses import dataclass

from ..methods import GRID

__all__ = ["CONTENDERS", "Contender"]


@dataclass(frozen=True)
class Contender:
    """A way to train, without a choice or with the best of several rates on validation."""

    name: str
    methods: tuple[str, ...]
    schedule: str = "none"

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
