"""The exhibits as files: tables as CSV, figures as SVG through headless Chromium, and a page of Markdown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ..errors import LabError, optional
from ..render import markdown
from ..report.figure import Figure, themed
from ..store import replace_file
from .checks import Verdict
from .exhibits import EXHIBITS, Exhibit

WIDTH = 1000
HEAD = """# The paper's tables and figures, made again

Made by `alrao reproduce`; the numbers behind each figure and table are in the CSV file of the same name. What
counts as agreeing is a rule in `src/alrao/lab/paper/checks.py`.
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
    """By the name of their file, without its ending."""
    table: list[list[str]] = field(default_factory=list)
    name: str = ""
    """Of the table's file."""
    note: str = ""
    """About historical runs."""


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table."""
    replace_file(path, table.to_csv(index=False, lineterminator="\n").encode())


def write_images(figures: dict[Path, Figure]) -> None:
    """Write figures as SVG files, in their light colours."""
    if not figures:
        return
    kaleido = optional("kaleido", "figures", "figures as SVG files")

    async def draw() -> dict[Path, bytes]:
        drawn = {}
        async with kaleido.Kaleido(mathjax=False) as browser:
            for path, figure in figures.items():
                plot = themed(figure)
                picture = go.Figure(data=plot.data, layout=plot.layout)
                size = {"width": WIDTH, "height": figure.plot.wide["height"], "format": "svg"}
                drawn[path] = await browser.calc_fig(picture.to_plotly_json(), opts=size)
        return drawn

    try:
        drawn = asyncio.run(draw())
    except Exception as error:  # of many kinds: the browser is missing, does not start, ends early
        reason = " ".join(str(error).split())[:200] or "no reason given"
        raise LabError(
            "figures as SVG files need Chromium or Chrome, which could not be used "
            f"({type(error).__name__}: {reason}): install it, for example with `apt-get install chromium`; "
            "tables and the report were written"
        ) from error
    for path, content in drawn.items():
        replace_file(path, content)


def write_index(budget: str, shown: Sequence[Shown], failed: Mapping[str, str], path: Path) -> None:
    """Write the page; the parts about exhibits that were not made this time stay as they were."""
    parts = _parts(path.read_text("utf-8")) if path.exists() else {}
    for name, exhibit in EXHIBITS.items():
        if found := [one for one in shown if one.exhibit is exhibit]:
            parts[name] = _section(exhibit, budget, found)
    for name, why in failed.items():
        parts.setdefault(name, f"## {EXHIBITS[name].title}\n\nNot made: {why}\n")
    text = [HEAD, *(f"{MARK.format(name)}\n\n{parts[name].strip()}\n" for name in EXHIBITS if name in parts)]
    replace_file(path, "\n".join(text).encode())


def _parts(text: str) -> dict[str, str]:
    pieces = re.split(MARK.format(r"(\w+)"), text)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _section(exhibit: Exhibit, budget: str, found: Sequence[Shown]) -> str:
    lines = [f"## {exhibit.title}", "", f"In the paper: {exhibit.where}. {exhibit.found}", ""]
    for shown in found:
        verdict = f"{SAID[shown.verdict.agrees]} {_sentence(shown.verdict.why)}"
        lines += [f"**{_sentence(shown.subject)}** {verdict}", ""]
        if shown.table:
            lines += [*markdown.table(shown.table[0], shown.table[1:]), ""]
        for file, figure in shown.figures.items():
            lines += [
                f"![{figure.title}]({file}.svg)",
                "",
                f"{figure.look_for} Made by `{figure.command}`.",
                "",
            ]
        lines += [shown.note, ""] if shown.note else []
    return "\n".join([*lines, f"`alrao reproduce {exhibit.name} --budget {budget}`", ""])
