"""The commands that train on a task: ``train``, ``compare`` and ``triangle``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import torch

from ..errors import LabError
from ..methods import GRID, usual_methods
from ..records import locate, read
from ..render.cells import verdict
from ..render.terminal import (
    TrainingBar,
    comparison_table,
    describe,
    out,
    say,
    train_missing,
    triangle_table,
)
from ..resolve import OWN_DATA, refuse_idle, resolve
from ..run import pick_device, require_share, run
from ..runset import Comparison, Triangle
from ..settings import Settings, parse_rate
from ..spread import Spread
from ..table import experiments
from ..tasks import TASKS
from ..tasks.files import is_archive
from ..tasks.tables import kind_of
from ..team import Team, launch, launched
from .options import Command, fail_if, options, words_of
from .records import make_report

TABLES = (".csv", ".tsv")

METHODS = "methods to compare  [default: auto,sgd,adam, and prodigy,schedulefree where they are installed]"
GRID_SEEDS = "runs per rate of SGD's grid; the best rate then gets all seeds"
PROCESSES = "processes that share every batch; the result is that of one, to rounding"
COUNT = click.IntRange(1)


def of_own_data(settings: Settings) -> Settings:
    """Return the settings for a file or folder that is given in place of a task; others are unchanged."""
    path = Path(settings.task).expanduser()
    named = settings.task in TASKS or not (path.exists() or path.suffix in (*TABLES, ".txt") or path.anchor)
    if named:
        return settings
    if settings.data is not None:
        raise LabError(f"the data is given twice, {settings.task} and --data {settings.data}: leave one out")
    if not path.exists():
        raise LabError(f"there is no {path}: check the name; `alrao list` shows the tasks")
    settings = replace(settings, data=str(path))
    if path.is_dir() or is_archive(path):
        return replace(settings, task="imagefolder")
    if path.suffix.lower() not in TABLES:
        return replace(settings, task="text")
    task = kind_of(path, settings.target)
    if task == "regression":
        say(f"{settings.target} has numbers; as classes: alrao train classification --data {path} …")
    else:
        say(f"{settings.target} has classes; as numbers: alrao train regression --data {path} …")
    return replace(settings, task=task)


@click.command(cls=Command)
@click.argument("task")
@click.option("--processes", type=COUNT, metavar="N", help=PROCESSES)
@options(skip=["task"], many=False)
def train(settings: Settings, processes: int | None, roots: list[Path]) -> None:
    """Train one network on TASK, or on your own data: a CSV file, a folder of images, or a text.

    Run the same command again to resume an interrupted run. A finished run is not repeated.
    """
    settings = of_own_data(settings)
    refuse_idle(settings)
    count = launched(processes)
    if count == 1 and processes and processes > 1:
        task, resolved = resolve(settings)
        problem = task.load(resolved, torch.device("cpu"))
        require_share(problem, resolved, processes)
        if locate(resolved, problem.identity, roots).result is None:
            launch(processes)
            return
    team = (Team if count == 1 else Team.join)(pick_device(settings.device))
    if team.rank:
        run(settings, roots, team=team)
        team.leave()
        return
    with TrainingBar(out) as bar:
        directory = run(settings, roots, bar, team=team)
        team.leave()
        bar.data((directory.config or {}).get("data", {}))
        lines = directory.metrics()
        if lines:
            bar.epoch(lines[-1])
    result = directory.result
    assert result is not None
    describe(out, result)
    say(f"run: {directory.path}")
    if result["status"] == "finished" and settings.task in OWN_DATA:
        say("next: `alrao predict FILE` with new data, `alrao export` for other programs")


@click.command(cls=Command)
@click.argument("task")
@click.option("--methods", metavar="A,B,…", help=METHODS)
@click.option("--seeds", type=COUNT, metavar="N", help="runs per method  [default: the budget's]")
@click.option("--grid-seeds", type=COUNT, default=1, show_default=True, metavar="N", help=GRID_SEEDS)
@options(skip=["task", "method", "seed"])
def compare(
    settings: Settings,
    methods: str | None,
    seeds: int | None,
    grid_seeds: int,
    spread: Spread,
    roots: list[Path],
) -> None:
    """Compare methods on TASK, or on your own data, and print a table like the paper's.

    Each method trains with several seeds, SGD at seven rates. The best epoch and the best rate are chosen on
    the validation data; the figures are those on the test data. Finished runs are not repeated.
    """
    settings = of_own_data(settings)
    names = usual_methods() if methods is None else words_of(methods)
    if not names:
        raise LabError(f"--methods must name at least one method, got {methods!r}: auto,sgd,adam")
    task, _ = resolve(replace(settings, lr=None))  # which is for some of the methods
    count = seeds or task.budgets[settings.budget].seeds
    comparison = Comparison(settings, names, seeds=count, grid_seeds=grid_seeds, roots=roots)
    train_missing(comparison, spread)
    reading = read(comparison.runs)
    for experiment in experiments(reading):
        out.print(comparison_table(experiment))
        say(verdict(experiment))
        for failure in experiment.failures:
            out.print(failure, style="red", markup=False)
    make_report(reading, roots[0] / f"report-{settings.task}.html")
    fail_if(comparison.failed)


@click.command(cls=Command)
@click.argument("task")
@click.option("--rates", metavar="A,B,…", help="the grid of rates  [default: SGD's seven]")
@options(skip=["task", "lr"], method="alrao")
def triangle(settings: Settings, rates: str | None, spread: Spread, roots: list[Path]) -> None:
    """Train Alrao in every interval of a grid of rates.

    Where both ends of an interval are equal, SGD is trained at that rate (Adam with --method alrao-adam).
    """
    grid = GRID if rates is None else [parse_rate(rate) for rate in words_of(rates)]
    runs = Triangle(settings, grid, roots=roots)
    train_missing(runs, spread)
    out.print(triangle_table(runs))
    fail_if(runs.failed)
