"""The runs of the suite, and by how much every contender is worse than the best tuned one.

One workload is trained after the other: grids with one seed, the rest with several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import inf, nan
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from ..records import read
from ..runset import Planned, RunSet
from ..settings import MethodSpec, Settings
from ..table import best_rate, frame
from .contenders import Contender
from .workloads import Workload


class Suite:
    """Every contender on every workload."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        contenders: Sequence[Contender],
        common: Settings,
        *,
        seeds: int,
        roots: list[Path],
    ) -> None:
        self.workloads, self.contenders, self.seeds = workloads, contenders, seeds
        self._planned: dict[tuple[str, str], dict[Path, Planned]] = {}
        self.sets: dict[str, RunSet] = {}
        for workload in workloads:
            self.sets[workload.name] = RunSet(workload.settings(common), roots)
            for contender in contenders:
                count = 1 if contender.tuned else min(seeds, contender.seeds)
                self._plan(workload, contender, contender.methods, count)

    def _plan(
        self, workload: Workload, contender: Contender, methods: Iterable[MethodSpec], seeds: int
    ) -> None:
        runs = self.sets[workload.name]
        planned = self._planned.setdefault((workload.name, contender.name), {})
        for method in methods:
            own = replace(runs.settings, method=method, schedule=contender.schedule, **contender.settings)
            for seed in range(seeds):
                one = runs.plan(replace(own, seed=seed))
                planned[one.run.path] = one

    def run(self, run: Callable[[RunSet], None]) -> None:
        """Train the missing runs: the grids, then all seeds of the rates that are best on validation.

        With a ``run`` that does nothing, this plans what the runs that are there call for.
        """
        for workload in self.workloads:
            run(self.sets[workload.name])
            while self._choose(workload):
                run(self.sets[workload.name])

    def _choose(self, workload: Workload) -> bool:
        """Queue what the searches for rates need next; return whether there is anything new."""
        runs = self.sets[workload.name]
        before = len(runs.planned)
        for contender in self.contenders:
            if contender.tuned and len(found := self._frame(workload, contender)):
                rates = contender.next_rates(validation(found))
                if rates:
                    self._plan(workload, contender, [MethodSpec(contender.method, rate) for rate in rates], 1)
                else:
                    best = found.loc[found["label"] == best_rate(found), "spec"].iloc[0]
                    self._plan(workload, contender, [best], min(self.seeds, contender.seeds))
        return len(runs.planned) > before

    def _frame(self, workload: Workload, contender: Contender) -> pd.DataFrame:
        planned = self._planned[workload.name, contender.name].values()
        runs = frame(record for record in read(p.run for p in planned).records if record.ended)
        return runs.assign(workload=workload.name, contender=contender.name)

    def frame(self) -> pd.DataFrame:
        """Return the finished runs, a row each, with their workload and contender."""
        pairs = product(self.workloads, self.contenders)
        found = [self._frame(workload, contender) for workload, contender in pairs]
        return pd.concat([runs for runs in found if len(runs)] or found[:1])

    @property
    def missing(self) -> int:
        planned = [p for runs in self.sets.values() for p in runs.planned.values()]
        return sum(p.run.result is None for p in planned)


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
