"""The page: a section for each experiment, with as much detail as fits, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import plotly.offline  # type: ignore[import-untyped]
from markupsafe import Markup

from alrao import __version__

from ..records import Reading
from ..render.cells import columns, duration, shown, verdict
from ..render.markdown import PAPER_HEADS, TABLE_1, filled
from ..store import encode, replace_file
from ..table import Experiment, experiments
from .copies import features_figure, posterior_figure, search_figure
from .curves import adam_curves, compared, learning_curves
from .figure import FEW, THEMES, WORDS, Figure
from .rates import frozen, triangle, valley

LIMIT = 5_900_000
"""Bytes of the page, which is to stay under 6 MB; plotly's own program is most of it."""
DETAIL = (20, 8, FEW, 0)
"""Single seeds drawn of each method: as many as fit; when few, other figures have fewer points too."""


@dataclass
class Comparison:
    """The paper's Table 1 for one experiment, and every rate below it."""

    headline: str
    """Which method won, and by how much."""
    main: pd.DataFrame
    more: pd.DataFrame
    """The cells by label and heading."""
    alrao: str | None
    best: str | None
    """The labels that stand out."""


def comparison(experiment: Experiment) -> Comparison | None:
    """Return the table, or None where no run has ended."""
    if experiment.ended.empty:
        return None
    rows = experiment.rows[experiment.rows.index.isin(compared(experiment))]
    values = rows[f"test {experiment.measure}"].dropna()
    best = None if len(values) < 2 else values.idxmax() if experiment.higher else values.idxmin()
    plain = experiment.main
    alrao = experiment.every.loc[plain] if plain in experiment.every.index else None
    own = 0.0 if alrao is None else alrao["seconds"]

    def cost(row: Any) -> str:
        if row["searched"] == 1:
            return duration(row["seconds"])
        ratio = f" ({row['search_seconds'] / own:.1f}× {plain})" if own else ""
        return f"{duration(row['search_seconds'])}{ratio}"

    heads = ["method", *columns(experiment.measures), "seeds", "failed", "time per run"]
    main = shown(experiment, rows)[[*heads, "runs to tune"]]
    main["time with tuning"] = [cost(row) for _, row in rows.iterrows()]
    main.loc[rows["searched"] > 1, "method"] += " rates"
    others = [*experiment.grid.index, *experiment.rows.index.drop(rows.index)]
    more = shown(experiment, experiment.every.loc[others])[heads]
    return Comparison(verdict(experiment) if len(rows) > 1 else "", main, more, plain, best)


@dataclass
class Section:
    """What the page shows of one experiment."""

    experiment: Experiment
    comparison: Comparison | None
    figures: list[Figure]


@dataclass
class Report:
    """The sections, and what is not in them."""

    sections: list[Section]
    left_out: list[str]
    runs: int
    command: str
    """What made the page."""
    extra: list[Figure] = field(default_factory=list)
    """Figures that come from no run."""

    @property
    def methods(self) -> list[str]:
        """What the methods of this library that were run do, a sentence each."""
        run = {method for section in self.sections for method in section.experiment.methods["method"]}
        return [text for name, text in WORDS["methods"].items() if any(m.startswith(name) for m in run)]

    @classmethod
    def of(cls, reading: Reading, command: str = "alrao report", detail: int = DETAIL[0]) -> Report:
        """Return the report of runs that were read; ``detail`` seeds of each method are drawn one by one."""
        own = Reading(reading.records, list(reading.left_out))
        sections = [_section(experiment, detail, own.left_out) for experiment in experiments(own)]
        return cls(sections, own.left_out, len(reading.records), command)

    def html(self) -> str:
        groups = {f"e{number}-": section.figures for number, section in enumerate(self.sections, 1)}
        drawings = {}
        for group, figures in {**groups, "x": self.extra}.items():
            for number, figure in enumerate(figures, 1):
                figure.id = f"{group}{number}-{figure.name}"
                drawings[figure.id] = _drawing(figure)
        return filled(
            __package__,
            "page.html.j2",
            escape=True,
            report=self,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=__version__,
            table_1=TABLE_1,
            paper_heads=PAPER_HEADS,
            plotly=Markup(plotly.offline.get_plotlyjs()),
            drawings=Markup(_script_json(drawings)),
            themes=Markup(_script_json(THEMES)),
        )


def _section(experiment: Experiment, detail: int, left_out: list[str]) -> Section:
    makers: dict[str, Callable[[], Figure | None]] = {
        "learning curves": lambda: learning_curves(experiment, detail),
        "the search": lambda: search_figure(experiment),
        "the valley": lambda: valley(experiment),
        "the posterior": lambda: posterior_figure(experiment, detail),
        "the triangle": lambda: triangle(experiment),
        "the triangle of Alrao-Adam": lambda: triangle(experiment, "alrao-adam"),
        "the rates of Adam": lambda: adam_curves(experiment, detail),
        "trained fractions": lambda: frozen(experiment),
        "features": lambda: features_figure(experiment, detail, left_out),
    }
    figures: list[Figure] = []
    for what, make in makers.items():
        try:
            figure = make()
        except Exception as error:  # runs of any origin must not keep the rest from being shown
            left_out.append(f"{experiment.title}: {what}: {type(error).__name__}: {error}")
        else:
            figures += [figure] if figure is not None else []
    return Section(experiment, comparison(experiment), figures)


def write_report(
    reading: Reading, target: Path, extra: Sequence[Figure] = (), command: str = "alrao report"
) -> Report:
    """Write the page about some runs."""
    for detail in DETAIL:
        report = Report.of(reading, command, detail)
        report.extra = list(extra)
        content = report.html().encode()
        if len(content) <= LIMIT:
            break
    while len(content) > LIMIT and report.sections:
        _shorten(report, len(content) - LIMIT)
        content = report.html().encode()
    replace_file(target, content)
    return report


def _shorten(report: Report, excess: int) -> None:
    """Remove figures of experiments, the last first, then whole experiments."""
    reason = "to keep the page small; a report of its runs only has"
    for section in reversed(report.sections):
        if excess <= 0:
            return
        if section.figures:
            excess -= sum(len(_script_json(_drawing(figure))) + 1000 for figure in section.figures)
            section.figures = []
            report.left_out.append(f"{section.experiment.title}: its figures, {reason} them")
    while excess > 0 and report.sections:
        section = report.sections.pop()
        excess -= 2000
        report.left_out.append(f"{section.experiment.title}: the whole experiment, {reason} it")


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    text = encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _drawing(figure: Figure) -> dict[str, Any]:
    return {
        "data": figure.plot.data,
        "layout": figure.plot.layout,
        "wide": figure.plot.wide,
        "narrow": figure.plot.narrow,
        "start": [control.choices[0][1] for control in figure.controls],
    }
