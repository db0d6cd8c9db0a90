"""The runs of the suite: a workload after the other, grids with one seed, what counts with several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..runset import Planned, RunSet
from ..settings import Settings
from ..table import Finished, Row, best_of
from ..values import MethodSpec
from .contenders import Contender
from .workloads import Workload

__all__ = ["Suite"]


class Suite:
    """Every contender on every workload.

    Args:
        workloads: what is learnt.
        contenders: what learns it.
        common: the budget, where the data is, on what device, with how many threads.
        seeds: runs of what is not tuned, and of the best rate of what is.
        roots: where runs are: new ones go to the first, finished ones are looked for in all.
    """

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
        self._runs: dict[tuple[str, str], dict[MethodSpec, list[Planned]]] = {}
        self.sets: dict[str, RunSet] = {}
        for workload in workloads:
            settings = workload.settings(common)
            runs = self.sets[workload.name] = RunSet(settings, roots)
            for contender in contenders:
                count = 1 if contender.tuned else seeds
                for method in contender.methods:
                    self._plan(runs, workload, contender, method, range(count))

    def _plan(
        self, runs: RunSet, workload: Workload, contender: Contender, method: MethodSpec, seeds: range
    ) -> None:
        by_method = self._runs.setdefault((workload.name, contender.name), {})
        by_method[method] = [
            runs.plan(
                replace(
                    runs.settings, method=method, schedule=contender.schedule, seed=seed, **contender.settings
                )
            )
            for seed in seeds
        ]

    def run(self, run: Callable[[RunSet], None]) -> None:
        """Run what is missing.

        Args:
            run: runs what is missing of a set.
        """
        for workload in self.workloads:
            runs = self.sets[workload.name]
            run(runs)
            self._choose(workload)
            run(runs)

    def choose(self) -> None:
        """Want all seeds of the rates that are best on validation, as far as the grids have run."""
        for workload in self.workloads:
            self._choose(workload)

    def _choose(self, workload: Workload) -> None:
        for contender in self.contenders:
            if contender.tuned and (best := self.chosen(workload, contender)) is not None:
                runs = self.sets[workload.name]
                self._plan(runs, workload, contender, MethodSpec.parse(best.label), range(self.seeds))

    def chosen(self, workload: Workload, contender: Contender) -> Row | None:
        """The finished runs of a contender: of the rate that is best on validation, where it is tuned."""
        rows = self._rows(workload, contender)
        return best_of(rows) if rows else None

    def finished(self, workload: Workload, contender: Contender) -> list[Finished]:
        """Those of a contender, at all its rates."""
        return [run for row in self._rows(workload, contender) for run in row.runs]

    def _rows(self, workload: Workload, contender: Contender) -> list[Row]:
        rows = []
        for method, planned in self._runs[workload.name, contender.name].items():
            finished = [run for each in planned if (run := _finished(each)) is not None]
            if finished:
                rows.append(Row(str(method), finished))
        return rows

    @property
    def missing(self) -> int:
        """Runs that are wanted and not finished."""
        planned = [p for runs in self.sets.values() for p in runs.planned.values()]
        return sum(p.directory.result is None for p in planned)


def _finished(planned: Planned) -> Finished | None:
    config, result = planned.directory.config, planned.directory.result
    if config is None or result is None:
        return None
    return Finished(Settings(**config["settings"]).words(), result, config.get("data", {}))
