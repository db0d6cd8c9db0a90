"""Markdown: the one writer of tables, and the page of results."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from ..settings import spelled
from ..store import PARTS, replace_file
from ..table import Experiment
from .cells import columns, compare_command, shown

with files(__package__).joinpath("table1.csv").open(encoding="utf-8") as file:
    (_, *PAPER_HEADS), *_printed = csv.reader(file)
TABLE_1: dict[str, list[list[str]]] = {}
"""The rows of the paper's Table 1 for each task, as printed; Adam at its defaults."""
for _task, *_row in _printed:
    TABLE_1.setdefault(_task, []).append(_row)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table, with ``left`` columns aligned to the left and the others to the right."""
    rule = ["---" if i < left else "---:" for i in range(len(heads))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows))


def with_table(page: str, script: str, text: str) -> str:
    """Return a page with a table between the marks that name its script."""
    begin, end = f"<!-- table: {script} -->", "<!-- end of the table -->"
    before, mark, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (mark and closed):
        raise ValueError(f"the page must have a line {begin} and, after it, {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def replace_table(page: Path, script: str, text: str) -> None:
    """Put a table between the marks of a page that name its script."""
    replace_file(page, with_table(page.read_text(encoding="utf-8"), script, text).encode())


def filled(package: str, name: str, *, escape: bool = False, **values: Any) -> str:
    """Return a template of a package, filled with values, which ``escape`` makes safe in HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name).render(values)


def escaped(text: str) -> str:
    """Return a user's words, such as the name of a file, so that no Markdown or HTML is read in them."""
    return re.sub(r"([\\`*_\[\]<>&|#])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    text = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}"


def page(found: Iterable[Experiment]) -> str:
    """Return a page with a section for each experiment."""
    return filled(__package__, "page.md.j2", sections=map(_section, found))


def _section(experiment: Experiment) -> dict[str, Any]:
    about, measures, task = experiment.about, experiment.measures, experiment.settings.task
    plain = experiment.every.index[experiment.every["varied"] == ""]
    heads = ["method", *columns(measures), "behind SGD", "seeds", "failed", "minutes per run", "runs to tune"]
    rows, ours = shown(experiment, experiment.rows), experiment.rows["ours"]
    names = rows["method"].map(escaped)
    rows["method"] = names.map("**{}**".format).where(ours, names)
    grid = shown(experiment, experiment.grid).assign(rate=experiment.grid["rate"].map(spelled))
    rates = ["rate", *columns(measures), "seeds"]
    return {
        "title": escaped(experiment.title),
        "source": escaped(str(about.get("source", task))),
        "sizes": ", ".join(
            f"{about[part]:,} for {part}" for part in PARTS if isinstance(about.get(part), int)
        ),
        "command": _code(compare_command(experiment, plain if len(plain) else experiment.every.index)),
        "table": table([escaped(head) for head in heads], rows[heads].to_numpy()),
        "grid": table([escaped(head) for head in rates], grid[rates].to_numpy()) if len(grid) else "",
        "failures": [escaped(failure) for failure in experiment.failures],
        "note": experiment.note,
        "unit": "return" if experiment.measure == "return" else "loss, accuracy in %",
        "paper": table(PAPER_HEADS, TABLE_1[task], left=4) if task in TABLE_1 else "",
    }
