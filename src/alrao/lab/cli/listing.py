"""The command ``list``: every task, model, method and budget."""

from __future__ import annotations

import click

from .terminal import out


@click.command("list")
def list_command() -> None:
    """List tasks, models, budgets and methods."""
    from ..methods import METHODS
    from ..render.terminal import plain_table
    from ..tasks import TASKS, get_task

    every = {name: get_task(name) for name in TASKS}
    tasks = [
        [name, task.summary, ", ".join(task.models).replace("*", "any torchvision classifier")]
        for name, task in every.items()
    ]
    budgets = []
    for name, task in every.items():
        rates = "{:g}:{:g}".format(*task.interval)
        for kind, budget in task.budgets.items():
            size = f"{budget.train:,}{task.unit}" if budget.train else "all"
            row = (name, kind, budget.epochs, budget.batch, size, budget.seeds, rates, task.copies)
            budgets.append([str(cell) for cell in row])
    forms = {"needed": "{0}@RATE", "optional": "{0}, {0}@RATE", "never": "{0}", "none": "{0}"}
    special = {"frozen": "frozen@RATE:P", "sgd": "sgd, sgd@RATE"}
    methods = [
        [special.get(name, forms[method.rate].format(name)), method.summary]
        for name, method in METHODS.items()
    ]
    heads = ["task", "budget", "epochs", "batch", "training set", "seeds", "Alrao's rates", "copies"]
    for title, columns, rows, left in (
        ("Tasks and their models, the default first", ["task", "data", "models"], tasks, 3),
        ("Budgets", heads, budgets, 2),
        ("Methods", ["method", "description"], methods, 2),
    ):
        out.print(plain_table(columns, rows, left, title=title, box=None, padding=(0, 2, 0, 0)))
        out.print()
