"""The suite's tables, for the terminal and for the documentation."""

from __future__ import annotations

from math import isfinite

from rich.table import Table

from ..table import Row, spread
from .gaps import Standing
from .workloads import Workload

__all__ = ["markdown", "table"]


def _percent(gap: float) -> str:
    return f"{100 * gap:+.1f}" if isfinite(gap) else "failed"


def _columns(workloads: list[Workload]) -> list[str]:
    return ["contender", *(workload.name for workload in workloads), "worst", "mean", "failed", "runs"]


def _cells(standing: Standing, workloads: list[Workload]) -> list[str]:
    gaps = [
        _percent(standing.gaps[workload.name]) if workload.name in standing.gaps else "–"
        for workload in workloads
    ]
    over = standing.over(workloads)
    worst, mean = ("–", "–") if over is None else (_percent(over[0]), _percent(over[1]))
    return [
        standing.contender.name,
        *gaps,
        worst,
        mean,
        str(standing.failed(workloads)),
        str(len(standing.contender.methods)),
    ]


def table(standings: list[Standing], workloads: list[Workload], title: str) -> Table:
    """Gaps in per cent."""
    shown = Table(title=title, caption="per cent behind the best tuned test loss; runs: to find the rate")
    for column in _columns(workloads):
        shown.add_column(column, justify="left" if column == "contender" else "right")
    for standing in standings:
        shown.add_row(*_cells(standing, workloads))
    return shown


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rate(row: Row, standing: Standing) -> str:
    return f" at {row.label.partition('@')[2]}" if standing.contender.tuned else ""


HEAD = """
How far the test loss of each contender is behind the best tuned one (`sgd`, `sgd-cosine`, `adamw-cosine`), in
per cent of that; a minus is ahead. *Worst* and *mean* are over the workloads of the table; *failed* counts
runs that diverged; *runs* is what it takes to find the rate. Rates are chosen on validation data, with one
seed each, and so is the epoch; the means are over the seeds that stand below. All contenders take the same
number of steps.
"""


def markdown(standings: list[Standing], workloads: list[Workload], title: str = "The suite") -> str:
    """Gaps on the workloads that defaults were not chosen on, and on the others; then the losses."""
    said = [f"# {title}", HEAD]
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
    said += ["## Test losses", ""]
    for workload in workloads:
        rows = [(s, s.rows[workload.name]) for s in standings if workload.name in s.rows]
        if not rows:
            continue
        measure = rows[0][1].runs[0].result["measures"][0]
        steps = rows[0][1].runs[0].result["steps"]
        said += [f"### {workload.name}: {workload.what}", "", f"{steps:,} steps.", ""]
        said += [_line(["contender", f"test {measure}", "seeds", "failed"]), "| --- | ---: | ---: | ---: |"]
        for standing, row in rows:
            values = row.values("test", measure)
            name = standing.contender.name + _rate(row, standing)
            failed = len(row.runs) - len(row.good)
            said.append(_line([name, spread(values, 4), str(len(row.runs)), str(failed)]))
        said.append("")
    return "\n".join(said)
