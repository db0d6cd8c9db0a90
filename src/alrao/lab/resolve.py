"""Resolve settings: check them, and fill in the defaults of the task and the method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import isfinite
from typing import Any

from .errors import LabError, unknown
from .methods import METHODS, settle
from .settings import GROUPS, Interval, MethodSpec, Settings, flag
from .tasks import Task, get_task

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "positive": (
        "copies epochs batch train_size patience clip width image_size tau threads",
        lambda value: value > 0,
    ),
    "at least 0": ("seed weight_decay", lambda value: value >= 0),
    "at least 0 and less than 1": ("dropout momentum", lambda value: 0 <= value < 1),
    "strictly between 0 and 1": ("theta", lambda value: 0 < value < 1),
}
"""What holds of the values of some settings."""
FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
OF_SOME_TASKS, OF_ALRAO = GROUPS["For some tasks"].split(), GROUPS["Alrao"].split()


def of_alrao(method: MethodSpec) -> bool:
    """Return whether a method takes an interval and copies."""
    if method.name not in METHODS:
        raise unknown("method", method.name, METHODS)
    return METHODS[method.name].rate == "never"


def refuse_idle(settings: Settings) -> None:
    """Refuse options that only Alrao has, for a single run of another method."""
    idle = [name for name in OF_ALRAO if getattr(settings, name) != FIELDS[name].default]
    if idle and not of_alrao(settings.method):
        raise LabError(
            f"{flag(idle[0])} is for Alrao's methods, and does nothing for {settings.method}: leave it out"
        )


def resolve(settings: Settings) -> tuple[Task, Settings]:
    """Return the task, and the settings with every default filled in: a run has one spelling."""
    task = get_task(settings.task)
    _check(task, settings)
    _check_model(task, settings.model)
    method, lr = settle(settings.method, settings.lr)
    _check_method(method, settings)
    changes: dict[str, Any] = {
        "method": method,
        "lr": lr,
        "model": settings.model or task.models[0],
        "epochs": settings.epochs or task.budgets[settings.budget].epochs,
        "batch": settings.batch or task.batch(settings),
    }
    changes |= {name: value for name, value in task.defaults.items() if getattr(settings, name) is None}
    if of_alrao(method):
        changes["lr"] = lr or Interval(*(task.interval if method.name == "alrao" else task.adam_interval))
        changes["copies"] = settings.copies or task.copies
        changes["evidence"] = settings.evidence or "mean"
    else:
        changes |= {name: FIELDS[name].default for name in OF_ALRAO}
    return task, dataclasses.replace(settings, **changes)


def _check(task: Task, settings: Settings) -> None:
    for name, field in FIELDS.items():
        value, choices = getattr(settings, name), field.metadata["choices"]
        if isinstance(value, float) and not isfinite(value):
            raise LabError(f"{flag(name)} must be a finite number, got {value}")
        if choices and value is not None and value not in choices:
            raise unknown(f"value of {flag(name)}", str(value), choices)
        if name in OF_SOME_TASKS and name not in task.options and value != field.default:
            apply = ", ".join(sorted(task.options)).replace("_", "-") or "none"
            raise LabError(f"{flag(name)} does not apply to {task.name}; of such options, these do: {apply}")
    for said, (names, holds) in RANGES.items():
        for name in names.split():
            if (value := getattr(settings, name)) is not None and not holds(value):
                raise LabError(f"{flag(name)} must be {said}, got {value}")


def _check_model(task: Task, model: str | None) -> None:
    if model is None or model in task.models:
        return
    known = list(task.models)
    if "*" in known:
        from .zoo.vision import classifiers

        known = [*known[:-1], *classifiers()]
    if model not in known:
        raise unknown("model", model, known)


def _check_method(method: MethodSpec, settings: Settings) -> None:
    if settings.average and method.name in ("dog", "schedulefree"):
        raise LabError(f"{method} averages its weights itself: leave --average out")
    taken = METHODS[method.name].momentum
    if settings.momentum is not None and taken == "never":
        raise LabError(f"{method} has no momentum: leave --momentum out")
    if settings.momentum == 0 and taken == "positive":
        raise LabError(f"{method} needs a momentum above 0: leave --momentum out, for its default")
