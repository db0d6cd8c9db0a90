"""The suite's tables, for the terminal and for the documentation."""

from __future__ import annotations

from math import isfinite
from statistics import mean, stdev
from typing import Literal

from rich import box
from rich.table import Table

from ..table import Row, spread
from .gaps import Standing, differences
from .workloads import Workload

__all__ = ["markdown", "table"]


def _percent(gap: float) -> str:
    if not isfinite(gap):
        return "failed"
    return f"{100 * gap:+.1f}" if abs(gap) < 1 else f"{100 * gap:+.0f}"


def _columns(workloads: list[Workload]) -> list[str]:
    return ["contender", *(workload.name for workload in workloads), "worst", "mean", "failed", "runs"]


def _cells(standing: Standing, workloads: list[Workload]) -> list[str]:
    gaps = [
        _percent(standing.gaps[workload.name]) if workload.name in standing.gaps else "–"
        for workload in workloads
    ]
    over = standing.over(workloads)
    worst_and_mean = ["–", "–"] if over is None else [_percent(gap) for gap in over]
    return [
        standing.contender.name,
        *gaps,
        *worst_and_mean,
        str(standing.failed(workloads)),
        str(len(standing.contender.methods)),
    ]


def table(standings: list[Standing], workloads: list[Workload], title: str) -> Table:
    """Gaps in per cent."""
    caption = "per cent behind the best tuned test loss; runs: to find the rate"
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0)
    rows = [_cells(standing, workloads) for standing in standings]
    for i, column in enumerate(_columns(workloads)):
        # Long heads are folded, so that the table fits 80 columns; what stands below is whole.
        width = max((len(row[i]) for row in rows), default=0)
        most = max(width, 8 if len(workloads) > 4 else 12)
        justify: Literal["left", "right"] = "right" if i else "left"
        shown.add_column(column, justify=justify, overflow="fold", min_width=width, max_width=most)
    for row in rows:
        shown.add_row(*row)
    return shown


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rate(row: Row, standing: Standing) -> str:
    return f" at {row.label.partition('@')[2]}" if standing.contender.tuned else ""


PAIR = ("alrao-zoom", "sgd")

PAIRED = """\
## Zoom and the best constant rate, seed by seed

Two runs of one seed have the same weights at the start, but for the copies of the output layer, and see the
same batches. By how many per cent the test loss of `{}` is above that of `{}` at its best rate: the mean over
the seeds, and on how many of them it is below.
"""


def _paired(standings: list[Standing], workloads: list[Workload]) -> list[str]:
    rows = {standing.contender.name: standing.rows for standing in standings}
    if not rows.keys() >= set(PAIR):
        return []
    ours, theirs = (rows[name] for name in PAIR)
    columns = ["workload", "used for choosing", "difference", "seeds", "below"]
    said = [PAIRED.format(*PAIR), _line(columns), "| --- | --- | ---: | ---: | ---: |"]
    for name, chosen_on in ((workload.name, workload.chosen_on) for workload in workloads):
        found = differences(ours[name], theirs[name]) if name in ours and name in theirs else []
        if found:
            spread_of = f" ± {100 * stdev(found):.1f}" if len(found) > 1 and isfinite(sum(found)) else ""
            below = sum(difference < 0 for difference in found)
            cells = [name, "yes" if chosen_on else "no", _percent(mean(found)) + spread_of]
            said.append(_line([*cells, str(len(found)), str(below)]))
    return [*said, ""]


HEAD = """
How far the test loss of each contender is behind the best tuned one ({}), in per cent of
that; a minus is ahead. *Worst* and *mean* are over the workloads of the table; *failed* counts runs that
diverged, those of the search for the rate included; *runs* is what this search takes. Rates are chosen on
validation data, with one seed each, and so is the epoch; the means are over the seeds that stand below. All
contenders take the same number of steps.
"""


def markdown(standings: list[Standing], workloads: list[Workload], title: str = "The suite") -> str:
    """Gaps on the workloads that defaults were not chosen on, and on the others; then the losses."""
    tuned = ", ".join(f"`{s.contender.name}`" for s in standings if s.contender.tuned)
    said = [f"# {title}", HEAD.format(tuned)]
    for title, chosen_on in (
        ("not used for choosing", False),
        ("used for choosing", True),
    ):
        some = [workload for workload in workloads if workload.chosen_on == chosen_on]
        if some:
            columns = _columns(some)
            said += [
                f"## Workloads {title}",
                "",
                _line(columns),
                _line(["---"] + ["---:"] * (len(columns) - 1)),
            ]
            said += [_line(_cells(standing, some)) for standing in standings] + [""]
    said += _paired(standings, workloads)
    said += ["## Losses", ""]
    for workload in workloads:
        rows = [(s, s.rows[workload.name]) for s in standings if workload.name in s.rows]
        if not rows:
            continue
        measure = rows[0][1].runs[0].result["measures"][0]
        steps = rows[0][1].runs[0].result["steps"]
        said += [f"### {workload.name}: {workload.what}", "", f"{steps:,} steps.", ""]
        columns = ["contender", f"validation {measure}", f"test {measure}", "seeds"]
        said += [_line(columns), "| --- | ---: | ---: | ---: |"]
        for standing, row in rows:
            name = standing.contender.name + _rate(row, standing)
            losses = [spread(row.values(part, measure), 4) for part in ("valid", "test")]
            said.append(_line([name, *losses, str(len(row.runs))]))
        said.append("")
    return "\n".join(said)
