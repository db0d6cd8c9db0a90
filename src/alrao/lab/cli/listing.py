"""The command ``list``: every task, model, method and budget."""

from __future__ import annotations

import click
from rich.table import Table

from .terminal import out

__all__ = ["list_command"]


@click.command("list")
def list_command() -> None:
    """List tasks, models, budgets and methods."""
    from ..methods import METHODS
    from ..tasks import TASKS, get_task

    tasks = Table(title="Tasks and their models, the default first", box=None, padding=(0, 2, 0, 0))
    budgets = Table(title="Budgets", box=None, padding=(0, 2, 0, 0))
    for column in ("task", "data", "models"):
        tasks.add_column(column, overflow="fold")
    for column in ("task", "budget", "epochs", "batch", "training set", "seeds", "Alrao's rates", "copies"):
        budgets.add_column(column, justify="left" if column in ("task", "budget") else "right")
    for name in TASKS:
        task = get_task(name)
        tasks.add_row(name, task.summary, ", ".join(task.models).replace("*", "any torchvision classifier"))
        rates = "{:g}:{:g}".format(*task.interval)
        for kind, budget in task.budgets.items():
            size = f"{budget.train:,}{task.unit}" if budget.train else "all"
            row = [name, kind, budget.epochs, budget.batch, size, budget.seeds, rates, task.copies]
            budgets.add_row(*map(str, row))
    methods = Table(title="Methods", box=None, padding=(0, 2, 0, 0))
    for column in ("method", "description"):
        methods.add_column(column)
    forms = {"needed": "{0}@RATE", "optional": "{0}, {0}@RATE", "never": "{0}", "none": "{0}"}
    for name, method in METHODS.items():
        form = {"frozen": "frozen@RATE:P", "sgd": "sgd, sgd@RATE"}.get(name, forms[method.rate].format(name))
        methods.add_row(form, method.summary)
    for table in (tasks, budgets, methods):
        out.print(table)
        out.print()
