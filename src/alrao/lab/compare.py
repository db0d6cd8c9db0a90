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
from .values import MethodSpec

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
        specs = list(dict.fromkeys(spec for method in methods for spec in expand(method)))
        if settings.lr is not None and not any(map(of_alrao, specs)):
            raise LabError(
                "--lr is for the methods of Alrao; the rates of the others go to their names: adam@0.01"
            )
        self._rates = [spec for spec in specs if self.grid and spec.name == "sgd"]
        super().__init__(_with(settings, specs[0], 0), roots)
        self.settings = settings
        for seed in range(max(seeds, grid_seeds)):
            for spec in specs:
                if seed < (grid_seeds if spec in self._rates else seeds):
                    self.plan(_with(settings, spec, seed))

    def run(self, jobs: int = 1, tell: Tell | None = None) -> None:
        """Run what is missing: first every method and every rate, then the best rate with all seeds."""
        super().run(jobs, tell)
        best = self.best_rate()
        if best is not None:
            for seed in range(self.seeds):
                self.plan(_with(self.settings, best, seed))
            super().run(jobs, tell)

    def best_rate(self) -> MethodSpec | None:
        """Return SGD at the rate that is best on validation so far."""
        rates = [p.directory for p in self.planned.values() if p.settings.method in self._rates]
        found, _ = groups(rates)
        return MethodSpec.parse(found[0].rows[0].label) if found and found[0].rows[0].good else None


def _with(settings: Settings, method: MethodSpec, seed: int) -> Settings:
    lr = settings.lr if of_alrao(method) else None
    return replace(settings, method=method, seed=seed, lr=lr)
