"""The comparison table of an experiment, and what it says in a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean

from ..display import cells, columns
from ..paper import rows_for
from ..table import Row
from .experiments import Experiment, spoken

__all__ = ["Comparison", "compared", "duration"]


@dataclass
class Line:
    """A row of the table."""

    cells: list[str]
    alrao: bool = False
    best: bool = False


@dataclass
class Comparison:
    """The paper's Table 1 for one experiment, every rate below it, the paper's own rows."""

    headline: list[str]
    heads: list[str]
    main: list[Line] = field(default_factory=list)
    more: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    paper_heads: list[str] = field(default_factory=list)
    paper: list[list[str]] = field(default_factory=list)


def duration(seconds: float) -> str:
    """A time for reading."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def compared(experiment: Experiment) -> Comparison | None:
    """The table, or None where no run has ended."""
    group = experiment.table
    if group is None:
        return None
    heads = [
        "method",
        *columns(group.measures),
        "seeds",
        "failed",
        "time of a run",
        "to tune",
        "time with tuning",
    ]
    made = Comparison(_headline(experiment), heads, failures=[_said(failure) for failure in group.failures])
    wanted = set(experiment.compared())
    alrao = next((row for row in group.rows if row.label == "alrao"), None)
    best = _best(experiment, [row for row in group.rows if row.label in wanted])
    for row in group.rows:
        if row.label in wanted:
            made.main.append(_line(experiment, row, alrao, best))
    aside = [row for row in group.rows if row.label not in wanted]
    for row in [*group.grid, *aside] if len(group.grid) > 1 or aside else []:
        made.more.append(_line(experiment, row, None, None, tuned=False))
    theirs = rows_for(experiment.settings["task"])
    if theirs:
        made.paper_heads = ["network", "optimal SGD (rate)", "Adam", "Alrao"]
        made.paper = [[row.model, row.sgd, row.adam, row.alrao] for row in theirs]
    return made


def _best(experiment: Experiment, rows: list[Row]) -> Row | None:
    values = [(mean(found), row) for row in rows if (found := row.values("test", experiment.measure))]
    sign = -1 if experiment.higher else 1
    return min(values, key=lambda pair: sign * pair[0])[1] if values else None


def _line(
    experiment: Experiment, row: Row, alrao: Row | None, best: Row | None, *, tuned: bool = True
) -> Line:
    assert experiment.table is not None
    measures = experiment.table.measures
    searched = tuned and row.searched > 1
    name = f"{spoken(row.label)}, best of {row.searched} rates" if searched else spoken(row.label)
    values = cells(row, measures) if row.good else ["diverged", *["–"] * (len(measures) - 1)]
    seconds = row.search_seconds if searched else row.seconds
    cost = duration(seconds) if tuned else ""
    if searched and alrao is not None and alrao.seconds:
        cost += f" ({seconds / alrao.seconds:.1f}× Alrao)"
    failed = str(len(row.failures)) if row.failures else "0"
    tune = str(row.searched) if tuned else ""
    said = [name, *values, str(len(row.runs)), failed, duration(row.seconds), tune, cost]
    return Line(said, row.label == "alrao", row is best)


def _said(failure: str) -> str:
    name, comma, rest = failure.partition(",")
    return f"{spoken(name)}{comma}{rest}"


def _headline(experiment: Experiment) -> list[str]:
    """What a reader should take home, computed."""
    rows, measure = experiment.rows(), experiment.measure
    alrao = rows.get("alrao")
    values = alrao.values("test", measure) if alrao else []
    if alrao is None or experiment.table is None:
        return []
    if not values:
        return ["No run of Alrao has ended well here."]
    own = mean(values)
    said = [f"Alrao, without a learning rate chosen, reaches a test {measure} of {own:.3g}."]
    grid = experiment.table.grid
    best = next((row for row in experiment.table.rows if row.searched > 1), None)
    theirs = best.values("test", measure) if best else []
    if best is not None and theirs:
        sign = -1 if experiment.higher else 1
        behind = sum(
            not (found := row.values("test", measure)) or sign * mean(found) > sign * own for row in grid
        )
        said.append(
            f"SGD at the best of {len(grid)} rates, {best.label.partition('@')[2]}, reaches "
            f"{mean(theirs):.3g}; at {behind} of the {len(grid)} rates it does worse than Alrao or fails."
        )
        if alrao.seconds and best.search_seconds:
            times = best.search_seconds / alrao.seconds
            said.append(
                f"Finding that rate took {duration(best.search_seconds)}, {times:.1f} times a run of Alrao "
                f"({duration(alrao.seconds)})."
            )
    going = sum(not record.ended for record in experiment.records)
    if going:
        said.append(
            f"{going} run{' has' if going == 1 else 's have'} not ended yet: this is not the last word."
        )
    return said
