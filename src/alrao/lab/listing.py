"""Tables of what there is: tasks, models, methods, budgets."""

from __future__ import annotations

from rich.table import Table

from .methods import METHODS
from .tasks import TASKS, Task, get_task

__all__ = ["tables"]


def tables() -> list[Table]:
    """The tasks and the methods."""
    return [_tasks(), _methods()]


def _tasks() -> Table:
    table = Table(title="Tasks", show_lines=True)
    for column in ("task", "what", "models", "budgets", "Alrao's rates, copies"):
        table.add_column(column)
    for name in TASKS:
        task = get_task(name)
        models = ", ".join(task.models).replace("*", "any torchvision classifier")
        low, high = task.interval
        table.add_row(name, task.summary, models, _budgets(task), f"{low:g}:{high:g}, {task.copies}")
    return table


def _budgets(task: Task) -> str:
    said = []
    for name, budget in task.budgets.items():
        size = f", {budget.train} {task.examples}" if budget.train else ""
        said.append(f"{name}: {budget.epochs} epochs, batch {budget.batch}{size}, {budget.seeds} seeds")
    return "\n".join(said)


def _methods() -> Table:
    table = Table(title="Methods")
    table.add_column("method")
    table.add_column("what")
    forms = {"needed": "{0}@RATE", "optional": "{0}, {0}@RATE", "never": "{0}"}
    for name, method in METHODS.items():
        form = "frozen@RATE:P" if name == "frozen" else forms[method.rate].format(name)
        table.add_row("sgd, sgd@RATE" if name == "sgd" else form, method.summary)
    return table
