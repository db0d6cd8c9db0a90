"""The comparison table of an experiment, and what it shows in a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    main: list[Line] = field(default_factory=list)
    more: list[Line] = field(default_factory=list)


def comparison(experiment: Experiment) -> Comparison | None:
    """Return the table, or None where no run has ended."""
    if experiment.ended.empty:
        return None
    heads = ["method", *columns(experiment.measures), "seeds", "failed", "time per run", "runs to tune"]
    made = Comparison(_headline(experiment), [*heads, "time with tuning"])
    rows = experiment.rows[experiment.rows.index.isin(compared(experiment))]
    values = rows[f"test {experiment.measure}"].dropna()
    best = None if values.empty else values.idxmax() if experiment.higher else values.idxmin()
    alrao = experiment.plain("alrao")
    for name, row in rows.iterrows():
        made.main.append(Line(_line(experiment, name, row), name == alrao, name == best))
    aside = experiment.rows.drop(rows.index)
    for name, row in [*experiment.grid.iterrows(), *aside.iterrows()]:
        made.more.append(Line([name, *_figures(experiment, row), "", ""]))
    return made


def _figures(experiment: Experiment, row: Any) -> list[str]:
    return [
        *cells(row, experiment.measures),
        *map(str, (row["seeds"], row["failed"])),
        duration(row["seconds"]),
    ]


def _line(experiment: Experiment, name: str, row: Any) -> list[str]:
    searched = row["searched"] > 1
    seconds = row["search_seconds"] if searched else row["seconds"]
    cost, own = duration(seconds), _alrao(experiment)
    if searched and own is not None and own["seconds"]:
        cost += f" ({seconds / own['seconds']:.1f}× Alrao)"
    shown = f"{row_name(name, row)} rates" if searched else name
    return [shown, *_figures(experiment, row), str(row["searched"]), cost]


def _alrao(experiment: Experiment) -> Any:
    name = experiment.plain("alrao")
    return experiment.every.loc[name] if name in experiment.every.index else None


def _headline(experiment: Experiment) -> list[str]:
    """The main findings in sentences, computed."""
    alrao, measure = _alrao(experiment), experiment.measure
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
