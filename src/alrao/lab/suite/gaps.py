"""How far every contender is behind the best tuned run of each workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from statistics import mean

from ..table import Row
from .contenders import Contender
from .plan import Suite
from .workloads import Workload

__all__ = ["Standing", "differences", "standings"]


@dataclass
class Standing:
    """What a contender achieved."""

    contender: Contender
    rows: dict[str, Row] = field(default_factory=dict)
    """Its finished runs, by workload."""
    gaps: dict[str, float] = field(default_factory=dict)
    """By how much of the loss it is behind the best tuned contender; infinite where a run failed."""

    def failed(self, workloads: list[Workload]) -> int:
        """Runs that diverged on some workloads, of those that count."""
        rows = [self.rows[workload.name] for workload in workloads if workload.name in self.rows]
        return sum(len(row.runs) - len(row.good) for row in rows)

    def over(self, workloads: list[Workload]) -> tuple[float, float] | None:
        """The worst and the mean gap on some workloads; None where it has not run on all of them."""
        found = [self.gaps[workload.name] for workload in workloads if workload.name in self.gaps]
        return (max(found), mean(found)) if found and len(found) == len(workloads) else None


def loss(row: Row) -> float:
    """Mean test loss over the seeds; infinite if one of them failed."""
    values = row.values("test", row.runs[0].result["measures"][0])
    return mean(values) if len(values) == len(row.runs) else inf


def differences(row: Row, other: Row) -> list[float]:
    """By how much of the other's test loss a method is above it, for each seed that both have.

    Infinite where it failed alone, and left out where the other did.
    """
    measure = row.runs[0].result["measures"][0]
    known = {run.settings["seed"]: run.result["test"][measure] for run in other.good}
    return [
        inf if run.diverged else run.result["test"][measure] / known[run.settings["seed"]] - 1
        for run in row.runs
        if run.settings["seed"] in known
    ]


def standings(suite: Suite) -> list[Standing]:
    """Of every contender that has a finished run, in their order."""
    found = {contender.name: Standing(contender) for contender in suite.contenders}
    for workload in suite.workloads:
        rows = {
            contender: row
            for contender in suite.contenders
            if (row := suite.chosen(workload, contender)) is not None
        }
        tuned = [loss(row) for contender, row in rows.items() if contender.tuned]
        best = min(tuned, default=inf)
        for contender, row in rows.items():
            standing = found[contender.name]
            standing.rows[workload.name] = row
            if best < inf:
                standing.gaps[workload.name] = loss(row) / best - 1
    return [standing for standing in found.values() if standing.rows]
