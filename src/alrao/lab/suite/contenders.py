"""The contenders of the suite: methods at their defaults, or at the best rate of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..settings import MethodSpec

FARTHEST = 3
"""Decades that a search may go beyond the rates it starts with, on each side."""


@dataclass(frozen=True)
class Contender:
    """A way to train, at a method's defaults or at the best of several rates on validation.

    A search starts with ``rates``, decades, and goes on until the best rate has a decade on each side; then
    it tries the half-decades around the best, such as 0.003 and 0.03 around 0.01.
    """

    name: str
    method: str
    schedule: str = "none"
    rates: tuple[float, ...] = ()
    """The rates to start the search with; none for the method's default."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its other settings."""
    seeds: int = 5
    """Its runs, at the most."""

    @property
    def methods(self) -> tuple[MethodSpec, ...]:
        """The method at each of the rates that a search starts with."""
        return tuple(MethodSpec(self.method, rate) for rate in self.rates or (None,))

    @property
    def tuned(self) -> bool:
        return bool(self.rates)

    def next_rates(self, tried: Mapping[float, float]) -> list[float]:
        """Return the rates to try next, given the validation losses of those tried; none at the end.

        A loss is infinite for a run that failed; ties go to the lower rate.
        """
        missing = [rate for rate in self.rates if rate not in tried]
        if missing:
            return missing
        decades = sorted(rate for rate in tried if f"{rate:e}"[0] == "1")
        best = min(decades, key=lambda rate: (tried[rate], rate))
        lowest, highest = min(self.rates) / 10**FARTHEST, max(self.rates) * 10**FARTHEST
        around = [float(f"{best * part:.0e}") for part in (0.1, 10)]
        beyond = [rate for rate in around if rate not in tried and 0.5 * lowest < rate < 2 * highest]
        if beyond:
            return beyond
        return [rate for part in (0.3, 3) if (rate := float(f"{best * part:.0e}")) not in tried]


# A schedule where the authors of a method train it with one.
CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("sgd", "sgd", rates=(1e-2, 1e-1, 1.0)),
        Contender("sgd-cosine", "sgd", "warmup", (1e-3, 1e-2, 1e-1), {"momentum": 0.9}),
        Contender("adamw-cosine", "adamw", "warmup", (1e-4, 1e-3, 1e-2)),
        Contender("auto", "auto"),
        Contender("auto-steps", "auto-steps"),
        Contender("auto-plain", "auto-plain"),
        Contender("prodigy", "prodigy", "cosine"),
        Contender("schedulefree", "schedulefree"),
        Contender("adamw-0.001", "adamw", "warmup"),
        Contender("prodigy-plus", "prodigy-plus", seeds=3),
        Contender("dog", "dog", seeds=3),
        Contender("dadapt-adam", "dadapt-adam", "cosine", seeds=3),
        Contender("mechanic", "mechanic", "cosine", seeds=3),
        Contender("nadamw-0.001", "nadamw", "warmup", seeds=3),
        Contender("muon", "muon", "warmup", seeds=3),
        Contender("finder", "finder", "warmup", seeds=3),
        Contender("adam", "adam", seeds=3),
        Contender("alrao", "alrao", seeds=3),
    )
}
