"""What is seen in the terminal: a progress bar for a run, a live table for many, tables at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import alrao
from alrao.model import posterior_bar

from .runset import Planned, RunSet
from .table import Group, Row, label, spread
from .training import Moment

__all__ = ["TrainingBar", "comparison_table", "describe", "live_table", "run_shown"]

AS_PERCENT = ("accuracy",)
DIGITS = {"return": 1}
"""Behind the decimal point; three elsewhere."""


def divergence(result: dict[str, Any]) -> str:
    """How a run failed."""
    step = result["diverged_at"]
    return f"diverged at step {step}" if step else "diverged (no finite validation loss)"


def measure_text(name: str, value: float | None) -> str:
    """A measure for reading: accuracy in per cent."""
    return f"{name} {value_text(name, value)}"


def value_text(name: str, value: float | None) -> str:
    """Its value alone."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if name in AS_PERCENT else f"{value:.4g}"


def _values(measures: dict[str, float | None]) -> str:
    return ", ".join(value_text(*item) for item in measures.items())


class TrainingBar:
    """A progress bar over the steps of a run, with its losses and the posterior; a line for each epoch.

    Args:
        console: where it is drawn. Where that is no terminal, only the lines are printed.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar: Any = None
        self._last: dict[str, Any] | None = None

    def __enter__(self) -> TrainingBar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, moment: Moment) -> None:
        """Show where the run stands."""
        if self._bar is None:
            total = moment.epochs * moment.steps
            self._bar = self.progress.add_task("", total=total, epoch="", state="")
        if moment.last is not None and moment.last is not self._last:
            self._last = moment.last
            self.epoch(moment.last)
        if self.console.is_terminal and not self.progress.finished:
            state = moment.shown or f"loss {moment.loss:.4g}"
            if moment.last is not None:
                state += f"  valid {_values(moment.last['valid'])}"
            if isinstance(moment.learner.model, alrao.Alrao):
                low, *_, high = moment.learner.rates or [0.0, 0.0]
                state += f"  {low:.3g} |{posterior_bar(moment.learner.model.posterior)}| {high:.3g}"
            self.progress.update(
                self._bar,
                completed=(moment.epoch - 1) * moment.steps + moment.step,
                epoch=f"{moment.epoch}/{moment.epochs}",
                state=state,
            )

    def epoch(self, line: dict[str, Any]) -> None:
        """Print the line of an epoch."""
        parts = [f"epoch {line['epoch']:>3}", f"train {_values(line['train'])}"]
        parts += [f"{part} {_values(line[part])}" for part in ("valid", "test")]
        self.progress.console.print("  ".join(parts), highlight=False)


def describe(console: Console, result: dict[str, Any]) -> None:
    """Print what came out of a run."""
    if result["status"] != "finished":
        console.print(divergence(result), style="red")
    if result["test"] is not None:
        values = ", ".join(measure_text(*item) for item in result["test"].items())
        console.print(
            f"test, at the best epoch on validation ({result['best_epoch']}): {values}", highlight=False
        )


def ended(planned: Planned, error: str | None) -> str:
    """A line about a run that ended."""
    settings, result = planned.settings, planned.directory.result
    schedule = "" if settings.schedule == "none" else f", {settings.schedule}"
    name = f"{label(settings.words())}{schedule}, seed {settings.seed}"
    if error is not None or result is None:
        return f"{name}: failed: {error}"
    if result["status"] != "finished":
        return f"{name}: {divergence(result)}"
    return f"{name}: test " + ", ".join(measure_text(*item) for item in result["test"].items())


def live_table(runs: RunSet) -> RenderableType:
    """Where all runs stand, read from their directories."""
    table = Table(title=f"{len(runs.planned)} runs")
    for column in ("method", "seed", "epoch", "validation", "state"):
        table.add_column(column, justify="left" if column in ("method", "state") else "right")
    waiting = 0
    for path, planned in list(runs.planned.items()):  # more are planned while this is drawn
        directory = planned.directory
        lines, result = directory.metrics(), directory.result
        if not lines and result is None and path not in runs.failed:
            waiting += 1
            continue
        state = Text("running", "yellow")
        if path in runs.failed:
            state = Text("failed", "red")
        elif result is not None:
            failed = result["status"] != "finished"
            state = Text(divergence(result), "red") if failed else Text("done", "green")
        last = lines[-1]["valid"] if lines else {}
        name, value = next(iter(last.items()), ("", None))
        shown = measure_text(name, value) if last else ""
        epoch = f"{len(lines)}/{planned.settings.epochs}"
        table.add_row(label(planned.settings.words()), str(planned.settings.seed), epoch, shown, state)
    return Stack(table, Text(f"{waiting} waiting", "dim")) if waiting else table


def run_shown(runs: RunSet, jobs: int, console: Console) -> None:
    """Run what is missing, before the user's eyes: a live table, or a line for each run that ends."""
    if console.is_terminal:
        with Live(
            get_renderable=lambda: live_table(runs), console=console, refresh_per_second=1, transient=True
        ):
            runs.run(jobs)
    else:
        runs.run(
            jobs, lambda planned, error: console.print(ended(planned, error), soft_wrap=True, markup=False)
        )


def columns(measures: Sequence[str]) -> list[str]:
    """Headings of the measures' columns."""
    return [f"{name} %" if name in AS_PERCENT else f"test {name}" for name in measures]


def digits(measure: str) -> int:
    """How many a measure is shown with, behind the decimal point."""
    return DIGITS.get(measure, 3)


def cells(row: Row, measures: Iterable[str]) -> list[str]:
    """A row's measures, mean ± deviation."""
    return [
        spread(row.values("test", name), 1, 100.0)
        if name in AS_PERCENT
        else spread(row.values("test", name), digits(name))
        for name in measures
    ]


def row_name(row: Row) -> str:
    """A row's method, for reading."""
    if row.searched > 1:
        return f"sgd@{row.label.partition('@')[2]}, best of {row.searched}"
    return row.label


def comparison_table(group: Group) -> Table:
    """The rows of the paper's table, and every other method."""
    table = Table(
        title=Text(group.title),
        padding=(0, 1, 0, 0),  # without the left side, two measures fit into 80 columns
        caption="test figures at the best epoch on validation; mean ± standard deviation over seeds;\n"
        "to tune: runs that it takes to find the rate",
    )
    failing = ["failed"] if group.failures else []  # where there is room for it, names of methods are whole
    table.add_column("method", overflow="fold")
    for heading in [*columns(group.measures), "seeds", *failing, "s a run", "to tune"]:
        table.add_column(heading, justify="right", no_wrap=True)

    def failed(row: Row) -> list[str]:
        return [str(len(row.failures) or "") for _ in failing]

    for row in group.rows:
        style = "bold green" if row.label.startswith("alrao") else None
        table.add_row(
            row_name(row), *cells(row, group.measures), str(len(row.runs)), *failed(row),
            f"{row.seconds:.1f}", str(row.searched), style=style,
        )  # fmt: skip
    if group.grid:
        table.add_section()
        for row in group.grid:
            found = cells(row, group.measures) if row.good else ["diverged", *["–"] * len(group.measures[1:])]
            table.add_row(
                row.label, *found, str(len(row.runs)), *failed(row), f"{row.seconds:.1f}", "", style="dim"
            )
    return table
