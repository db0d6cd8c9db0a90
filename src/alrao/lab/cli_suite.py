"""The command ``alrao suite``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from .errors import unknown
from .options import collect, common, jobs_option, out_option, results_option, roots_of

__all__ = ["suite"]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
Kind = TypeVar("Kind")


@click.command()
@click.option("--workloads", metavar="A,B,…", help="some of them  [default: all]")
@click.option(
    "--contenders", metavar="A,B,…", help="some of them, or ablations of Zoom  [default: all but these]"
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N",
              help="runs of what has no rate to find, and of the best rate of what has one")  # fmt: skip
@jobs_option
@click.option("--run/--no-run", "train", default=True, help="train what is missing, or show what there is")
@click.option("--markdown", metavar="FILE", help="write the tables to a page of the documentation too")
@click.option("--title", default="The suite", show_default=True, help="of that page")
@common
@out_option("suite/runs")
@results_option("suite/results")
def suite(
    workloads: str | None,
    contenders: str | None,
    seeds: int,
    jobs: int,
    train: bool,
    markdown: str | None,
    title: str,
    out_dir: str,
    results: str,
    **values: Any,
) -> None:
    """Compare methods without a learning rate with tuned ones, on small workloads that differ in kind.

    For each method: how far its test loss is behind the best tuned run, on every workload, at worst, and in
    the mean. Rates are chosen on validation data. Finished runs are not repeated.
    """
    from .display import run_shown
    from .store import replace_file
    from .suite import ABLATIONS, CONTENDERS, WORKLOADS, Suite, standings, table
    from .suite import markdown as page

    runs = Suite(
        _some(workloads, WORKLOADS, "workload"),
        _some(contenders or ",".join(CONTENDERS), CONTENDERS | ABLATIONS, "contender"),
        collect(values),
        seeds=seeds,
        roots=roots_of(out_dir, results),
    )
    if train:
        runs.run(lambda some: run_shown(some, jobs, out))
    else:
        runs.choose()
    found = standings(runs)
    for which, chosen_on in (("not used for choosing", False), ("used for choosing", True)):
        some = [workload for workload in runs.workloads if workload.chosen_on == chosen_on]
        if some:
            out.print(table(found, some, f"workloads {which}"))
    if runs.missing:
        out.print(f"{runs.missing} runs are missing: the same command without --no-run trains them")
    if markdown is not None:
        content = page(found, list(runs.workloads), title).encode()
        replace_file(Path(markdown), lambda file: file.write(content))
    failed = {path: error for some in runs.sets.values() for path, error in some.failed.items()}
    for path, error in failed.items():
        err.print(f"failed: {path}: {error}", style="red", soft_wrap=True, markup=False)
    if failed:
        raise SystemExit(1)


def _some(names: str | None, known: Mapping[str, Kind], what: str) -> list[Kind]:
    """Those of the names, in the order of all."""
    if names is None:
        return list(known.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise unknown(what, name, known)
    return [each for name, each in known.items() if name in wanted]
