"""The commands that repeat runs, put together from their settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ..errors import LabError
from ..settings import Settings
from ..table import OF_METHOD, Experiment, task_of
from ..values import MethodSpec, spelled

__all__ = ["compare_command", "triangle_command"]

MANY = 3
"""From this number of SGD's rates on, ``sgd`` selects the grid."""


def _options(settings: Settings) -> list[str]:
    """What the runs of an experiment have in common and is not the default, as options."""
    words: list[str] = []
    usual = _usual(settings)
    for name, field in Settings.__dataclass_fields__.items():
        value = getattr(settings, name)
        plain = (None, "", field.default, usual.get(name))
        if name in ("task", "seed", *OF_METHOD) or not field.metadata["repeats"] or value in plain:
            continue
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


def _usual(settings: Settings) -> dict[str, Any]:
    """The task's defaults."""
    task = task_of(settings)
    if task is None or settings.budget not in task.budgets:
        return {}
    try:
        batch = task.batch(Settings(task=task.name, budget=settings.budget, model=settings.model))
    except (LabError, KeyError):
        return {}
    epochs = task.budgets[settings.budget].epochs
    return {"model": task.models[0], "epochs": epochs, "batch": batch, **task.defaults}


def _seeds(experiment: Experiment, count: int) -> list[str]:
    task = task_of(experiment.settings)
    budget = task.budgets.get(experiment.settings.budget) if task is not None else None
    return [] if budget is not None and count == budget.seeds else ["--seeds", str(count)]


def compare_command(experiment: Experiment, names: Iterable[str]) -> str:
    """Return the ``alrao compare`` that runs the methods of some labels, Alrao's at their defaults."""
    methods = experiment.methods.loc[list(names)]
    specs: list[MethodSpec] = list(methods["spec"])
    many = sum(spec.name == "sgd" for spec in specs) >= MANY
    chosen = dict.fromkeys("sgd" if many and spec.name == "sgd" else str(spec) for spec in specs)
    words = ["compare", experiment.settings.task, "--methods", ",".join(chosen)]
    words += _seeds(experiment, int(methods["seeds"].max()))
    return shlex.join(["alrao", *words, *_options(experiment.settings)])


def triangle_command(experiment: Experiment, method: str, rates: Iterable[float]) -> str:
    """Return the ``alrao triangle`` over some rates."""
    words = ["triangle", experiment.settings.task, "--rates", ",".join(map(spelled, rates))]
    words += [] if method == "alrao" else ["--method", method]
    return shlex.join(["alrao", *words, *_options(experiment.settings)])
