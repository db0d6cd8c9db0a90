"""A set of runs: every method with every seed, in parallel where asked, nothing done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from joblib import Parallel, delayed  # type: ignore[import-untyped]

from .errors import LabError
from .methods import expand
from .resolve import of_alrao, resolve
from .run import pick_device, run
from .settings import Settings
from .store import RunDirectory, locate
from .table import groups

__all__ = ["Comparison", "Planned"]


@dataclass(frozen=True)
class Planned:
    """A run that is wanted."""

    settings: Settings
    directory: RunDirectory


class Comparison:
    """The runs of some methods on a task.

    Args:
        settings: of every run; method and seed are replaced. ``lr`` is for the methods that take an interval.
        methods: names; ``sgd`` is the grid of seven rates.
        seeds: how many runs of each method.
        grid_seeds: how many runs of each rate of the grid; the best one on validation gets all seeds.
        roots: where runs are: new ones go to the first, finished ones are looked for in all.
    """

    def __init__(
        self, settings: Settings, methods: list[str], *, seeds: int, grid_seeds: int, roots: list[Path]
    ) -> None:
        self.settings, self.roots, self.seeds = settings, roots, seeds
        self.grid = "sgd" in methods
        names = list(dict.fromkeys(name for method in methods for name in expand(method)))
        self._one_by_one = [name for name in names if not (self.grid and name.startswith("sgd@"))]
        self._rates = [name for name in names if name not in self._one_by_one]
        task, resolved = resolve(self._with(names[0], 0))
        self._identity = task.load(resolved, pick_device(settings.device)).identity
        self.planned: dict[Path, Planned] = {}
        self.failed: dict[Path, str] = {}
        for seed in range(max(seeds, grid_seeds)):
            for name in self._rates if seed < grid_seeds else ():
                self._plan(name, seed)
            for name in self._one_by_one if seed < seeds else ():
                self._plan(name, seed)

    def _with(self, method: str, seed: int) -> Settings:
        lr = self.settings.lr if of_alrao(method) else None
        return replace(self.settings, method=method, seed=seed, lr=lr)

    def _plan(self, method: str, seed: int) -> None:
        settings = resolve(self._with(method, seed))[1]
        directory = locate(settings, self._identity, self.roots)
        self.planned.setdefault(directory.path, Planned(settings, directory))

    def run(self, jobs: int = 1, tell: Callable[[Planned, str | None], None] | None = None) -> None:
        """Run what is missing: first every method and every rate, then the best rate with all seeds.

        Args:
            jobs: processes.
            tell: is called with each run that ended, and what went wrong if something did.
        """
        self._run(jobs, tell)
        best = self.best_rate()
        if best is not None:
            for seed in range(self.seeds):
                self._plan(best, seed)
            self._run(jobs, tell)

    def best_rate(self) -> str | None:
        """The method ``sgd@RATE`` that is best on validation so far."""
        if not self.grid:
            return None
        found, _ = groups(
            planned.directory for planned in self.planned.values() if planned.settings.method in self._rates
        )
        chosen = [row for row in found[0].rows if row.good] if found else []
        return chosen[0].label if chosen else None

    def _run(self, jobs: int, tell: Callable[[Planned, str | None], None] | None) -> None:
        open_runs = [p for p in self.planned.values() if p.directory.result is None]
        threads = self.settings.threads or (1 if jobs > 1 else None)
        work = (delayed(_run_one)(replace(p.settings, threads=threads), self.roots) for p in open_runs)
        names = {(p.settings.method, p.settings.seed): p for p in open_runs}
        for method, seed, error in _finished(jobs, work):
            planned = names[method, seed]
            if error is not None:
                self.failed[planned.directory.path] = error
            if tell is not None:
                tell(planned, error)

    @property
    def directories(self) -> list[RunDirectory]:
        """Of all runs that were asked for."""
        return [planned.directory for planned in self.planned.values()]


def _finished(jobs: int, work: Iterable[object]) -> Iterator[tuple[str, int, str | None]]:
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(work)


def _run_one(settings: Settings, roots: list[Path]) -> tuple[str, int, str | None]:
    """Run in a process of its own; what went wrong, in a sentence."""
    try:
        run(settings, roots)
    except LabError as error:
        return settings.method, settings.seed, str(error)
    except Exception as error:  # a bug or a lack of memory in one run must not end the others
        return settings.method, settings.seed, f"{type(error).__name__}: {error}"
    return settings.method, settings.seed, None
