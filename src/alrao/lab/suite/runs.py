"""The runs of the suite, and by how much every contender is worse than the best tuned one.

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
        self._chosen = {
            key: group[group["label"] == best_rate(group)] if key[0] in tuned else group
            for key, group in groups.items()
        }
        self.best: dict[str, str] = {}
        """The best tuned contender on each workload where the searches for a rate are over."""
        for name in runs["workload"].unique():
            over = [
                who
                for who, contender in sorted(tuned.items())
                if (who, name) in groups and not contender.next_rates(validation(groups[who, name]))
            ]
            means = {who: self.of(who, name)["loss"].mean() for who in over}
            if len(over) == len(tuned) and min(means.values(), default=inf) < inf:
                self.best[name] = min(means, key=means.__getitem__)
        gaps = {name: {who: self._gap(who, name) for who, on in groups if on == name} for name in self.best}
        self.gaps = pd.DataFrame(gaps).reindex(sorted({who for who, _ in groups}))
        """By how much of the best tuned loss each contender is above it; infinite where a run failed.

        Both losses are means over the seeds that both have."""

    def _gap(self, contender: str, workload: str) -> float:
        pairs = self._pairs(contender, workload)
        if (self.of(contender, workload)["loss"] == inf).any():
            return inf
        return float(pairs[:, 0].mean() / pairs[:, 1].mean() - 1) if len(pairs) else nan

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
        """Return the number of failed runs on some workloads, those of the search for a rate included."""
        lost = self.every[(self.every["contender"] == contender.name) & (self.every["loss"] == inf)]
        return int(lost["workload"].isin([workload.name for workload in workloads]).sum())

    def at_chance(self, contender: Contender, workloads: Sequence[Workload]) -> int:
        return sum(
            int((self.of(contender.name, workload.name)["loss"] > NEAR_CHANCE * workload.chance).sum())
            for workload in workloads
        )

    def of(self, contender: str, workload: str) -> pd.DataFrame:
        """Return the runs of a contender on a workload, at its best rate."""
        return self._chosen.get((contender, workload), self.every.iloc[:0])


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
