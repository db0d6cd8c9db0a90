"""Sets of runs, none trained twice: methods with seeds, and intervals of rates.

The failure of one run does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TypeAlias

from .errors import LabError
from .methods import GRID, expand
from .provenance import require_clean
from .records import locate, read
from .resolve import of_alrao, resolve
from .run import pick_device
from .settings import Interval, MethodSpec, Settings
from .spread import Processes, Spread
from .store import BusyError, Run
from .table import experiments

WAIT = 60.0
"""Seconds to wait for the process that trains a run before looking at the next run."""


@dataclass(frozen=True)
class Planned:
    """A run of the set."""

    settings: Settings
    run: Run


Tell: TypeAlias = Callable[[Planned, str | None], None]
"""Called with each run that ended, and the error if there was one."""


class RunSet:
    """Runs on the same data, with some settings in common.

    New runs are written to the first of the ``roots``, finished ones are looked up in all.
    """

    def __init__(self, settings: Settings, roots: list[Path]) -> None:
        self.settings, self.roots = settings, roots
        task, resolved = resolve(settings)
        self._identity = task.load(resolved, pick_device(settings.device)).identity
        self.planned: dict[Path, Planned] = {}
        self.failed: dict[Path, str] = {}

    def plan(self, settings: Settings) -> Planned:
        resolved = resolve(settings)[1]
        found = locate(resolved, self._identity, self.roots)
        return self.planned.setdefault(found.path, Planned(resolved, found))

    def run(self, spread: Spread | None = None, tell: Tell | None = None) -> None:
        """Train the missing runs, by default here and one by one, and wait for those that others train."""
        if self.settings.to_keep:
            require_clean()
        spread, new = spread or Processes(), list(self.planned.values())
        while new:
            todo, wait = [planned for planned in new if planned.run.result is None], 0.0
            while todo:
                busy = []
                for number, error in spread.run([planned.settings for planned in todo], self.roots, wait):
                    planned = todo[number]
                    if isinstance(error, BusyError):
                        busy.append(planned)
                        continue
                    if error is not None:
                        self.failed[planned.run.path] = error
                    if tell is not None:
                        tell(planned, error)
                todo, wait = busy, WAIT
            new = self.grow()

    def grow(self) -> list[Planned]:
        """Plan the runs that the results so far call for, and return them."""
        before = len(self.planned)
        self.choose()
        return list(self.planned.values())[before:]

    def choose(self) -> None:
        """Plan what the results so far call for; nothing, unless a set searches for something."""

    @property
    def runs(self) -> list[Run]:
        return [planned.run for planned in self.planned.values()]


class Comparison(RunSet):
    """The runs of some methods on a task.

    Args:
        settings: of every run; method and seed are replaced. ``lr`` is for the methods that take an interval.
        methods: names as the command line spells them; ``sgd`` is the grid of seven rates.
        seeds: the number of runs of each method.
        grid_seeds: the number of runs of each rate of the grid; the best one on validation gets all seeds.
        roots: where runs are.
    """

    def __init__(
        self, settings: Settings, methods: Sequence[str], *, seeds: int, grid_seeds: int, roots: list[Path]
    ) -> None:
        self.seeds = seeds
        specs = list(dict.fromkeys(spec for method in methods for spec in expand(method)))
        if settings.lr is not None and not any(map(of_alrao, specs)):
            raise LabError(
                "--lr is for the methods of Alrao; the rates of the others go to their names: adam@0.01"
            )
        self._rates = [spec for spec in specs if spec.name == "sgd"] if "sgd" in methods else []
        super().__init__(_with(settings, specs[0], 0), roots)
        self.settings = settings
        for seed in range(max(seeds, grid_seeds)):
            for spec in specs:
                if seed < (grid_seeds if spec in self._rates else seeds):
                    self.plan(_with(settings, spec, seed))

    def choose(self) -> None:
        if (best := self.best_rate()) is not None:
            for seed in range(self.seeds):
                self.plan(_with(self.settings, best, seed))

    def best_rate(self) -> MethodSpec | None:
        found = experiments(read(p.run for p in self.planned.values() if p.settings.method in self._rates))
        if not found or found[0].ended.empty:
            return None
        best = found[0].rows.iloc[0]
        return best["spec"] if best["failed"] < best["seeds"] else None


def _with(settings: Settings, method: MethodSpec, seed: int) -> Settings:
    lr = settings.lr if of_alrao(method) else None
    return replace(settings, method=method, seed=seed, lr=lr)


class Triangle(RunSet):
    """The paper's triangle: a run for every pair of rates of a grid, plain SGD or Adam on the diagonal."""

    def __init__(self, settings: Settings, rates: Sequence[float] = GRID, *, roots: list[Path]) -> None:
        if not of_alrao(settings.method):
            raise LabError(f"the triangle is about alrao and alrao-adam, got --method {settings.method}")
        super().__init__(replace(settings, lr=None), roots)
        plain = "sgd" if settings.method.name == "alrao" else "adam"
        self.rates = sorted(set(rates))
        self.cells: dict[tuple[float, float], Planned] = {}
        for low, high in combinations_with_replacement(self.rates, 2):
            if low == high:
                wanted = replace(settings, method=MethodSpec(plain, low), lr=None)
            else:
                wanted = replace(settings, lr=Interval(low, high))
            self.cells[low, high] = self.plan(wanted)
