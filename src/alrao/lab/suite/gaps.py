"""By how much every contender is worse than the best tuned one, on each workload."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from ..table import best_rate
from .contenders import Contender
from .workloads import Workload

RESAMPLES = 2_000
"""Bootstrap samples of the seeds."""
NEAR_CHANCE = 0.95
"""A run whose test loss is above this part of the chance's has learned nothing."""


class Standings:
    """What the contenders achieved, by the frame of a suite; those without a run are left out."""

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
        found = {key: validation(group) for key, group in runs.groupby(["contender", "workload"])}
        searched = [
            name
            for name in runs["workload"].unique()
            if all(
                (who, name) in found and not contender.next_rates(found[who, name])
                for who, contender in tuned.items()
            )
        ]
        losses = self.runs.groupby(["contender", "workload"])["loss"].mean().unstack()
        reference = losses[losses.index.isin(tuned)].reindex(columns=searched)
        reference = reference.loc[:, reference.min() < inf]
        self.best: dict[str, str] = dict(reference.idxmin()) if reference.size else {}
        """The best tuned contender on each workload where the searches for a rate are over."""
        gaps = {
            name: {who: self.gap(who, name) for who in losses.index[losses[name].notna()]}
            for name in self.best
        }
        self.gaps: pd.DataFrame = pd.DataFrame(gaps).reindex(losses.index)
        """By how much of the best tuned loss each contender is above it; infinite where a run failed.

        Both losses are means over the seeds that both have."""

    def gap(self, contender: str, workload: str) -> float:
        """Return by how much of the best tuned mean loss a contender's is above it, over common seeds."""
        pairs = self._pairs(contender, workload)
        if (self.of(contender, workload)["loss"] == inf).any():
            return inf
        return float(pairs[:, 0].mean() / pairs[:, 1].mean() - 1) if len(pairs) else float("nan")

    def _pairs(self, contender: str, workload: str) -> np.ndarray:
        """The test losses of a contender and of the best tuned one."""
        return _pairs(self.of(contender, workload), self.of(self.best[workload], workload))

    def interval(self, contender: str, workloads: Sequence[Workload]) -> tuple[float, float] | None:
        """Return a 95 % bootstrap interval of the mean gap on some workloads, over the seeds.

        Seeds are drawn with replacement, those of each workload by themselves. None where runs are missing or
        have failed.
        """
        random, sums = np.random.default_rng(0), np.zeros(RESAMPLES)
        for workload in workloads:
            if workload.name not in self.best:
                return None
            pairs = self._pairs(contender, workload.name)
            if len(pairs) < 2 or not np.isfinite(pairs).all():
                return None
            drawn = pairs[random.integers(len(pairs), size=(RESAMPLES, len(pairs)))].mean(1)
            sums += drawn[:, 0] / drawn[:, 1] - 1
        low, high = np.quantile(sums / len(workloads), (0.025, 0.975))
        return float(low), float(high)

    def over(self, contender: Contender, workloads: Sequence[Workload]) -> tuple[float, float] | None:
        """Return the worst and the mean gap on some workloads; None where it has not run on all of them."""
        names = [workload.name for workload in workloads]
        gaps = self.gaps.reindex(index=[contender.name], columns=names).iloc[0]
        return None if gaps.isna().any() else (float(gaps.max()), float(gaps.mean()))

    def failed(self, contender: Contender, workloads: Sequence[Workload]) -> int:
        """Return the number of failed runs on some workloads."""
        names = [workload.name for workload in workloads]
        return int(self.lost.reindex(index=[contender.name], columns=names, fill_value=0).iloc[0].sum())

    def at_chance(self, contender: Contender, workloads: Sequence[Workload]) -> int:
        """Return the number of runs, at the best rate, that have learned nothing."""
        return sum(
            int((self.of(contender.name, workload.name)["loss"] > NEAR_CHANCE * workload.chance).sum())
            for workload in workloads
        )

    def of(self, contender: str, workload: str) -> pd.DataFrame:
        """Return the runs of a contender on a workload, at its best rate."""
        return self.runs[(self.runs["contender"] == contender) & (self.runs["workload"] == workload)]


def validation(runs: pd.DataFrame) -> dict[float, float]:
    """Return the validation loss of a contender's first seed at each rate, infinite where the run failed."""
    first = runs[runs["seed"] == runs["seed"].min()]
    return dict(zip(first["rate"], first["valid"].fillna(inf), strict=True))


def _pairs(ours: pd.DataFrame, theirs: pd.DataFrame) -> np.ndarray:
    """The test losses of two contenders on a workload, a row for each seed that both have."""
    both = ours.merge(theirs, on="seed", suffixes=("", " theirs"))
    found: np.ndarray = both[["loss", "loss theirs"]].to_numpy(float)
    return found


def differences(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[float]:
    """Return by how much of the other's test loss a run is above it, for each seed that both have.

    It is infinite where only ours failed; seeds where theirs failed are left out.
    """
    return [own / other - 1 for own, other in _pairs(ours, theirs).tolist() if other < inf]
