"""The commands of published figures: ``reproduce``, ``suite`` and ``params``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ..errors import LabError
from ..paper import make
from ..paper.computed import counts
from ..paper.exhibits import EXHIBITS
from ..records import keep
from ..render.terminal import out, plain_table, say, train_missing
from ..settings import Settings
from ..spread import Spread
from ..store import replace_file
from ..suite import page
from ..suite.contenders import CONTENDERS, GROUPS
from ..suite.runs import Search, lacking, recorded, require_allowed
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
@click.option("--workloads", metavar="A,B,…", help="workloads, or choosing, held-out  [default: all]")
@click.option("--contenders", metavar="A,B,…",
              help="methods, or references, peers, ours  [default: all]")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="runs of a method at the most, and of each setting of a search")  # fmt: skip
@click.option("--final", is_flag=True, help="run methods of alrao on workloads that are held out")
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
    final: bool,
    spread: Spread,
    train: bool,
    markdown: str | None,
    figures: str | None,
    title: str,
    roots: list[Path],
) -> None:
    """Compare methods on small workloads of many kinds.

    For each method, learning-rate-free or tuned: the gap of its test loss to the best tuned run, for each
    workload, at worst and on average. Settings are chosen on validation data. Finished runs are not repeated.
    With --to-keep, the runs of a workload are added to the results when they have ended.
    """
    halves = {"choosing": True, "held-out": False}
    named = {
        name: [each.name for each in WORKLOADS.values() if each.chosen_on == half]
        for name, half in halves.items()
    }
    wanted = pick(_spread_out(workloads, named), WORKLOADS, "workload")
    methods = pick(_spread_out(contenders, GROUPS), CONTENDERS, "contender")
    failed: dict[Path, str] = {}
    for workload in wanted if train else ():  # before the first run
        require_allowed(workload, methods, final=final)
    for workload in wanted if train else ():
        search = Search(workload, methods, settings, seeds=seeds, roots=roots, final=final)
        train_missing(search, spread)
        failed |= search.failed
        if settings.to_keep and len(roots) > 1:
            keep(roots[:1], roots[1])
    found = page.Suite(recorded(roots, wanted, methods, settings), methods)
    for which, chosen_on in page.HALVES.items():
        ready = found.ready(wanted) or wanted
        if some := [workload for workload in ready if workload.chosen_on == chosen_on]:
            out.print(page.table(found, some, f"workloads {which}"))
    missing = lacking(found.every, wanted, methods, seeds)
    if count := sum(missing.values()):
        out.print(f"{count} runs are missing: run the same command without --no-run to train them")
    if markdown is not None:
        replace_file(Path(markdown), page.markdown(found, wanted, title, missing).encode())
    if figures is not None:
        drawn = page.figures(found, wanted)
        make.write_images({Path(figures) / f"{figure.name}.svg": figure for figure in drawn})
    fail_if(failed)


def _spread_out(text: str | None, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The names in a text, with those of a group in its place."""
    found = [name for word in words_of(text or "") for name in groups.get(word, [word])]
    return list(dict.fromkeys(found))


@click.command()
def params() -> None:
    """Count the parameters of the paper's networks.

    The table shows them plain and with Alrao, beside the paper's figures.
    """
    out.print(plain_table(*counts(), title="Parameters, in millions"))
