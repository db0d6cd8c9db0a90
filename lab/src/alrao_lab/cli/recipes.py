"""The command ``recipes``."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import LabError
from ..recipes import harness
from ..recipes.page import markdown as page
from ..render.terminal import out, say
from ..store import replace_file
from ..tasks.files import data_path
from .options import fail_if, pick, words_of


@click.command()
@click.option("--programs", metavar="DIR", help="the directory of clones of the programs")
@click.option("--data", metavar="DIR", help="where the data is (default: $ALRAO_DATA)")
@click.option("--only", metavar="A,B,…", help="programs to run  [default: all]")
@click.option("--variants", metavar="A,B,…", help=f"{', '.join(harness.VARIANTS)}  [default: all]")
@click.option(
    "--seeds", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="runs of each"
)
@click.option("--short", is_flag=True, help="run each for a few steps, to try it")
@click.option("--limit", type=float, default=7200.0, show_default=True, metavar="X", help="seconds of a run")
@click.option(
    "--results", default="results/recipes.jsonl", show_default=True, metavar="FILE", help="the rows"
)
@click.option("--to-keep", is_flag=True, help="refuse runs of code that is not committed")
@click.option("--run/--no-run", "train", default=True, help="run what is missing, or only show what is there")
@click.option("--markdown", metavar="FILE", help="write a Markdown page")
def recipes(
    programs: str | None,
    data: str | None,
    only: str | None,
    variants: str | None,
    seeds: int,
    short: bool,
    limit: float,
    results: str,
    to_keep: bool,
    train: bool,
    markdown: str | None,
) -> None:
    """Run published programs as they are, and with Auto in the place of their optimizer.

    Programs are git clones that you fetch yourself; they run as they would without this command, so look at
    them first. A run that is in the results is not repeated; Ctrl-C loses the run in progress only.
    """
    listed = harness.recipes()
    wanted, kept = pick(words_of(only or ""), listed, "program"), Path(results)
    chosen = pick(words_of(variants or ""), {name: name for name in harness.VARIANTS}, "variant")
    failed: dict[Path, str] = {}
    if train:
        if programs is None:
            raise click.UsageError("name the directory of the clones with --programs, or give --no-run")
        place = data_path(data, "name the directory of the data with --data")
        runs = harness.missing(wanted, seeds, harness.read(kept), short=short, variants=chosen)
        for recipe, variant, seed in list(runs):
            try:
                row = harness.run(
                    recipe, variant, seed, Path(programs), place, short=short, limit=limit,
                    keep=to_keep,
                )  # fmt: skip
            except LabError as error:  # of one program, which must not end the others
                failed[Path(recipe.name)] = str(error)
                continue
            harness.add(kept, row, to_keep=to_keep)
            said = row["figure"] if row["figure"] is not None else row["failed"].splitlines()[-1]
            say(f"{recipe.name}, {variant}, seed {seed}: {said} ({row['cpu']:.0f} s)")
    if markdown is not None:
        replace_file(Path(markdown), page(listed, harness.read(kept)).encode())
    out.print(f"{len(harness.read(kept))} rows in {kept}")
    fail_if(failed)
