"""By how much every contender is worse than the best tuned one, on each workload."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pandas as pd  # type: ignore[import-untyped]

from ..table import best_rate
from .contenders import Contender
from .workloads import Workload

__all__ = ["Standings", "differences", "validation"]


class Standings:
    """What the contenders achieved.

    Args:
        runs: the frame of a suite.
        contenders: in their order; those without a run are left out.
    """

    def __init__(self, runs: pd.DataFrame, contenders: Sequence[Contender]) -> None:
        runs = runs.assign(loss=runs["test"].fillna(inf))
        by = [runs["contender"], runs["workload"]]
        self.contenders = [contender for contender in contenders if contender.name in set(runs["contender"])]
        self.every = runs
        self.lost: pd.DataFrame = (runs["loss"] == inf).groupby(by).sum().unstack(fill_value=0)
        """The number of runs that failed, those of the search for a rate included."""
        tuned = {contender.name: contender for contender in contenders if contender.tuned}
        chosen = [
            group[group["label"] == best_rate(group)] if who in tuned else group
            for (who, _), group in runs.groupby(["contender", "workload"], sort=False)
        ]
        self.runs: pd.DataFrame = pd.concat(chosen) if chosen else runs
        """The runs at the best rates."""
        losses = self.runs.groupby(["contender", "workload"])["loss"].mean().unstack()
        found = {key: validation(group) for key, group in runs.groupby(["contender", "workload"])}
        over = [
            name
            for name in losses.columns
            if all(
                (who, name) in found and not contender.next_rates(found[who, name])
                for who, contender in tuned.items()
            )
        ]
        reference = losses[losses.index.isin(tuned)].min()[over]
        self.gaps: pd.DataFrame = losses[over] / reference[reference < inf] - 1
        """By how much of the best tuned loss each contender is above it; infinite where a run failed.

        It has no value for workloads where the search for a rate is not over."""

    def over(self, contender: Contender, workloads: Sequence[Workload]) -> tuple[float, float] | None:
        """Return the worst and the mean gap on some workloads; None where it has not run on all of them."""
        names = [workload.name for workload in workloads]
        gaps = self.gaps.reindex(index=[contender.name], columns=names).iloc[0]
        return None if gaps.isna().any() else (float(gaps.max()), float(gaps.mean()))

    def failed(self, contender: Contender, workloads: Sequence[Workload]) -> int:
        """Return the number of failed runs on some workloads."""
        names = [workload.name for workload in workloads]
        return int(self.lost.reindex(index=[contender.name], columns=names, fill_value=0).iloc[0].sum())

    def of(self, contender: str, workload: str) -> pd.DataFrame:
        """Return the runs of a contender on a workload, at its best rate."""
        return self.runs[(self.runs["contender"] == contender) & (self.runs["workload"] == workload)]


def validation(runs: pd.DataFrame) -> dict[float, float]:
    """Return the validation loss of a contender's first seed at each rate, infinite where the run failed."""
    first = runs[runs["seed"] == runs["seed"].min()]
    return dict(zip(first["rate"], first["valid"].fillna(inf), strict=True))


def differences(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[float]:
    """Return by how much of the other's test loss a run is above it, for each seed that both have.

    It is infinite where only ours failed; seeds where theirs failed are left out.
    """
    both = ours.merge(theirs, on="seed", suffixes=("", " theirs"))
    both = both[both["loss theirs"] < inf]
    return list(both["loss"] / both["loss theirs"] - 1)
