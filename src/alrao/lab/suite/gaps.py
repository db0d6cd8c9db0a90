"""How far every contender is behind the best tuned run of each workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from statistics import mean

from ..table import Finished, Row
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
    """By how much of the loss it is behind the best tuned contender; infinite where a run failed.

    Of the workloads where the search for all rates is over."""
    lost: dict[str, int] = field(default_factory=dict)
    """Runs that failed, those of the search for its rate included."""

    def failed(self, workloads: list[Workload]) -> int:
        """Runs that failed on some workloads."""
        return sum(self.lost.get(workload.name, 0) for workload in workloads)

    def over(self, workloads: list[Workload]) -> tuple[float, float] | None:
        """The worst and the mean gap on some workloads; None where it has not run on all of them."""
        found = [self.gaps[workload.name] for workload in workloads if workload.name in self.gaps]
        return (max(found), mean(found)) if found and len(found) == len(workloads) else None


def loss_of(run: Finished) -> float:
    """The test loss of a run; infinite if it failed."""
    value = None if run.diverged else run.result["test"][run.result["measures"][0]]
    return inf if value is None else float(value)


def loss(row: Row) -> float:
    """Mean test loss over the seeds; infinite if one of them failed."""
    return mean(map(loss_of, row.runs))


def differences(row: Row, other: Row) -> list[float]:
    """By how much of the other's test loss a method is above it, for each seed that both have.

    Infinite where it failed alone, and left out where the other did.
    """
    known = {run.settings["seed"]: loss_of(run) for run in other.runs}
    return [
        loss_of(run) / known[run.settings["seed"]] - 1
        for run in row.runs
        if known.get(run.settings["seed"], inf) < inf
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
        tuned = {contender: rows.get(contender) for contender in suite.contenders if contender.tuned}
        over = all(row is not None and row.searched == len(c.methods) for c, row in tuned.items())
        best = min((loss(row) for row in tuned.values() if row is not None), default=inf) if over else inf
        for contender, row in rows.items():
            standing = found[contender.name]
            standing.rows[workload.name] = row
            standing.lost[workload.name] = sum(
                loss_of(run) == inf for run in suite.finished(workload, contender)
            )
            if best < inf:
                standing.gaps[workload.name] = loss(row) / best - 1
    return [standing for standing in found.values() if standing.rows]
