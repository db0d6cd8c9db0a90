"""What is shown in the terminal: a progress bar for a run, a live table for many, tables at the end."""

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
from alrao.posterior import posterior_bar

from ..loop import Loop
from ..resolve import divergence, label
from ..runset import Planned, RunSet, Triangle
from ..settings import spelled
from ..spread import Spread
from ..store import PARTS
from ..table import Experiment
from .cells import columns, data_notes, measure_text, not_below_zero, shown

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Print a line that may hold a user's names: it is neither wrapped nor read as markup."""
    out.print(line, soft_wrap=True, markup=False)


def warn(line: str, style: str | None = None) -> None:
    """Print such a line to the standard error."""
    err.print(line, soft_wrap=True, markup=False, style=style)


def train_missing(runs: RunSet, spread: Spread) -> None:
    """Train the missing runs and show their progress: a live table, or a line for each run that ends."""
    if out.is_terminal:
        with Live(get_renderable=lambda: live_table(runs), console=out, refresh_per_second=1, transient=True):
            runs.run(spread)
    else:
        runs.run(spread, lambda planned, error: say(ended(planned, error)))


CAPTION = """test figures at the best epoch on validation; mean ± standard deviation over seeds;
runs to tune: runs that it takes to find the rate"""


def plain_table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Text]], left: int = 1, **options: Any
) -> Table:
    """Return a table, with ``left`` columns aligned to the left and the others to the right."""
    table = Table(**options)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


class TrainingBar(Progress):
    """A progress bar over the steps of a run, with its losses and the posterior; a line for each epoch.

    On a console that is no terminal, only the lines are printed.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("step"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._last: dict[str, Any] | None = None
        self._told = False

    def data(self, about: dict[str, Any]) -> None:
        """Print once what the run trains on."""
        if not self._told:
            self._told = True
            for line in data_lines(about):
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, loop: Loop) -> None:
        self.data(loop.problem.about)
        if not self.tasks:
            self.add_task("", total=loop.epochs * loop.problem.steps, epoch="", state="")
        if loop.lines and loop.lines[-1] is not self._last:
            self._last = loop.lines[-1]
            self.epoch(self._last)
        if self.console.is_terminal and not self.finished:
            loss = loop.mean_loss
            state = loop.problem.status(None if loss is None else not_below_zero(loss))
            if isinstance(loop.learner.model, alrao.Alrao):
                low, *_, high = loop.learner.rates or [0.0, 0.0]
                bar = posterior_bar(loop.learner.model.posterior)
                state += f"  copies at {low:.1g} |{bar}| {high:.1g}"
            epoch = f"{loop.progress.epoch}/{loop.epochs}"
            self.update(self.task_ids[0], completed=loop.progress.total, epoch=epoch, state=state)

    def epoch(self, line: dict[str, Any]) -> None:
        parts = {part: line.get(part, {}).items() for part in PARTS}
        said = [f"{part} {', '.join(measure_text(*item) for item in items)}" for part, items in parts.items()]
        self.console.print("  ".join([f"epoch {line['epoch']:>3}", *said]), highlight=False, soft_wrap=True)


def data_lines(about: dict[str, Any]) -> list[str]:
    """Return lines about the data of a run: its parts, its target, and whatever was missing or left out."""
    labels = about.get("labels")
    few = labels is not None and len(labels) <= 10
    classes = "" if labels is None else f" ({len(labels)} classes{': ' + ', '.join(labels) if few else ''})"
    target = f"; target {about['target']}{classes}" if "target" in about else ""
    sizes = ", ".join(f"{about[part]} {part}" for part in PARTS if part in about)
    lines = [f"data: {about['source']}{target}; {sizes}"] if "source" in about else []
    return lines + [f"{what}: {which}" for what, which in data_notes(about).items()]


def describe(console: Console, result: dict[str, Any]) -> None:
    """Print the result of a run."""
    if result["status"] != "finished":
        console.print(divergence(result["diverged_at"]), style="red")
    if result["best_epoch"] is not None:
        values = ", ".join(measure_text(*item) for item in result["test"].items())
        console.print(
            f"test, at the best epoch on validation ({result['best_epoch']}): {values}",
            highlight=False,
            soft_wrap=True,
        )


def ended(planned: Planned, error: str | None) -> str:
    """Return a line about a run that ended."""
    settings, result = planned.settings, planned.run.result
    schedule = "" if settings.schedule == "none" else f", {settings.schedule}"
    name = f"{label(settings)}{schedule}, seed {settings.seed}"
    if error is not None or result is None:
        return f"{name}: failed: {error}"
    if result["status"] != "finished":
        return f"{name}: {divergence(result['diverged_at'])}"
    return f"{name}: test " + ", ".join(measure_text(*item) for item in result["test"].items())


def live_table(runs: RunSet) -> RenderableType:
    """Return a table of the progress of all runs, read from their directories."""
    rows: list[list[str | Text]] = []
    waiting = 0
    for path, planned in list(runs.planned.items()):  # more are planned while this is drawn
        lines, result = planned.run.metrics(), planned.run.result
        if not lines and result is None and path not in runs.failed:
            waiting += 1
            continue
        state = Text("running", "yellow")
        if path in runs.failed:
            state = Text("failed", "red")
        elif result is not None:
            failed = result["status"] != "finished"
            state = Text(divergence(result["diverged_at"]), "red") if failed else Text("done", "green")
        last = lines[-1]["valid"] if lines else {}
        name, value = next(iter(last.items()), ("", None))
        shown = measure_text(name, value) if last else ""
        epoch = f"{len(lines)}/{planned.settings.epochs}"
        rows.append([label(planned.settings), str(planned.settings.seed), epoch, shown, state])
    heads = ["method", "seed", "epoch", "validation", "state"]
    table = plain_table(heads, rows, title=f"{len(runs.planned)} runs")
    return Stack(table, Text(f"{waiting} waiting", "dim")) if waiting else table


def comparison_table(experiment: Experiment) -> Table:
    """Return the rows of the paper's table, and every other method."""
    note, failures = experiment.note, experiment.failures
    table = Table(
        title=Text(experiment.title),
        padding=(0, 1, 0, 0),  # without the left side, two measures fit into 80 columns
        caption=f"{CAPTION};\n{note}" if note else CAPTION,
    )
    failing = ["failed"] if failures else []  # where there is room for it, names of methods are whole
    table.add_column("method", overflow="fold")
    heads = [*columns(experiment.measures), "seeds", *failing, "seconds", "runs to tune"]
    for heading in heads:
        folded = heading == "runs to tune"
        table.add_column(Text(heading), justify="right", no_wrap=not folded, max_width=7 if folded else None)
    looks = ["bold green" if ours else "" for ours in experiment.rows["ours"]]
    rows = shown(experiment, experiment.rows).assign(style=looks)
    grid = shown(experiment, experiment.grid).assign(style="dim", **{"runs to tune": ""})
    for some in (rows, grid):
        for _, row in some.replace({"failed": {"0": ""}}).iterrows():
            table.add_row(Text(row["method"]), *row[heads], style=row["style"])
        table.add_section()
    return table


def triangle_table(triangle: Triangle) -> Table:
    """Return the first measure on the test data at the best epoch; ``×`` where the run diverged."""
    results = {ends: planned.run.result for ends, planned in triangle.cells.items()}
    measure = next((result["measures"][0] for result in results.values() if result), "loss")

    def cell(ends: tuple[float, float]) -> str:
        if ends not in results:
            return ""
        if (result := results[ends]) is None:
            return "failed" if triangle.cells[ends].run.path in triangle.failed else "–"
        value = result["test"].get(measure) if result["status"] == "finished" else None
        return "×" if value is None else f"{value:.3f}"

    names = [spelled(rate) for rate in triangle.rates]
    rows = [[spelled(low), *(cell((low, high)) for high in triangle.rates)] for low in triangle.rates]
    title, caption = f"test {measure} for the rates from … to …", "the diagonal is one rate for all"
    return plain_table(["from \\ to", *names], rows, title=title, caption=caption)
