"""The runs of the suite: one workload after the other, grids with one seed, the rest with several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]

from ..reading import read
from ..runset import Planned, RunSet
from ..settings import MethodSpec, Settings
from ..table import best_rate, frame
from .contenders import Contender
from .gaps import validation
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
        """The number of runs of the suite that are not finished."""
        planned = [p for runs in self.sets.values() for p in runs.planned.values()]
        return sum(p.run.result is None for p in planned)
