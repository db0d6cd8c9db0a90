"""The commands that train nothing: ``list``, ``table``, ``report`` and ``keep``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from .. import records
from ..errors import LabError
from ..methods import METHODS
from ..render.markdown import page
from ..render.terminal import comparison_table, out, plain_table, say, warn
from ..report.page import write_report
from ..store import replace_file
from ..table import experiments
from ..tasks import TASKS, get_task

paths_argument = click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))


def _read(paths: tuple[Path, ...]) -> records.Reading:
    places = list(paths) or [path for path in (Path("runs"), Path("results")) if path.is_dir()]
    if not places:
        raise LabError("no runs found: neither runs/ nor results/ exists here; name a directory with runs")
    return records.read_runs(places)


def make_report(reading: records.Reading, target: Path) -> None:
    """Write the report and print its path."""
    made = write_report(reading, target, command=shlex.join(["alrao", *sys.argv[1:]]))
    if made.left_out:
        warn(f"{len(made.left_out)} remarks about what is left out are at the end of the report")
    say(f"report: {target}")


@click.command("list")
def list_command() -> None:
    """List tasks, models, budgets and methods."""
    tasks, budgets = [], []
    for name in TASKS:
        task = get_task(name)
        models = ", ".join(task.models).replace("*", "any torchvision classifier")
        tasks.append([name, task.summary, models])
        rates = "{:g}:{:g}".format(*task.interval)
        for kind, budget in task.budgets.items():
            size = f"{budget.train:,}{task.unit}" if budget.train else "all"
            row = (name, kind, budget.epochs, budget.batch, size, budget.seeds, rates, task.copies)
            budgets.append([str(cell) for cell in row])
    special = {"frozen": "frozen@RATE:P", "sgd": "sgd, sgd@RATE"}
    methods = []
    for name, method in METHODS.items():
        form = f"{name}, {name}@RATE" if method.rate == "optional" else name
        methods.append([special.get(name, form), method.summary])
    heads = ["task", "budget", "epochs", "batch", "training set", "seeds", "Alrao's rates", "copies"]
    for title, columns, rows, left in (
        ("Tasks and their models, the default first", ["task", "data", "models"], tasks, 3),
        ("Budgets", heads, budgets, 2),
        ("Methods", ["method", "description"], methods, 2),
    ):
        out.print(plain_table(columns, rows, left, title=title, box=None, padding=(0, 2, 0, 0)))
        out.print()


@click.command()
@paths_argument
@click.option("--markdown", metavar="FILE", help="write the tables to a Markdown page instead")
def table(paths: tuple[Path, ...], markdown: str | None) -> None:
    """Print tables of the finished runs in PATHS.

    PATHS are directories of runs, or files of results; by default, runs and results.
    """
    reading = _read(paths)
    found = [experiment for experiment in experiments(reading) if len(experiment.ended)]
    if markdown is not None:
        replace_file(Path(markdown), page(found).encode())
    else:
        for experiment in found:
            out.print(comparison_table(experiment))
    for line in reading.left_out:
        warn(line)


@click.command()
@paths_argument
@click.option(
    "--out", "target", type=click.Path(dir_okay=False, path_type=Path), default="report.html",
    show_default=True, metavar="FILE", help="the HTML file to write",
)  # fmt: skip
def report(paths: tuple[Path, ...], target: Path) -> None:
    """Write an HTML report of the runs in PATHS.

    PATHS are directories of runs, or files of results; by default, runs and results. Nothing is trained;
    unfinished runs are shown as far as they got. The report is a single file and needs no network.
    """
    make_report(_read(paths), target)


@click.command()
@paths_argument
@click.option("--results", default="results", show_default=True, metavar="DIR", help="files of results")
def keep(paths: tuple[Path, ...], results: str) -> None:
    """Add finished runs in PATHS to the results to commit.

    PATHS are directories of runs; by default, runs. A run is kept if it started from a clone whose tracked
    files were committed: train it with --to-keep.
    """
    count, refused = records.keep(paths or [Path("runs")], Path(results))
    say(f"{count} {'run' if count == 1 else 'runs'} added to {results}")
    for line in refused:
        warn(line)
