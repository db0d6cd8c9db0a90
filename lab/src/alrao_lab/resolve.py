"""Resolve settings: check them, fill in the defaults of task and method, and name runs by what differs.

Runs, methods and experiments are called the same in every table, figure and command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

from .errors import LabError, unknown
from .methods import METHODS, known_method, settle
from .settings import FIELDS, GROUPS, Interval, MethodSpec, Settings, flag
from .tasks import get_task
from .tasks.task import Budget, Task

OF_SOME_TASKS, OF_ALRAO = GROUPS["For some tasks"].split(), GROUPS["Alrao"].split()


def of_alrao(method: MethodSpec) -> bool:
    """Return whether a method takes an interval and copies."""
    return known_method(method).rate == "never"


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
    method, lr = settle(settings.method, settings.lr)
    if settings.average and method.name in ("dog", "schedulefree"):
        raise LabError(f"{method} averages its weights itself: leave --average out")
    taken = METHODS[method.name].momentum
    if settings.momentum is not None and taken == "never":
        raise LabError(f"{method} has no momentum: leave --momentum out")
    if settings.momentum == 0 and taken == "positive":
        raise LabError(f"{method} needs a momentum above 0: leave --momentum out, for its default")
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
    return task, replace(settings, **changes)


def _check(task: Task, settings: Settings) -> None:
    for name, field in FIELDS.items():
        value, choices, must = getattr(settings, name), field.metadata["choices"], field.metadata["must"]
        if isinstance(value, float) and not isfinite(value):
            raise LabError(f"{flag(name)} must be a finite number, got {value}")
        if choices and value is not None and value not in choices:
            raise unknown(f"value of {flag(name)}", str(value), choices)
        if must and value is not None and not must[1](value):
            raise LabError(f"{flag(name)} must be {must[0]}, got {value}")
        if name in OF_SOME_TASKS and name not in task.options and value != field.default:
            apply = ", ".join(sorted(task.options)).replace("_", "-") or "none"
            raise LabError(f"{flag(name)} does not apply to {task.name}; of such options, these do: {apply}")
    known = list(task.models)
    if settings.model not in (None, *known) and "*" in known:
        from .zoo.vision import classifiers

        known = [*known[:-1], *classifiers()]
    if settings.model not in (None, *known):
        raise unknown("model", str(settings.model), known)


OF_METHOD = ("method", "lr", *OF_ALRAO, "former")
SHOWN = {"lr": "{}", "copies": "{} copies", "former": "{}"}
"""How a setting of a method is shown, if not by its name."""


@lru_cache(maxsize=1024)
def _resolved(plain: Settings, amounts: Budget | None) -> Settings:
    """The defaults, which rest on the ``amounts`` of the budget."""
    found = resolve(replace(plain, model=None))[1]
    with suppress(LabError):  # of the network of another version
        found = replace(found, batch=resolve(plain)[1].batch)
    return found


def _usual(settings: Settings) -> Settings | None:
    """The settings of a run for which nothing else is given; None for a task of another version."""
    task, model, budget, method = settings.task, settings.model, settings.budget, settings.method
    plain = Settings(task=task, model=model, budget=budget, method=method)
    with suppress(LabError):
        return _resolved(plain, get_task(task).budgets.get(budget))
    return None


def unusual(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the settings that repeat a run, are not the defaults of its task and method, and have a value."""
    usual = _usual(settings)
    for name, field in FIELDS.items():
        value = getattr(settings, name)
        default = field.default if usual is None else getattr(usual, name)
        if field.metadata["repeats"] and value not in (None, "", default):
            yield name, value


def varied(settings: Settings) -> dict[str, str]:
    """Return the settings of an Alrao run that are not its method's defaults, as they are shown.

    A method that is no longer there has no defaults: all its settings are shown.
    """
    method = METHODS.get(settings.method.name)
    if method is not None and (method.rate != "never" or _usual(settings) is None):
        return {}
    found = dict(unusual(settings))
    names = [name for name in OF_METHOD if name in found and name != "method"]
    return {name: SHOWN.get(name, f"{name} {{}}").format(found[name]) for name in names}


def label(settings: Settings) -> str:
    """Return the name of a method in every table: ``SGD 0.1``, ``Alrao (0.001:1, 4 copies)``."""
    spec, shown = settings.method, varied(settings)
    name = METHODS[spec.name].title if spec.name in METHODS else spec.name
    return f"{name} {spec.rates}".strip() + (f" ({', '.join(shown.values())})" if shown else "")


OWN_DATA = ("classification", "regression", "imagefolder", "text")
"""The tasks on a user's data."""


def title(settings: Settings, source: object = None) -> str:
    """Return what the runs of an experiment have in common, and is not the default; and a user's data."""
    epochs = f"{settings.epochs} epoch{'' if settings.epochs == 1 else 's'}"
    data = f" on {source}" if settings.task in OWN_DATA and isinstance(source, str) and settings.data else ""
    shown = [f"{settings.task}{data}, {settings.model}, budget {settings.budget}, {epochs}"]
    aside = (*OF_METHOD, "task", "model", "budget", "epochs", "batch", "seed")
    shown += [f"{name.replace('_', ' ')} {value}" for name, value in unusual(settings) if name not in aside]
    return ", ".join(shown)


def divergence(step: float | None) -> str:
    """Return how a run failed: at a step, or without a finite validation loss."""
    when = f"at step {step:.0f}" if step and not isnan(step) else "(no finite validation loss)"
    return f"diverged {when}"
