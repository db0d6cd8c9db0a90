"""From an exhibit to its files: runs, figures, tables, verdict, and the page that shows all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]

from ..errors import LabError
from ..reading import Reading, read
from ..report.captions import caption
from ..report.figure import ALRAO, BASELINE, LOG, Figure, ordered, panels
from ..report.page import Report, Section, write_report
from ..runset import RunSet
from ..settings import Settings
from ..store import file_name
from ..table import Experiment
from .checks import CHECKS, Verdict, check_theorem
from .exhibits import EXHIBITS, Exhibit
from .files import Shown, write_csv, write_images, write_index
from .params import counts
from .theorem import Theorem, compute


@dataclass
class Reproduction:
    """The exhibits that were made."""

    budget: str
    shown: list[Shown] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Exhibits that could not be made, or not from all their runs, and why."""


Run = Callable[[RunSet], None]
"""Trains the missing runs of a set and shows their progress."""


def reproduce(
    names: Sequence[str], common: Settings, roots: list[Path], figures: Path, page: Path, run: Run
) -> Reproduction:
    """Make exhibits: train their missing runs, write their files to ``figures``, and the report."""
    budget = common.budget
    made = Reproduction(budget)
    every = Reading()
    extra: list[Figure] = []
    for name in names:
        exhibit = EXHIBITS[name]
        try:
            if name == "theorem":
                made.shown.append(_theorem(exhibit))
                extra += made.shown[-1].figures.values()
            elif name == "params":
                made.shown.append(_params(exhibit))
            else:
                for plan in exhibit.mini if budget == "mini" else exhibit.paper:
                    runs = plan.runs(budget, common, roots)
                    run(runs)
                    if runs.failed:
                        made.failed[name] = "; ".join(f"{path}: {why}" for path, why in runs.failed.items())
                    found = read(some for some in runs.runs if some.config is not None)
                    every.records += found.records
                    every.left_out += found.left_out
                    made.shown += [_shown(exhibit, section) for section in Report.of(found).sections]
        except LabError as error:
            made.failed[name] = str(error)
    every.records = list({record.run.path: record for record in every.records}.values())
    write_report(every, page, extra, f"alrao reproduce {' '.join(names)} --budget {budget}")
    _write(made, figures)
    return made


def _shown(exhibit: Exhibit, section: Section) -> Shown:
    experiment = section.experiment
    named = {figure.name: figure for figure in section.figures}
    verdict = CHECKS[exhibit.name](experiment, named)
    wanted = {
        file_name(exhibit.name, _subject(experiment), name if name != exhibit.name else ""): named[name]
        for name in exhibit.figures
        if name in named
    }
    shown = Shown(exhibit, experiment.title, verdict, wanted, note=experiment.note)
    if section.comparison is not None and exhibit.name in ("table1", "rl"):
        shown.name = file_name(exhibit.name, _subject(experiment))
        shown.table = [section.comparison.heads, *(line.cells for line in section.comparison.main)]
    return shown


def _subject(experiment: Experiment) -> str:
    settings = experiment.settings
    width = "" if settings.width == 1 else f"-x{settings.width:g}"
    return f"{settings.task}-{settings.model}{width}"


def _params(exhibit: Exhibit) -> Shown:
    heads, rows = counts()
    same = all(row[1:3] == row[4:] for row in rows)
    verdict = Verdict(same, "every count is the paper's" if same else "some counts differ")
    return Shown(exhibit, "millions of parameters", verdict, table=[heads, *rows], name="params")


def _theorem(exhibit: Exhibit) -> Shown:
    found = compute()
    figures = {"theorem": theorem_figure(found)}
    return Shown(exhibit, "softmax regression on digits", check_theorem(found), figures)


def theorem_figure(found: Theorem) -> Figure:
    """Losses of the copies and of the mixture, and how far the better ones are above the optimum."""
    plot = panels(2)
    look = zip(found.multiples, found.rates, ordered(len(found.rates)), found.copies, strict=True)
    curves = [(f"{multiple:g}/λ = {rate:.2g}", colour, 2.0, own) for multiple, rate, colour, own in look]
    curves.append(("the mixture", ALRAO, 4.0, found.mixture))
    for rank, (name, colour, width, losses) in enumerate(curves):
        above = [max(loss - found.optimum, 1e-12) for loss in losses]
        for panel, values in enumerate((losses, above)):
            plot.scatter(
                zip(found.steps, values, strict=True), panel, name=name, mode="lines", legendgroup=name,
                line={"color": colour, "width": width}, showlegend=not panel, legendrank=len(curves) - rank,
                hovertemplate="step %{x}: %{y:.4~g}",
            )  # fmt: skip
    plot.scatter(
        [(step, found.optimum) for step in (1, found.steps[-1])], name="optimum", mode="lines",
        line={"color": BASELINE, "width": 1.5, "dash": "dash"}, legendrank=100,
        hovertemplate="optimum %{y:.4~g}<extra></extra>",
    )  # fmt: skip
    for panel in (0, 1):
        plot.axis("x", "step", panel, **LOG)
    plot.axis("y", "loss", type="log")
    plot.axis("y", "loss above the optimum", 1, **{**LOG, "dtick": 2})
    plot.lay(legend={"title": {"text": "rate of the copy"}})
    columns = {f"copy at {rate:.4g}": own for rate, own in zip(found.rates, found.copies, strict=True)}
    table = pd.DataFrame({"step": found.steps, "mixture": found.mixture, **columns})
    words = caption("theorem", copies=len(found.rates), good=sum(one < 1 for one in found.multiples))
    return Figure("theorem", "One good rate is enough", words, "alrao reproduce theorem", plot, table)


def _write(made: Reproduction, place: Path) -> None:
    images: dict[Path, Figure] = {}
    for shown in made.shown:
        for name, figure in shown.figures.items():
            write_csv(place / f"{name}.csv", figure.table)
            images[place / f"{name}.svg"] = figure
        if shown.table:
            write_csv(place / f"{shown.name}.csv", pd.DataFrame(shown.table[1:], columns=shown.table[0]))
    write_index(made.budget, made.shown, made.failed, place / "README.md")
    write_images(images)
