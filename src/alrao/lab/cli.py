"""The command ``alrao``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from .cli_report import command_line, make_report, report
from .cli_reproduce import reproduce
from .cli_suite import suite
from .errors import LabError, unknown
from .options import collect, jobs_option, out_option, results_option, roots_of, settings_options

if TYPE_CHECKING:
    from .runset import RunSet  # torch takes seconds to import; --help should not

__all__ = ["cli", "main"]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Commands(click.Group):
    """A group whose unknown commands get a suggestion."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command, or say which one was meant."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="alrao")
def cli() -> None:
    """Train neural networks without choosing a learning rate, and compare ways to do so."""


cli.add_command(report)
cli.add_command(reproduce)
cli.add_command(suite)


@cli.command()
@click.argument("task")
@settings_options(skip=["task"])
@out_option()
@results_option()
def train(task: str, out_dir: str, results: str, **values: Any) -> None:
    """Train one network on TASK. The same command goes on where it was interrupted."""
    from .display import TrainingBar, describe
    from .resolve import refuse_idle
    from .run import run

    settings = collect({"task": task, **values})
    refuse_idle(settings)
    with TrainingBar(out) as bar:
        directory = run(settings, roots_of(out_dir, results), bar)
        lines = directory.metrics()
        if lines:
            bar.epoch(lines[-1])
    result = directory.result
    assert result is not None
    describe(out, result)
    out.print(f"run directory: {directory.path}", soft_wrap=True, markup=False)


@cli.command()
@click.argument("task")
@click.option(
    "--methods", default="alrao,sgd,adam", show_default=True, metavar="A,B,…", help="methods to compare"
)
@click.option(
    "--seeds", type=click.IntRange(1), metavar="N", help="runs of each method  [default: the budget's]"
)
@click.option(
    "--grid-seeds", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="runs of each rate of SGD's grid; the best gets all seeds",
)  # fmt: skip
@jobs_option
@settings_options(skip=["task", "method", "seed"])
@out_option()
@results_option()
def compare(
    task: str,
    methods: str,
    seeds: int | None,
    grid_seeds: int,
    jobs: int,
    out_dir: str,
    results: str,
    **values: Any,
) -> None:
    """Train with several methods and seeds on TASK, and print the paper's table.

    Finished runs are not repeated. Which epoch and which of SGD's rates is best is chosen on the validation
    data; the figures are those on the test data.
    """
    from .compare import Comparison
    from .display import comparison_table
    from .resolve import resolve
    from .table import groups

    settings = collect({"task": task, **values})
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise LabError("--methods must name at least one method")
    kind, _ = resolve(settings)
    count = seeds or kind.budgets[settings.budget].seeds
    roots = roots_of(out_dir, results)
    comparison = Comparison(settings, names, seeds=count, grid_seeds=grid_seeds, roots=roots)
    _run_all(comparison, jobs)
    found, _ = groups(comparison.directories)
    for group in found:
        out.print(comparison_table(group))
        for failure in group.failures:
            out.print(failure, style="red", markup=False)
    directories = [directory.path for directory in comparison.directories]
    make_report(directories, Path(out_dir) / f"report-{settings.task}.html", command_line())
    _report_failures(comparison)


@cli.command()
@click.argument("task")
@click.option("--rates", metavar="A,B,…", help="the grid of rates  [default: SGD's seven]")
@jobs_option
@settings_options(skip=["task", "lr"])
@out_option()
@results_option()
def triangle(task: str, rates: str | None, jobs: int, out_dir: str, results: str, **values: Any) -> None:
    """Train Alrao on TASK in every interval of a grid of rates, SGD where both ends are equal."""
    from .methods import GRID
    from .triangle import Triangle

    settings = collect({"task": task, **values})
    grid = GRID if rates is None else tuple(rate.strip() for rate in rates.split(","))
    runs = Triangle(settings, grid, roots=roots_of(out_dir, results))
    _run_all(runs, jobs)
    out.print(runs.table())
    _report_failures(runs)


def _run_all(runs: RunSet, jobs: int) -> None:
    """Run what is missing, before the user's eyes."""
    from .display import run_shown

    run_shown(runs, jobs, out)


def _report_failures(runs: RunSet) -> None:
    for path, error in runs.failed.items():
        err.print(f"failed: {path}: {error}", style="red", soft_wrap=True, markup=False)
    if runs.failed:
        raise SystemExit(1)


paths_argument = click.argument(
    "paths", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path)
)


def _places(paths: tuple[Path, ...]) -> list[Path]:
    places = list(paths) or [path for path in (Path("runs"), Path("results")) if path.is_dir()]
    if not places:
        raise LabError("no runs here: neither runs/ nor results/ exists; name a directory that has some")
    return places


@cli.command()
@paths_argument
@click.option("--markdown", metavar="FILE", help="write a page of the documentation instead")
def table(paths: tuple[Path, ...], markdown: str | None) -> None:
    """Print the tables of all finished runs below PATHS (default: runs and results)."""
    from .display import comparison_table
    from .markdown import page
    from .store import find_runs, replace_file
    from .table import groups

    found, left_out = groups(find_runs(_places(paths)))
    if markdown is not None:
        content = page(found).encode()
        replace_file(Path(markdown), lambda file: file.write(content))
    else:
        for group in found:
            out.print(comparison_table(group))
    for line in left_out:
        err.print(f"left out: {line}", soft_wrap=True, markup=False)


@cli.command()
@paths_argument
@click.option("--results", default="results", show_default=True, metavar="DIR", help="where they are kept")
def keep(paths: tuple[Path, ...], results: str) -> None:
    """Copy finished runs below PATHS (default: runs), without checkpoints, to a directory to commit."""
    from .keep import keep as copy

    count, damaged = copy(paths or [Path("runs")], Path(results))
    out.print(f"{count} runs copied to {results}", soft_wrap=True, markup=False)
    for line in damaged:
        err.print(f"left out: {line}", soft_wrap=True, markup=False)


@cli.command("list")
def list_command() -> None:
    """List tasks, models, methods and budgets."""
    from .listing import tables

    for table in tables():
        out.print(table)


@cli.command()
def params() -> None:
    """Count the parameters of the paper's networks, plain and with Alrao, beside the paper's figures."""
    from .params import table

    out.print(table())


def main() -> None:
    """Run the command; errors of the user's making are one line and exit code 2."""
    try:
        cli.main(prog_name="alrao", standalone_mode=False)
    except LabError as error:
        _fail(str(error))
    except click.exceptions.Exit as done:
        raise SystemExit(done.exit_code) from None
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        raise SystemExit(2) from None
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        err.print("interrupted: the same command goes on from here")
        raise SystemExit(130) from None


def _fail(message: str) -> None:
    err.print(f"alrao: {' '.join(message.split())}", soft_wrap=True, markup=False)
    raise SystemExit(2) from None
