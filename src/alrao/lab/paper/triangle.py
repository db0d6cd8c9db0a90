"""The paper's triangle: Alrao in every interval of a grid of rates, SGD on the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from ..errors import LabError
from ..methods import GRID
from ..resolve import of_alrao
from ..runset import Planned, RunSet
from ..settings import Settings
from ..values import Interval, MethodSpec, spelled

__all__ = ["Triangle"]


class Triangle(RunSet):
    """A run for every pair of rates ``low <= high``; where they are equal, plain SGD (or Adam).

    Args:
        settings: of every run; method and rates are replaced.
        rates: the grid.
        roots: where runs are.
    """

    def __init__(self, settings: Settings, rates: Sequence[float] = GRID, *, roots: list[Path]) -> None:
        if not of_alrao(settings.method):
            raise LabError(f"the triangle is about alrao and alrao-adam, got --method {settings.method}")
        super().__init__(replace(settings, lr=None), roots)
        plain = "sgd" if settings.method.name == "alrao" else "adam"
        self.rates = sorted(set(rates))
        self.cells: dict[tuple[float, float], Planned] = {}
        for i, low in enumerate(self.rates):
            for high in self.rates[i:]:
                if low == high:
                    wanted = replace(settings, method=MethodSpec(plain, low), lr=None)
                else:
                    wanted = replace(settings, lr=Interval(low, high))
                self.cells[low, high] = self.plan(wanted)

    def table(self) -> Table:
        """Return the first measure on the test data at the best epoch; ``×`` where the run diverged."""
        found = [p.run.result for p in self.cells.values() if p.run.result is not None]
        measure = found[0]["measures"][0] if found else "loss"
        table = Table(
            title=f"test {measure} for the rates from … to …", caption="the diagonal is one rate for all"
        )
        table.add_column("from \\ to")
        for rate in self.rates:
            table.add_column(spelled(rate), justify="right")
        for low in self.rates:
            table.add_row(spelled(low), *(self._cell(low, high, measure) for high in self.rates))
        return table

    def _cell(self, low: float, high: float, measure: str) -> str:
        planned = self.cells.get((low, high))
        if planned is None:
            return ""
        result = planned.run.result
        if result is None:
            return "failed" if planned.run.path in self.failed else "–"
        value = result["test"][measure] if result["status"] == "finished" else None
        return "×" if value is None else f"{value:.3f}"
