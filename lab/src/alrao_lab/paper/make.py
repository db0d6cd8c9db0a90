"""From an exhibit to its files: runs, figures as SVG, tables as CSV, verdicts, and a page of all of them.

Figures are drawn by headless Chromium.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]

from ..errors import LabError, optional
from ..records import Reading, read
from ..render import markdown
from ..report.figure import ALRAO, BASELINE, LOG, Figure, light, ordered, panels
from ..report.page import Report, Section, write_report
from ..runset import RunSet
from ..settings import Settings
from ..store import file_name, replace_file, unwritable
from .checks import Verdict, check_theorem
from .computed import MULTIPLES, Theorem, compute, counts
from .exhibits import EXHIBITS, Exhibit

WIDTH = 1000
HEAD = """# The paper's tables and figures, made again

Made by `alrao reproduce`; the numbers behind each figure and table are in the CSV file of the same name. What
counts as agreeing is a rule in `lab/src/alrao_lab/paper/checks.py`.
"""
MARK = "<!-- exhibit {} -->"
SAID = {True: "**Agrees.**", False: "**Does not agree.**", None: "**Open.**"}


@dataclass
class Shown:
    """One exhibit made from one experiment."""

    exhibit: Exhibit
    subject: str
    """The experiment, in words."""
    verdict: Verdict
    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """The figures and tables by the names of their files, without the ending."""
    note: str = ""
    """About historical runs."""


def write_images(figures: dict[Path, Figure]) -> None:
    """Write figures as SVG files, in their light colours."""
    if not figures:
        return
    kaleido = optional("kaleido", "figures", "figures as SVG files")
    wanted = []
    for path, figure in figures.items():
        size = {"width": WIDTH, "height": figure.plot.wide["height"], "format": "svg"}
        wanted.append({"fig": light(figure).to_plotly_json(), "path": path, "opts": size})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error) from error
    try:
        kaleido.write_fig_from_object_sync(wanted, kopts={"mathjax": False}, cancel_on_error=True)
    except Exception as error:  # of many kinds: the browser is missing, does not start, ends early
        reason = " ".join(str(error).split())[:200] or "no reason given"
        raise LabError(
            "figures as SVG files need Chromium or Chrome, which could not be used "
            f"({type(error).__name__}: {reason}): install it, for example with `apt-get install chromium`; "
            "tables and the report were written"
        ) from error


def write_index(budget: str, shown: Sequence[Shown], failed: Mapping[str, str], path: Path) -> None:
    """Write the page; the parts about exhibits that were not made this time stay as they were."""
    pieces = re.split(MARK.format(r"(\w+)"), path.read_text("utf-8") if path.exists() else "")
    parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    for name, exhibit in EXHIBITS.items():
        if found := [one for one in shown if one.exhibit is exhibit]:
            parts[name] = markdown.filled(
                __package__, "section.md.j2", exhibit=exhibit, budget=budget, found=found,
                said=SAID, sentence=_sentence, table=markdown.table,
            )  # fmt: skip
    for name, why in failed.items():
        parts.setdefault(name, f"## {EXHIBITS[name].title}\n\nNot made: {why}\n")
    text = [HEAD, *(f"{MARK.format(name)}\n\n{parts[name].strip()}\n" for name in EXHIBITS if name in parts)]
    replace_file(path, "\n".join(text).encode())


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


Run = Callable[[RunSet], None]
"""Trains the missing runs of a set and shows their progress."""


def reproduce(
    names: Sequence[str], common: Settings, roots: list[Path], figures: Path, page: Path, run: Run
) -> tuple[list[Shown], dict[str, str]]:
    """Make exhibits: train their missing runs, write their files to ``figures``, and the report.

    Returns:
        What was made; and the exhibits that could not be made, or not from all their runs, and why.
    """
    made: list[Shown] = []
    failed: dict[str, str] = {}
    every, budget = Reading(), common.budget
    for name in names:
        exhibit = EXHIBITS[name]
        try:
            if name in COMPUTED:
                made.append(COMPUTED[name](exhibit))
            for plan in exhibit.mini if budget == "mini" else exhibit.paper:
                runs = plan.runs(common, roots)
                run(runs)
                if runs.failed:
                    failed[name] = "; ".join(f"{path}: {why}" for path, why in runs.failed.items())
                found = read(some for some in runs.runs if some.config is not None)
                every.records += found.records
                every.left_out += found.left_out
                made += [_shown(exhibit, section) for section in Report.of(found).sections]
        except LabError as error:
            failed[name] = str(error)
    every.records = list({record.run.path: record for record in every.records}.values())
    extra = [figure for shown in made if shown.exhibit.name in COMPUTED for figure in shown.figures.values()]
    write_report(every, page, extra, f"alrao reproduce {' '.join(names)} --budget {budget}")
    drawn = {name: figure for shown in made for name, figure in shown.figures.items()}
    tables = {name: figure.table for name, figure in drawn.items()}
    for name, table in [*tables.items(), *(item for shown in made for item in shown.tables.items())]:
        replace_file(figures / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    write_index(budget, made, failed, figures / "README.md")
    write_images({figures / f"{name}.svg": figure for name, figure in drawn.items()})
    return made, failed


def _shown(exhibit: Exhibit, section: Section) -> Shown:
    experiment, settings = section.experiment, section.experiment.settings
    subject = f"{settings.task}-{settings.model}" + ("" if settings.width == 1 else f"-x{settings.width:g}")
    named = {figure.name: figure for figure in section.figures}
    assert exhibit.check is not None
    verdict = exhibit.check(experiment, named)
    wanted = {
        file_name(exhibit.name, subject, name if name != exhibit.name else ""): named[name]
        for name in exhibit.figures
        if name in named
    }
    shown = Shown(exhibit, experiment.title, verdict, wanted, note=experiment.note)
    if section.comparison is not None and exhibit.name in ("table1", "rl"):
        shown.tables[file_name(exhibit.name, subject)] = section.comparison.main
    return shown


def _parameters(exhibit: Exhibit) -> Shown:
    heads, rows = counts()
    same = all(row[1:3] == row[4:] for row in rows)
    verdict = Verdict(same, "every count is the paper's" if same else "some counts differ")
    table = pd.DataFrame(rows, columns=heads)
    return Shown(exhibit, "millions of parameters", verdict, tables={"params": table})


def _theorem(exhibit: Exhibit) -> Shown:
    found = compute()
    figures = {"theorem": theorem_figure(found)}
    return Shown(exhibit, "softmax regression on digits", check_theorem(found), figures)


COMPUTED = {"params": _parameters, "theorem": _theorem}
"""What makes the exhibits that need no run."""


def theorem_figure(found: Theorem) -> Figure:
    """Losses of the copies and of the mixture, and how far the better ones are above the optimum."""
    plot = panels(2)
    mixture, *copies = found.losses.columns
    look = zip(MULTIPLES, found.rates, ordered(len(found.rates)), copies, strict=True)
    curves = [(f"{multiple:g}/λ = {rate:.2g}", colour, 2.0, own) for multiple, rate, colour, own in look]
    curves.append(("the mixture", ALRAO, 4.0, mixture))
    for rank, (name, colour, width, column) in enumerate(curves):
        losses = found.losses[column]
        for panel, values in enumerate((losses, (losses - found.optimum).clip(lower=1e-12))):
            plot.scatter(
                values.items(), panel, name=name, mode="lines", legendgroup=name,
                line={"color": colour, "width": width}, showlegend=not panel, legendrank=len(curves) - rank,
                hovertemplate="step %{x}: %{y:.4~g}",
            )  # fmt: skip
    plot.scatter(
        [(step, found.optimum) for step in (1, int(found.losses.index[-1]))], name="optimum", mode="lines",
        line={"color": BASELINE, "width": 1.5, "dash": "dash"}, legendrank=100,
        hovertemplate="optimum %{y:.4~g}<extra></extra>",
    )  # fmt: skip
    for panel in (0, 1):
        plot.axis("x", "step", panel, **LOG)
    plot.axis("y", "loss", type="log")
    plot.axis("y", "loss above the optimum", 1, **{**LOG, "dtick": 2})
    plot.lay(legend={"title": {"text": "rate of the copy"}})
    said = {"copies": len(copies), "good": sum(one < 1 for one in MULTIPLES)}
    return Figure("theorem", "alrao reproduce theorem", plot, found.losses.reset_index(), said=said)
