"""The commands that made what a figure shows, put together from the runs' settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ..errors import LabError
from ..resolve import OF_ALRAO
from ..settings import Settings
from ..tasks import get_task
from .experiments import Experiment

__all__ = ["compare_command", "triangle_command"]


def _options(settings: dict[str, Any], skip: Iterable[str]) -> list[str]:
    """What is not the default, as options."""
    said: list[str] = []
    left = {"task", "seed", *skip}
    usual = _usual(settings)
    for name, field in Settings.__dataclass_fields__.items():
        value = settings.get(name, field.default)
        plain = (None, "", field.default, usual.get(name))
        if name in left or not field.metadata["repeats"] or value in plain:
            continue
        flag = f"--{name.replace('_', '-')}"
        said += [flag] if value is True else [flag, str(value)]
    return said


def _usual(settings: dict[str, Any]) -> dict[str, Any]:
    """What the task has where the user says nothing."""
    try:
        task = get_task(settings["task"])
        budget = task.budgets[settings["budget"]]
        batch = task.batch(Settings(task=task.name, budget=settings["budget"], model=settings["model"]))
    except (LabError, KeyError):
        return {}
    return {"model": task.models[0], "epochs": budget.epochs, "batch": batch, **task.defaults}


def _command(words: Iterable[str]) -> str:
    return shlex.join(["alrao", *words])


def compare_command(experiment: Experiment, names: Iterable[str]) -> str:
    """``alrao compare`` of some methods, by their labels."""
    methods = dict.fromkeys(name.partition(" ")[0] for name in names)
    rates = [name for name in methods if name.startswith("sgd@")]
    if len(rates) > 2:
        methods = dict.fromkeys("sgd" if name in rates else name for name in methods)
    options = _options(experiment.settings, ("method", "lr", *OF_ALRAO))
    return _command(["compare", experiment.settings["task"], "--methods", ",".join(methods), *options])


def triangle_command(experiment: Experiment, method: str, rates: Iterable[str]) -> str:
    """``alrao triangle`` over some rates."""
    options = _options(experiment.settings, ("method", "lr", *OF_ALRAO))
    chosen = [] if method == "alrao" else ["--method", method]
    words = ["triangle", experiment.settings["task"], "--rates", ",".join(rates), *chosen, *options]
    return _command(words)
