"""The command ``alrao``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from .errors import LabError, unknown
from .options import collect, settings_options
from .settings import Settings

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


out_option = click.option(
    "--out", "out_dir", default="runs", show_default=True, metavar="DIR", help="where run directories go"
)
results_option = click.option(
    "--results", default="results", show_default=True, metavar="DIR",
    help="finished runs to use as well, where it exists",
)  # fmt: skip


def _roots(out_dir: str, results: str) -> list[Path]:
    return [Path(out_dir), *([Path(results)] if Path(results).is_dir() else [])]


@cli.command()
@click.argument("task")
@settings_options(skip=["task"])
@out_option
@results_option
def train(task: str, out_dir: str, results: str, **values: Any) -> None:
    """Train one network on TASK. The same command goes on where it was interrupted."""
    from .display import TrainingBar, describe
    from .run import run

    settings = collect({"task": task, **values})
    with TrainingBar(out) as bar:
        directory = run(settings, _roots(out_dir, results), bar)
        lines = directory.metrics()
        if lines:
            bar.epoch(lines[-1])
    result = directory.result
    assert result is not None
    describe(out, result)
    out.print(f"run directory: {directory.path}", soft_wrap=True)


@cli.command()
@click.argument("task")
@click.option(
    "--methods", default="alrao,sgd,adam", show_default=True, metavar="A,B,…", help="methods to compare"
)
@click.option("--seeds", type=int, metavar="N", help="runs of each method  [default: the budget's]")
@click.option(
    "--grid-seeds",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="runs of each rate of SGD's grid; the best gets all seeds",
)
@click.option("--jobs", type=int, default=1, show_default=True, metavar="N", help="runs at a time")
@settings_options(skip=["task", "method", "seed"])
@out_option
@results_option
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
    from .display import comparison_table, live_table
    from .table import groups
    from .tasks import get_task

    settings = collect({"task": task, **values})
    if min(seeds if seeds is not None else 1, grid_seeds, jobs) < 1:
        raise LabError("--seeds, --grid-seeds and --jobs must be at least 1")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise LabError("--methods must name at least one method")
    count = seeds or get_task(task).budgets[_checked_budget(settings)].seeds
    comparison = Comparison(
        settings, names, seeds=count, grid_seeds=grid_seeds, roots=_roots(out_dir, results)
    )
    if out.is_terminal:
        with Live(
            get_renderable=lambda: live_table(comparison), console=out, refresh_per_second=1, transient=True
        ):
            comparison.run(jobs)
    else:
        comparison.run(jobs, lambda planned, error: out.print(_ended(planned, error), soft_wrap=True))
    found, _ = groups(comparison.directories)
    for group in found:
        out.print(comparison_table(group))
        for row in [*group.grid, *(row for row in group.rows if row.searched == 1)]:
            for failure in row.failures:
                out.print(failure, style="red")
    for path, error in comparison.failed.items():
        err.print(f"failed: {path}: {error}", style="red", soft_wrap=True)
    if comparison.failed:
        raise SystemExit(1)


def _checked_budget(settings: Settings) -> str:
    from .tasks import get_task

    budgets = get_task(settings.task).budgets
    if settings.budget not in budgets:
        raise unknown("budget", settings.budget, budgets)
    return settings.budget


def _ended(planned: Any, error: str | None) -> str:
    from .display import measure_text

    name = f"{planned.settings.method}, seed {planned.settings.seed}"
    if error is not None:
        return f"{name}: failed: {error}"
    result = planned.directory.result
    if result["status"] != "finished":
        return f"{name}: diverged at step {result['diverged_at']}"
    return f"{name}: test " + ", ".join(measure_text(*item) for item in result["test"].items())


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
        cli.main(standalone_mode=False)
    except LabError as error:
        _fail(str(error))
    except click.exceptions.Exit as done:
        raise SystemExit(done.exit_code) from None
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        err.print("interrupted: the same command goes on from here")
        raise SystemExit(130) from None


def _fail(message: str) -> None:
    err.print(f"alrao: {' '.join(message.split())}", soft_wrap=True, markup=False)
    raise SystemExit(2) from None


if __name__ == "__main__":
    main()
