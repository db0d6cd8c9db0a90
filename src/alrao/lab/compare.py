"""A comparison: every method with every seed; SGD at the best of seven rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .errors import LabError
from .methods import expand
from .resolve import of_alrao
from .runset import RunSet, Tell
from .settings import Settings
from .table import groups

__all__ = ["Comparison"]


class Comparison(RunSet):
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
        self.seeds, self.grid = seeds, "sgd" in methods
        names = list(dict.fromkeys(name for method in methods for name in expand(method)))
        if settings.lr is not None and not any(of_alrao(name) for name in names):
            raise LabError(
                "--lr is for the methods of Alrao; the rates of the others go to their names: adam@0.01"
            )
        self._rates = [name for name in names if self.grid and name.startswith("sgd@")]
        super().__init__(_with(settings, names[0], 0), roots)
        self.settings = settings
        for seed in range(max(seeds, grid_seeds)):
            for name in names:
                if seed < (grid_seeds if name in self._rates else seeds):
                    self.plan(_with(settings, name, seed))

    def run(self, jobs: int = 1, tell: Tell | None = None) -> None:
        """Run what is missing: first every method and every rate, then the best rate with all seeds."""
        super().run(jobs, tell)
        best = self.best_rate()
        if best is not None:
            for seed in range(self.seeds):
                self.plan(_with(self.settings, best, seed))
            super().run(jobs, tell)

    def best_rate(self) -> str | None:
        """The method ``sgd@RATE`` that is best on validation so far."""
        rates = [p.directory for p in self.planned.values() if p.settings.method in self._rates]
        found, _ = groups(rates)
        return found[0].rows[0].label if found and found[0].rows[0].good else None


def _with(settings: Settings, method: str, seed: int) -> Settings:
    lr = settings.lr if of_alrao(method) else None
    return replace(settings, method=method, seed=seed, lr=lr)
