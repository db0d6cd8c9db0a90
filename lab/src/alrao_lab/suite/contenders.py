"""The contenders of the suite: references, which are tuned, and methods at their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..methods import METHODS
from ..settings import MethodSpec, Settings, spelled

FARTHEST = 3
"""Decades that a search may go beyond the rates it starts with, on each side."""
SEARCH_SEEDS = 3
"""Seeds of every candidate of a search."""


class Candidate(NamedTuple):
    """A method with a rate and a weight decay, where they are not its defaults."""

    method: str
    rate: float | None = None
    decay: float = 0.0

    def __str__(self) -> str:
        decay = f", decay {spelled(self.decay)}" if self.decay else ""
        return f"{MethodSpec(self.method, self.rate)}{decay}"


@dataclass(frozen=True)
class Contender:
    """A way to train, at a method's defaults or at what is best on validation data.

    A search starts with ``rates``, decades, and goes on until the best rate has a decade on each side; then
    it tries the half-decades around the best, such as 0.003 and 0.03 around 0.01; then the ``others`` at
    the best rate and at the two beside it.
    """

    name: str
    method: str
    schedule: str = "none"
    rates: tuple[float, ...] = ()
    """The rates to start the search with; none for the method's default."""
    others: tuple[tuple[str, float], ...] = ()
    """Other methods and weight decays to try."""
    momentum: float | None = None
    seeds: int = 5
    """Its runs, once its search is over."""

    @property
    def tuned(self) -> bool:
        return bool(self.rates)

    @property
    def ours(self) -> bool:
        return METHODS[self.method].ours

    @property
    def first(self) -> list[Candidate]:
        """What it starts with."""
        return [Candidate(self.method, rate) for rate in self.rates or (None,)]

    def tries(self, candidate: Candidate) -> bool:
        """Return whether a candidate is one of its own, at any rate if it is tuned."""
        if not self.tuned:
            return candidate in self.first
        own = ((self.method, 0.0), *self.others)
        return candidate.rate is not None and (candidate.method, candidate.decay) in own

    def settings(self, common: Settings, candidate: Candidate, seed: int) -> Settings:
        """Return the settings of a run."""
        method = MethodSpec(candidate.method, candidate.rate)
        momentum, decay = self.momentum, candidate.decay
        return replace(
            common, method=method, schedule=self.schedule, momentum=momentum, weight_decay=decay, seed=seed
        )

    def next_candidates(self, tried: Mapping[Candidate, float]) -> list[Candidate]:
        """Return what to try next, given the validation losses of what was tried; none at the end.

        A loss is infinite where a run failed; ties go to the lower rate.
        """
        if not self.tuned:
            return []
        own = {each.rate: loss for each, loss in tried.items() if each[::2] == (self.method, 0.0)}
        losses = {rate: loss for rate, loss in own.items() if rate is not None}
        if rates := self._next_rates(losses):
            return [Candidate(self.method, rate) for rate in rates]
        ordered = sorted(losses)
        place = ordered.index(_best(losses))
        beside = ordered[max(0, place - 1) : place + 2]
        every = [Candidate(method, rate, decay) for method, decay in self.others for rate in beside]
        return [each for each in every if each not in tried]

    def _next_rates(self, tried: Mapping[float, float]) -> list[float]:
        missing = [rate for rate in self.rates if rate not in tried]
        if missing:
            return missing
        best = _best({rate: loss for rate, loss in tried.items() if f"{rate:e}"[0] == "1"})
        lowest, highest = min(self.rates) / 10**FARTHEST, max(self.rates) * 10**FARTHEST
        around = [float(f"{best * part:.0e}") for part in (0.1, 10)]
        beyond = [rate for rate in around if rate not in tried and 0.5 * lowest < rate < 2 * highest]
        if beyond:
            return beyond
        return [rate for part in (0.3, 3) if (rate := float(f"{best * part:.0e}")) not in tried]


def _best(losses: Mapping[float, float]) -> float:
    return min(losses, key=lambda rate: (losses[rate], rate))


ADAMW = "adamw"
"""The reference whose loss others are timed to."""

# A schedule where the authors of a method train it with one. Adam is AdamW without decay.
CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("sgd", "sgd", "warmup", (1e-3, 1e-2, 1e-1), momentum=0.9, seeds=10),
        Contender(
            ADAMW, "adamw", "warmup", (1e-4, 1e-3, 1e-2),
            (("adam", 0.0), ("adamw", 0.1), ("adamw", 0.3), ("adamw", 1.0)), seeds=10,
        ),
        Contender("adamw-wsd", "adamw", "wsd", (1e-4, 1e-3, 1e-2), seeds=10),
        Contender("muon", "muon", "warmup", (1e-4, 1e-3, 1e-2), seeds=10),
        Contender("auto", "auto", seeds=10),
        Contender("auto-plain", "auto-plain", seeds=10),
        Contender("adamw-0.001", "adamw", "warmup"),
        Contender("prodigy", "prodigy", "cosine"),
        Contender("schedulefree", "schedulefree", "ramp"),
        Contender("schedulefree+", "schedulefree+", "ramp"),
        Contender("prodigy-plus", "prodigy-plus"),
        Contender("dadapt-adam", "dadapt-adam", "warmup"),
        Contender("dog", "dog-suggested"),
        Contender("mechanic", "mechanic", "warmup"),
        Contender("ademamix", "ademamix-warm", "warmup"),
        Contender("soap", "soap", "warmup"),
        Contender("muon-default", "muon", "warmup"),
        Contender("nadamw-calibrated", "nadamw-calibrated", "warmup-2%"),
        Contender("schedulefree-calibrated", "schedulefree-calibrated"),
    )
}  # fmt: skip
GROUPS = {
    "references": tuple(name for name, each in CONTENDERS.items() if each.tuned),
    "peers": tuple(name for name, each in CONTENDERS.items() if not each.tuned and not each.ours),
    "ours": tuple(name for name, each in CONTENDERS.items() if each.ours),
}
"""Names for several contenders."""
