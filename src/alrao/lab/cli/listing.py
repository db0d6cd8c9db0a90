"""The command ``list``: every task, model, method and budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from .terminal import out

if TYPE_CHECKING:
    from ..tasks import Task

__all__ = ["list_command"]


@click.command("list")
def list_command() -> None:
    """List tasks, models, methods and budgets."""
    from ..methods import METHODS
    from ..tasks import TASKS, get_task

    tasks = Table(title="Tasks", show_lines=True)
    for column in ("task", "data and model", "models", "budgets", "Alrao's rates, copies"):
        tasks.add_column(column)
    for name in TASKS:
        task = get_task(name)
        models = ", ".join(task.models).replace("*", "any torchvision classifier")
        low, high = task.interval
        tasks.add_row(name, task.summary, models, _budgets(task), f"{low:g}:{high:g}, {task.copies}")
    out.print(tasks)

    methods = Table(title="Methods")
    for column in ("method", "description"):
        methods.add_column(column)
    forms = {"needed": "{0}@RATE", "optional": "{0}, {0}@RATE", "never": "{0}"}
    for name, method in METHODS.items():
        form = {"frozen": "frozen@RATE:P", "sgd": "sgd, sgd@RATE"}.get(name, forms[method.rate].format(name))
        methods.add_row(form, method.summary)
    out.print(methods)


def _budgets(task: Task) -> str:
    lines = []
    for name, budget in task.budgets.items():
        size = f", {budget.train} {task.examples}" if budget.train else ""
        lines.append(f"{name}: {budget.epochs} epochs, batch {budget.batch}{size}, {budget.seeds} seeds")
    return "\n".join(lines)
