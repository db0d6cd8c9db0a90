"""What the contenders achieved: group-bys over the table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from .contenders import ADAMW, SEARCH_SEEDS, Contender
from .runs import WHEN, validation
from .workloads import Workload

RESAMPLES = 2_000
"""Bootstrap samples of the workloads and of the seeds."""
TOLERANCE = 0.01
"""A run has reached a loss when it is above it by at most this part."""
NEAR_CHANCE = 0.95
"""A run whose test loss is above this part of the chance's has learned nothing."""


class Standings:
    """The figures of the contenders at a time: at the ``chosen`` epoch, or at the ``last`` step.

    The reference on a workload is the tuned contender with the lowest mean test loss. What is best among
    the candidates of a tuned contender is that at the same time, on validation data.
    """

    def __init__(self, runs: pd.DataFrame, contenders: Sequence[Contender], when: str = WHEN[0]) -> None:
        present = set(runs["contender"])
        self.when, self.every = when, runs
        self.contenders = [contender for contender in contenders if contender.name in present]
        self.names = [contender.name for contender in self.contenders]
        tuned = {contender.name: contender for contender in contenders if contender.tuned}
        self.chosen = self._chosen(tuned)
        """The runs of each contender on each workload, at the best of its candidates."""
        self.losses = self._pivot(f"test {when}")
        """Their test losses, a row for each workload and seed; infinite where a run failed."""
        self.scores = self._pivot(f"score {when}")
        """Their accuracies, or R²."""
        self.best = self._best(tuned)
        """The reference on each workload where all searches are over."""
        made = {name: {each: self._gap(each, name) for each in self.names} for name in self.best}
        self.gaps = pd.DataFrame(made, index=self.names)
        """By how much of the reference's test loss each contender is above it; infinite where a run failed.

        Both losses are means over the seeds that both have."""

    def _chosen(self, tuned: dict[str, Contender]) -> pd.DataFrame:
        kept = []
        for (name, _), group in self.every.groupby(["contender", "workload"], sort=False):
            if name in tuned:
                losses = validation(group, self.when)
                best = min(losses, key=lambda each: (losses[each], each)) if losses else None
                group = group[group["candidate"] == best]
            kept.append(group)
        return pd.concat(kept) if kept else self.every

    def _pivot(self, column: str) -> pd.DataFrame:
        found = self.chosen.pivot_table(
            index=["workload", "seed"], columns="contender", values=column, aggfunc="first"
        )
        return found.reindex(columns=self.names).astype(float)

    def _best(self, tuned: dict[str, Contender]) -> dict[str, str]:
        best = {}
        for workload, runs in self.every.groupby("workload", sort=False):
            groups = dict(iter(runs.groupby("contender")))
            over = [
                name
                for name, contender in sorted(tuned.items())
                if name in groups and not contender.next_candidates(validation(groups[name], self.when))
            ]
            means = self.losses.loc[workload, over].mean()
            if over and len(over) == len(tuned) and means.min() < inf:
                best[str(workload)] = str(means.idxmin())
        return best

    def _pairs(self, table: pd.DataFrame, workload: str, ours: str) -> np.ndarray:
        """The figures of a contender and of the reference, a row for each seed that both have."""
        pair = table.loc[workload, [ours, self.best[workload]]]
        found: np.ndarray = pair.set_axis(["ours", "theirs"], axis=1).dropna().to_numpy()
        return found

    def _gap(self, contender: str, workload: str) -> float:
        pairs = self._pairs(self.losses, workload, contender)
        if (self.losses.loc[workload, contender] == inf).any():
            return inf
        return float(pairs[:, 0].mean() / pairs[:, 1].mean() - 1) if len(pairs) else nan

    def score_gap(self, contender: str, workload: str) -> float:
        """Return by how much the accuracy, or R², is above the reference's."""
        pairs = self._pairs(self.scores, workload, contender)
        return float((pairs[:, 0] - pairs[:, 1]).mean()) if len(pairs) else nan

    def ready(self, workloads: Sequence[Workload]) -> list[str]:
        """Return the names of those workloads that have a reference."""
        return [workload.name for workload in workloads if workload.name in self.best]

    def interval(
        self, contender: str, workloads: Sequence[Workload], *, fixed: bool = False
    ) -> tuple[float, float] | None:
        """Return a 95 % bootstrap interval of the mean gap, over the workloads and over their seeds.

        Workloads are drawn with replacement, and so are the seeds of each, also of one that is drawn twice.
        ``fixed`` keeps the workloads as they are and draws seeds only: what another run of the same suite
        may give, not another suite. The reference on each workload stays what it is. None where runs are
        missing or have failed.
        """
        random, samples = np.random.default_rng(0), []
        for name in self.ready(workloads):
            pairs = self._pairs(self.losses, name, contender)
            if len(pairs) < 2 or not np.isfinite(pairs).all():
                return None
            drawn = pairs[random.integers(len(pairs), size=(RESAMPLES, len(pairs)))].mean(1)
            samples.append(drawn[:, 0] / drawn[:, 1] - 1)
        if not samples:
            return None
        gaps, count = np.stack(samples, 1), len(samples)
        if not fixed:
            gaps = gaps[random.integers(RESAMPLES, size=gaps.shape), random.integers(count, size=gaps.shape)]
        low, high = np.quantile(gaps.mean(1), (0.025, 0.975))
        return float(low), float(high)

    def deviation(self, workload: str) -> float:
        """Return the standard deviation of the reference's test loss between seeds, as a part of its mean."""
        losses = self.losses.loc[workload, self.best[workload]].dropna()
        return float(losses.std() / losses.mean()) if len(losses) > 1 else nan

    def targets(self) -> pd.DataFrame:
        """Return the ``steps`` and the ``cpu`` seconds that each run needs to tuned AdamW's last loss.

        Both are parts of what tuned AdamW takes in all, and infinite where the loss is never reached;
        ``step`` and ``second`` are the same as numbers. The loss is the mean of AdamW's at its last step,
        on validation data, at its best candidate there; what comes within ``TOLERANCE`` has reached it.
        """
        rows = []
        last = Standings(self.every, self.contenders, "last") if self.when != "last" else self
        for workload, runs in last.chosen.groupby("workload", sort=False):
            reference = runs[runs["contender"] == ADAMW]
            target = (1 + TOLERANCE) * reference["valid last"].mean()
            if reference.empty or not isfinite(target):
                continue
            steps, cpu = reference["steps"].mean(), reference["cpu"].mean()
            for run in runs.itertuples():
                at = crossing(run.curve, target)
                row = {"workload": workload, "contender": run.contender, "seed": run.seed}
                row |= {"step": at[0], "second": at[1]}
                rows.append(row | {"steps": at[0] / steps, "cpu": at[1] / cpu})
        names = ["workload", "contender", "seed", "steps", "cpu", "step", "second"]
        return pd.DataFrame(rows, columns=names)

    def over(self, workloads: Sequence[Workload]) -> pd.DataFrame:
        """Return what the contenders achieved on some workloads together, a row each.

        Gaps are nan where one has not run on all of them. ``reached`` is the part of the workloads on which
        at least half of the runs reach tuned AdamW's loss, ``steps`` and ``cpu`` the mean over these of the
        median of what that takes. ``failed`` counts the runs of searches too; ``tried`` is the number of
        runs to find the settings of a workload, without the seeds that are added to the best.
        """
        names = self.ready(workloads)
        chances = {each.name: each.chance for each in workloads if each.name in names}
        gaps = self.gaps.reindex(index=self.names, columns=names)
        lost = self.every[self.every["failed"].astype(bool) & self.every["workload"].isin(names)]
        losses = self.losses[self.losses.index.get_level_values("workload").isin(names)]
        limits = NEAR_CHANCE * losses.index.get_level_values("workload").map(chances).astype(float)
        scores = {each: [self.score_gap(each, name) for name in names] for each in self.names}
        targets = self.targets()
        medians = targets[targets["workload"].isin(names)].groupby(["contender", "workload"])[
            ["steps", "cpu"]
        ]
        reached = medians.median().replace(inf, nan)
        searched = self.every["workload"].isin(names) & (self.every["seed"] < SEARCH_SEEDS)
        tried = self.every[searched].groupby(["contender", "workload"])
        tuned = [each.name for each in self.contenders if each.tuned]
        found: dict[str, Any] = {
            "mean": gaps.mean(axis=1, skipna=False),
            "median": gaps.median(axis=1, skipna=False),
            "worst": gaps.max(axis=1, skipna=False),
            "score": pd.Series(
                {each: float(np.mean(values)) if values else nan for each, values in scores.items()}
            ),
            "reached": reached["steps"].notna().groupby("contender").mean(),
            "steps": reached["steps"].groupby("contender").mean(),
            "cpu": reached["cpu"].groupby("contender").mean(),
            "failed": lost["contender"].value_counts().reindex(self.names, fill_value=0),
            "at chance": losses.gt(limits, axis=0).sum(),
            "tried": tried.size().groupby("contender").mean().where(lambda s: s.index.isin(tuned), 1),
        }
        return pd.DataFrame(found, index=self.names)

    def sensitivity(self, methods: Sequence[str] = ("adamw", "muon")) -> pd.DataFrame:
        """Return the mean test loss of the references at each rate of their searches, on each workload."""
        few = self.every[self.every["contender"].isin(methods) & self.every["rate"].notna()]
        few = few[[each.decay == 0 and each.method in methods for each in few["candidate"]]]
        return few.groupby(["workload", "contender", "rate"])[f"test {self.when}"].mean().reset_index()


def crossing(curve: Sequence[tuple[float, float, float]], target: float) -> tuple[float, float]:
    """Return the steps and seconds at which a curve reaches a loss, interpolated between evaluations."""
    before: tuple[float, float, float] | None = None
    for point in curve:
        if point[2] <= target:
            if before is None or before[2] == point[2]:
                return point[0], point[1]
            part = (before[2] - target) / (before[2] - point[2])
            return before[0] + part * (point[0] - before[0]), before[1] + part * (point[1] - before[1])
        before = point
    return inf, inf
