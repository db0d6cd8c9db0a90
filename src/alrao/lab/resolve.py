"""From what a user said to the settings of one run, complete and in one spelling."""

from __future__ import annotations

import dataclasses
from math import isfinite

from .errors import LabError, unknown
from .methods import METHODS, settle
from .settings import Settings
from .tasks import Task, get_task
from .values import Interval, MethodSpec
from .zooming import Zooming

__all__ = ["OF_ALRAO", "of_alrao", "refuse_idle", "resolve"]

POSITIVE = (
    "copies",
    "epochs",
    "batch",
    "train_size",
    "patience",
    "clip",
    "width",
    "image_size",
    "tau",
    "threads",
)
OF_SOME_TASKS = ("width", "level", "dropout", "dropout_everywhere", "target", "image_size", "tau", "workers")
OF_ALRAO = ("copies", "averaging", "theta", "evidence", "zoom", "body_lr", "normalise")


def of_alrao(method: MethodSpec) -> bool:
    """Return whether a method takes an interval and copies.

    Raises:
        LabError: there is no such method.
    """
    if method.name not in METHODS:
        raise unknown("method", method.name, METHODS)
    return METHODS[method.name].rate == "never"


def refuse_idle(settings: Settings) -> None:
    """Refuse options that only Alrao has, for a single run of another method.

    Raises:
        LabError: there are some.
    """
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    idle = [name for name in OF_ALRAO if getattr(settings, name) != fields[name]]
    if idle and not of_alrao(settings.method):
        flag = f"--{idle[0].replace('_', '-')}"
        raise LabError(f"{flag} is for Alrao's methods, and does nothing for {settings.method}: leave it out")


def resolve(settings: Settings) -> tuple[Task, Settings]:
    """The task, and the settings with every default filled in: two spellings of one run become equal.

    Raises:
        LabError: a name is unknown, a value out of range, or an option does not apply.
    """
    task = get_task(settings.task)
    _check(settings, task)
    budget = task.budgets[settings.budget]
    method, lr = settle(settings.method, settings.lr)
    _check_momentum(method, settings.momentum)
    if settings.average and method.name in ("dog", "schedulefree"):
        raise LabError(f"{method} has an average of its own: leave --average out")
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    changes: dict[str, object] = {
        "method": method,
        "lr": lr,
        "model": settings.model or task.models[0],
        "epochs": settings.epochs or budget.epochs,
        "batch": settings.batch or task.batch(settings),
    }
    changes |= {name: value for name, value in task.defaults.items() if getattr(settings, name) is None}
    if of_alrao(method):
        interval = lr or Interval(*task.interval_of(method.name))
        changes["lr"] = interval
        changes["copies"] = settings.copies or task.copies
        changes["evidence"] = settings.evidence or METHODS[method.name].evidence
        if settings.zoom is not None or method.name == "alrao-zoom":
            changes["zoom"] = settings.zoom or Zooming()
            _check_zoom(interval, settings.copies)
    else:
        changes |= {name: defaults[name] for name in OF_ALRAO}
    return task, dataclasses.replace(settings, **changes)  # type: ignore[arg-type]


def _check_zoom(lr: Interval, copies: int | None) -> None:
    if lr.low == lr.high:
        raise LabError(
            f"Zoom narrows an interval of rates, got the rate {lr.low:g}: give two, as in --lr 1e-6:0.1"
        )
    if copies == 1:
        raise LabError("Zoom follows the posterior over several copies, got --copies 1: leave --copies out")


def _check(settings: Settings, task: Task) -> None:
    for field in dataclasses.fields(Settings):
        value, choices = getattr(settings, field.name), field.metadata["choices"]
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(value, float) and not isfinite(value):
            raise LabError(f"{flag} must be a finite number, got {value}")
        if choices and value is not None and value not in choices:
            raise unknown(f"value of {flag}", str(value), choices)
        if field.name in POSITIVE and value is not None and not value > 0:
            raise LabError(f"{flag} must be positive, got {value}")
        if field.name in OF_SOME_TASKS and field.name not in task.options and value != field.default:
            apply = ", ".join(sorted(task.options)).replace("_", "-") or "none"
            raise LabError(f"{flag} does not apply to {task.name}; of such options, these do: {apply}")
    if settings.seed < 0:
        raise LabError(f"--seed must not be negative, got {settings.seed}")
    if settings.weight_decay < 0:
        raise LabError(f"--weight-decay must not be negative, got {settings.weight_decay}")
    if settings.dropout is not None and not 0 <= settings.dropout < 1:
        raise LabError(f"--dropout must be at least 0 and less than 1, got {settings.dropout}")
    if not 0 < settings.theta < 1:
        raise LabError(f"--theta must lie strictly between 0 and 1, got {settings.theta}")
    if settings.model is not None and settings.model not in task.models:
        known = list(task.models)
        if "*" in known:
            from .zoo.vision import classifiers

            known = [*known[:-1], *classifiers()]
        if settings.model not in known:
            raise unknown("model", settings.model, known)


def _check_momentum(method: MethodSpec, momentum: float | None) -> None:
    if momentum is None:
        return
    if not 0 <= momentum < 1:
        raise LabError(f"--momentum must be at least 0 and less than 1, got {momentum}")
    taken = METHODS[method.name].momentum
    if taken == "never":
        raise LabError(f"{method} has no momentum: leave --momentum out")
    if taken == "positive" and momentum == 0:
        raise LabError(f"{method} needs a momentum above 0: leave --momentum out, for its default")
