"""What runs, methods and experiments are called, the same in every table, figure and command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import isnan
from typing import Any

from .errors import LabError
from .methods import METHODS
from .resolve import FIELDS, OF_ALRAO, resolve
from .settings import MethodSpec, Settings
from .tasks import Budget, get_task

OF_METHOD = ("method", "lr", *OF_ALRAO, "former")
SHOWN = {"lr": "{}", "copies": "{} copies", "former": "{}"}
"""How a setting of a method is shown, if not by its name."""


@lru_cache(maxsize=1024)
def _resolved(
    task: str, model: str | None, budget: str, method: MethodSpec, amounts: Budget | None
) -> Settings:
    """The settings of a run for which nothing else is given; ``amounts`` is the budget that they rest on."""
    plain = Settings(task=task, budget=budget, method=method)
    found = resolve(plain)[1]
    try:
        return replace(found, batch=resolve(replace(plain, model=model))[1].batch)
    except LabError:  # the network of another version
        return found


def _usual(task: str, model: str | None, budget: str, method: MethodSpec) -> Settings | None:
    """The same; None for a task of another version."""
    try:
        return _resolved(task, model, budget, method, get_task(task).budgets.get(budget))
    except LabError:
        return None


def unusual(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the settings that repeat a run, are not the defaults of its task and method, and have a value."""
    usual = _usual(settings.task, settings.model, settings.budget, settings.method)
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
    if method is not None and method.rate != "never":
        return {}
    usual = _usual(settings.task, settings.model, settings.budget, settings.method)
    if method is not None and usual is None:
        return {}
    found = dict(unusual(settings))
    names = [name for name in OF_METHOD if name in found and name != "method"]
    return {name: SHOWN.get(name, f"{name} {{}}").format(found[name]) for name in names}


def label(settings: Settings) -> str:
    """Return the name of a method in every table: ``SGD 0.1``, ``Alrao (0.001:1, 4 copies)``."""
    spec, shown = settings.method, varied(settings)
    name = METHODS[spec.name].title if spec.name in METHODS else spec.name
    return f"{name} {spec.rates}".strip() + (f" ({', '.join(shown.values())})" if shown else "")


def title(settings: Settings) -> str:
    """Return what the runs of an experiment have in common, and is not the default."""
    epochs = f"{settings.epochs} epoch{'' if settings.epochs == 1 else 's'}"
    shown = [f"{settings.task}, {settings.model}, budget {settings.budget}, {epochs}"]
    aside = (*OF_METHOD, "task", "model", "budget", "epochs", "batch", "seed")
    shown += [f"{name.replace('_', ' ')} {value}" for name, value in unusual(settings) if name not in aside]
    return ", ".join(shown)


def divergence(step: float | None) -> str:
    """Return how a run failed: at a step, or without a finite validation loss."""
    when = f"at step {step:.0f}" if step and not isnan(step) else "(no finite validation loss)"
    return f"diverged {when}"
