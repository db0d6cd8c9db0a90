"""The command ``alrao reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .errors import LabError, unknown
from .options import collect, common, jobs_option, out_option, results_option, roots_of

__all__ = ["reproduce"]

out = Console(highlight=False)
NAMES = ("table1", "params", "curves", "triangle", "posterior", "adam", "frozen", "rl", "theorem")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="{" + ",".join([*NAMES, "all"]) + "}…")
@jobs_option
@click.option("--figures", default="docs/figures", show_default=True, metavar="DIR",
              help="where figures (SVG), tables (CSV) and their page go")  # fmt: skip
@common
@out_option()
@results_option()
def reproduce(
    names: tuple[str, ...],
    jobs: int,
    figures: str,
    out_dir: str,
    results: str,
    **values: Any,
) -> None:
    """Make the paper's tables and figures again: run what is missing, draw, and say whether they agree.

    Finished runs are used as they are. Budget mini trains small networks, on two cores in under three
    hours for everything; budget paper trains the paper's.
    """
    from .display import run_shown
    from .reproduce import reproduce as make

    wanted = list(NAMES) if "all" in names else list(dict.fromkeys(names))
    for name in wanted:
        if name not in NAMES:
            raise unknown("table or figure", name, [*NAMES, "all"])
    page = Path(out_dir) / "reproduce.html"
    settings = collect(values)
    made = make(
        wanted, settings.budget, settings, roots_of(out_dir, results), Path(figures), page,
        lambda runs: run_shown(runs, jobs, out),
    )  # fmt: skip
    table = Table(title=f"the paper's tables and figures, budget {settings.budget}")
    for column in ("exhibit", "on", "agrees"):
        table.add_column(column)
    for shown in made.shown:
        agrees = {True: "yes", False: "no", None: "too few runs"}[shown.verdict.agrees]
        table.add_row(shown.exhibit.name, shown.subject, agrees)
    out.print(table)
    out.print(f"figures: {figures}", soft_wrap=True, markup=False)
    out.print(f"report: {page}", soft_wrap=True, markup=False)
    if made.failed:
        raise LabError(
            "; ".join(f"{name} could not be made in full: {why}" for name, why in made.failed.items())
        )
