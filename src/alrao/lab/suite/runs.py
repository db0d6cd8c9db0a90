"""The runs of the suite, and by how much each contender is worse than the best tuned one.

One workload is trained after the other: grids with one seed, the rest with several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import inf, nan
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from ..records import read
from ..runset import RunSet
from ..settings import MethodSpec, Settings
from ..store import Run
from ..table import best_rate, frame
from .contenders import Contender
from .workloads import Workload


class Search(RunSet):
    """Every contender on a workload: first the rates to start with, then those that the searches call for."""

    def __init__(
        self,
        workload: Workload,
        contenders: Sequence[Contender],
        common: Settings,
        *,
        seeds: int,
        roots: list[Path],
    ) -> None:
        super().__init__(workload.settings(common), roots)
        self.workload, self.contenders, self.seeds = workload, contenders, seeds
        self._own: dict[str, dict[Path, Run]] = {contender.name: {} for contender in contenders}
        for contender in contenders:
            count = 1 if contender.tuned else min(seeds, contender.seeds)
            self._add(contender, contender.methods, count)

    def _add(self, contender: Contender, methods: Iterable[MethodSpec], seeds: int) -> None:
        own = replace(self.settings, schedule=contender.schedule, **contender.settings)
        for method, seed in product(methods, range(seeds)):
            run = self.plan(replace(own, method=method, seed=seed)).run
            self._own[contender.name][run.path] = run

    def choose(self) -> None:
        """Plan the rates that the searches try next, or all seeds of the one that is best on validation."""
        for contender in self.contenders:
            if contender.tuned and len(found := self.frame(contender)):
                rates = contender.next_rates(validation(found))
                if rates:
                    self._add(contender, [MethodSpec(contender.method, rate) for rate in rates], 1)
                else:
                    best = found.loc[found["label"] == best_rate(found), "spec"].iloc[0]
                    self._add(contender, [best], min(self.seeds, contender.seeds))

    def frame(self, contender: Contender) -> pd.DataFrame:
        """Return the finished runs of a contender, a row each, with the names of it and the workload."""
        found = read(self._own[contender.name].values()).records
        runs = frame(record for record in found if record.ended)
        return runs.assign(workload=self.workload.name, contender=contender.name)


def every(searches: Iterable[Search]) -> pd.DataFrame:
    """Return the finished runs on some workloads, a row each."""
    found = [search.frame(contender) for search in searches for contender in search.contenders]
    return pd.concat([runs for runs in found if len(runs)] or found[:1])


RESAMPLES = 2_000
"""Bootstrap samples of the seeds."""
NEAR_CHANCE = 0.95
"""A run whose test loss is above this part of the chance's has learned nothing."""


class Standings:
    """What the contenders achieved, by the frame of a suite; those without a run are left out."""

    def __init__(self, runs: pd.DataFrame, contenders: Sequence[Contender]) -> None:
        self.every = runs.assign(loss=runs["test"].fillna(inf))
        self.contenders = [contender for contender in contenders if contender.name in set(runs["contender"])]
        tuned = {contender.name: contender for contender in contenders if contender.tuned}
        groups = dict(iter(self.every.groupby(["contender", "workload"])))
        best = [
            group[group["label"] == best_rate(group)] if name in tuned else group
            for (name, _), group in groups.items()
        ]
        self.chosen = pd.concat(best or [self.every])
        """The runs of each contender on each workload, at its best rate."""
        self.losses = self.chosen.pivot(index=["workload", "seed"], columns="contender", values="loss")
        """The test losses of these runs, infinite where one failed."""
        self.best: dict[str, str] = {}
        """The best tuned contender on each workload where the searches for a rate are over."""
        for workload in runs["workload"].unique():
            over = [
                name
                for name, contender in sorted(tuned.items())
                if (name, workload) in groups and not contender.next_rates(validation(groups[name, workload]))
            ]
            means = self.losses.loc[workload, over].mean()
            if len(over) == len(tuned) and means.min() < inf:
                self.best[workload] = means.idxmin()
        gaps = {workload: {name: self._gap(name, workload) for name in self.losses} for workload in self.best}
        self.gaps = pd.DataFrame(gaps, index=list(self.losses))
        """By how much of the best tuned loss each contender is above it; infinite where a run failed.

        Both losses are means over the seeds that both have."""

    def _gap(self, contender: str, workload: str) -> float:
        pairs = self._pairs(workload, contender, self.best[workload])
        if (self.losses.loc[workload, contender] == inf).any():
            return inf
        return float(pairs[:, 0].mean() / pairs[:, 1].mean() - 1) if len(pairs) else nan

    def _pairs(self, workload: str, ours: str, theirs: str) -> np.ndarray:
        """The test losses of two contenders on a workload, a row for each seed that both have."""
        return self.losses.loc[workload, [ours, theirs]].dropna().to_numpy()

    def differences(self, workload: str, ours: str, theirs: str) -> list[float]:
        """Return by how much of the other's test loss a run is above it, for each seed that both have.

        It is infinite where only ours failed; seeds where theirs failed are left out.
        """
        pairs = self._pairs(workload, ours, theirs).tolist()
        return [own / other - 1 for own, other in pairs if other < inf]

    def interval(self, contender: str, workloads: Sequence[Workload]) -> tuple[float, float] | None:
        """Return a 95 % bootstrap interval of the mean gap on some workloads, over the seeds.

        Seeds are drawn with replacement, those of each workload by themselves. None where runs are missing or
        have failed.
        """
        random, sums = np.random.default_rng(0), np.zeros(RESAMPLES)
        for workload in workloads:
            if workload.name not in self.best:
                return None
            pairs = self._pairs(workload.name, contender, self.best[workload.name])
            if len(pairs) < 2 or not np.isfinite(pairs).all():
                return None
            drawn = pairs[random.integers(len(pairs), size=(RESAMPLES, len(pairs)))].mean(1)
            sums += drawn[:, 0] / drawn[:, 1] - 1
        low, high = np.quantile(sums / len(workloads), (0.025, 0.975))
        return float(low), float(high)

    def over(self, workloads: Sequence[Workload]) -> pd.DataFrame:
        """Return what the contenders achieved on some workloads together, a row each.

        Gaps are nan where one has not run on all of them. ``failed`` counts the runs of searches for a rate
        too; ``runs`` is the number of rates on a workload.
        """
        names, chances = [one.name for one in self.contenders], {one.name: one.chance for one in workloads}
        gaps = self.gaps.reindex(index=names, columns=list(chances))
        lost = self.every[(self.every["loss"] == inf) & self.every["workload"].isin(chances)]
        limits = NEAR_CHANCE * self.losses.index.get_level_values("workload").map(chances).astype(float)
        rates = self.every.groupby(["contender", "workload"])["label"].nunique()
        found = {
            "worst": gaps.max(axis=1, skipna=False),
            "mean": gaps.mean(axis=1, skipna=False),
            "failed": lost["contender"].value_counts().reindex(names, fill_value=0),
            "at chance": self.losses.gt(limits, axis=0).sum(),
            "runs": rates.groupby("contender").mean(),
        }
        return pd.DataFrame(found, index=names)


def validation(runs: pd.DataFrame) -> dict[float, float]:
    """Return the validation loss of a contender's first seed at each rate, infinite where the run failed."""
    first = runs[runs["seed"] == runs["seed"].min()]
    return dict(zip(first["rate"], first["valid"].fillna(inf), strict=True))
