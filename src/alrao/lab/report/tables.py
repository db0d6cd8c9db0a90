"""The comparison table of an experiment, and what it shows in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..render.cells import cells, columns, duration, row_name
from ..settings import spelled
from ..table import Experiment
from .curves import compared


@dataclass
class Line:
    """A row of the table."""

    cells: list[str]
    alrao: bool = False
    best: bool = False


@dataclass
class Comparison:
    """The paper's Table 1 for one experiment, and every rate below it."""

    headline: list[str]
    heads: list[str]
    main: list[Line]
    more: list[Line]


def comparison(experiment: Experiment) -> Comparison | None:
    """Return the table, or None where no run has ended."""
    if experiment.ended.empty:
        return None
    rows = experiment.rows[experiment.rows.index.isin(compared(experiment))]
    values = rows[f"test {experiment.measure}"].dropna()
    best = None if values.empty else values.idxmax() if experiment.higher else values.idxmin()
    plain = experiment.plain("alrao")
    alrao = experiment.every.loc[plain] if plain in experiment.every.index else None

    def figures(row: Any) -> list[str]:
        counts = [str(row["seeds"]), str(row["failed"])]
        return [*cells(row, experiment.measures), *counts, duration(row["seconds"])]

    main = []
    for name, row in rows.iterrows():
        shown, cost = name, duration(row["seconds"])
        if row["searched"] > 1:
            shown, cost = f"{row_name(name, row)} rates", duration(row["search_seconds"])
            if alrao is not None and alrao["seconds"]:
                cost += f" ({row['search_seconds'] / alrao['seconds']:.1f}× Alrao)"
        tuning = [str(row["searched"]), cost]
        main.append(Line([shown, *figures(row), *tuning], name == plain, name == best))
    aside = experiment.rows.drop(rows.index)
    more = [
        Line([name, *figures(row), "", ""]) for name, row in [*experiment.grid.iterrows(), *aside.iterrows()]
    ]
    heads = ["method", *columns(experiment.measures), "seeds", "failed", "time per run", "runs to tune"]
    return Comparison(_headline(experiment, alrao), [*heads, "time with tuning"], main, more)


def _headline(experiment: Experiment, alrao: Any) -> list[str]:
    """The main findings in sentences, computed, given the row of Alrao at its defaults."""
    measure = experiment.measure
    column = f"test {measure}"
    if alrao is None:
        return []
    own = alrao[column]
    if own != own:  # not a number
        return ["No run of Alrao has ended well here."]
    said = [f"Alrao, without a learning rate chosen, reaches a test {measure} of {own:.3g}."]
    grid, sgd = experiment.grid, experiment.rows[experiment.rows["searched"] > 1]
    if len(sgd) and (best := sgd.iloc[0])[column] == best[column]:
        better = grid[column] <= own if not experiment.higher else grid[column] >= own
        said.append(
            f"SGD at the best of {len(grid)} rates, {spelled(best['rate'])}, reaches {best[column]:.3g}; at "
            f"{len(grid) - int(better.sum())} of the {len(grid)} rates it does worse than Alrao or fails."
        )
        if alrao["seconds"] and best["search_seconds"]:
            times = best["search_seconds"] / alrao["seconds"]
            said.append(
                f"Finding that rate took {duration(best['search_seconds'])}, {times:.1f} times a run of "
                f"Alrao ({duration(alrao['seconds'])})."
            )
    going = len(experiment.runs) - len(experiment.ended)
    if going:
        said.append(f"{going} run{' has' if going == 1 else 's have'} not ended yet.")
    return said
