"""The commands of published figures: ``reproduce``, ``suite`` and ``params``."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import LabError
from ..paper import make
from ..paper.computed import counts
from ..paper.exhibits import EXHIBITS
from ..render.terminal import out, plain_table, say, train_missing
from ..settings import Settings
from ..spread import Spread
from ..store import replace_file
from ..suite import page
from ..suite.contenders import CONTENDERS
from ..suite.runs import Search, Standings, every
from ..suite.workloads import WORKLOADS
from .options import FEW, Command, fail_if, options, pick, words_of


@click.command(cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="{" + ",".join([*EXHIBITS, "all"]) + "}…")
@click.option("--figures", default="docs/figures", show_default=True, metavar="DIR",
              help="where figures (SVG), tables (CSV) and their page are written")  # fmt: skip
@options(FEW)
def reproduce(
    settings: Settings, names: tuple[str, ...], spread: Spread, figures: str, roots: list[Path]
) -> None:
    """Reproduce the paper's tables and figures.

    Missing runs are trained, the figures drawn and compared with the paper's. Finished runs are not repeated.
    The budget mini trains small networks and takes under three hours on two cores for everything; the budget
    paper trains the paper's networks.
    """
    picked = pick(names, {name: name for name in (*EXHIBITS, "all")}, "table or figure")
    wanted = list(EXHIBITS) if "all" in picked else picked
    report = roots[0] / "reproduce.html"
    made, failed = make.reproduce(
        wanted, settings, roots, Path(figures), report, lambda runs: train_missing(runs, spread)
    )
    agrees = {True: "yes", False: "no", None: "too few runs"}
    rows = [[shown.exhibit.name, shown.subject, agrees[shown.verdict.agrees]] for shown in made]
    title = f"The paper's tables and figures, budget {settings.budget}"
    out.print(plain_table(["exhibit", "task", "agrees"], rows, left=3, title=title))
    say(f"figures: {figures}")
    say(f"report: {report}")
    if failed:
        raise LabError("; ".join(f"{name} is incomplete: {why}" for name, why in failed.items()))


@click.command(cls=Command)
@click.option("--workloads", metavar="A,B,…", help="workloads to run  [default: all]")
@click.option("--contenders", metavar="A,B,…", help="methods to compare  [default: all]")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N",
              help="runs of every method without a rate, and of every other at its best rate")  # fmt: skip
@click.option("--run/--no-run", "train", default=True, help="train missing runs, or only show finished ones")
@click.option("--markdown", metavar="FILE", help="write the tables to a Markdown page as well")
@click.option("--figures", metavar="DIR", help="draw dot plots and a performance profile as SVG files there")
@click.option("--title", default="The suite", show_default=True, help="title of that page")
@options(FEW)
def suite(
    settings: Settings,
    workloads: str | None,
    contenders: str | None,
    seeds: int,
    spread: Spread,
    train: bool,
    markdown: str | None,
    figures: str | None,
    title: str,
    roots: list[Path],
) -> None:
    """Compare methods on small workloads of many kinds.

    For each method, learning-rate-free or tuned: the gap of its test loss to the best tuned run, for each
    workload, at worst and on average. Rates are chosen on validation data. Finished runs are not repeated.
    """
    wanted = pick(words_of(workloads or ""), WORKLOADS, "workload")
    methods = pick(words_of(contenders or ""), CONTENDERS, "contender")
    searches = [Search(workload, methods, settings, seeds=seeds, roots=roots) for workload in wanted]
    for search in searches:
        if train:
            train_missing(search, spread)
        while search.grow():  # so that, without training, all missing runs are counted
            continue
    found = Standings(every(searches), methods)
    for which, chosen_on in page.HALVES.items():
        ready = [workload for workload in wanted if workload.name in found.best] or wanted
        if some := [workload for workload in ready if workload.chosen_on == chosen_on]:
            out.print(page.table(found, some, f"workloads {which}"))
    if missing := sum(run.result is None for search in searches for run in search.runs):
        out.print(f"{missing} runs are missing: run the same command without --no-run to train them")
    if markdown is not None:
        replace_file(Path(markdown), page.markdown(found, wanted, title).encode())
    if figures is not None:
        drawn = page.figures(found, wanted)
        make.write_images({Path(figures) / f"{figure.name}.svg": figure for figure in drawn})
    fail_if({path: error for search in searches for path, error in search.failed.items()})


@click.command()
def params() -> None:
    """Count the parameters of the paper's networks.

    The table shows them plain and with Alrao, beside the paper's figures.
    """
    out.print(plain_table(*counts(), title="Parameters, in millions"))
