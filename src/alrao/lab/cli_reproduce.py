"""The command ``alrao reproduce``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from .errors import LabError, unknown
from .options import roots_of
from .settings import Settings

__all__ = ["reproduce"]

out = Console(highlight=False)
NAMES = ("table1", "params", "curves", "triangle", "posterior", "adam", "frozen", "rl", "theorem")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="{" + ",".join([*NAMES, "all"]) + "}…")
@click.option("--budget", type=click.Choice(["mini", "paper"]), default="mini", show_default=True,
              help="how much to train")  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="runs at a time"
)
@click.option("--figures", default="docs/figures", show_default=True, metavar="DIR",
              help="where figures (SVG), tables (CSV) and their page go")  # fmt: skip
@click.option("--out", "out_dir", default="runs", show_default=True, metavar="DIR",
              help="where run directories and the report go")  # fmt: skip
@click.option("--results", default="results", show_default=True, metavar="DIR",
              help="finished runs to use as well, where it exists")  # fmt: skip
@click.option("--data", metavar="DIR", help="where the data is (default: $ALRAO_DATA)")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="processor threads of torch")
def reproduce(
    names: tuple[str, ...],
    budget: str,
    jobs: int,
    figures: str,
    out_dir: str,
    results: str,
    data: str | None,
    device: str,
    threads: int | None,
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
    common = Settings(data=data, device=device, threads=threads)
    made = make(
        wanted, budget, common, roots_of(out_dir, results), Path(figures), page,
        lambda runs: run_shown(runs, jobs, out),
    )  # fmt: skip
    table = Table(title=f"the paper's tables and figures, budget {budget}")
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
