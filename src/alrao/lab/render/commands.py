"""The commands that repeat runs, made from their settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ..errors import LabError
from ..naming import OF_METHOD, unusual
from ..settings import Settings
from ..table import Experiment
from ..tasks import get_task
from ..values import MethodSpec, spelled

MANY = 3
"""From this number of SGD's rates on, ``sgd`` selects the grid."""


def _options(settings: Settings) -> list[str]:
    """What the runs of an experiment have in common and is not the default, as options."""
    words: list[str] = []
    for name, value in unusual(settings):
        if name not in ("task", "seed", *OF_METHOD):
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return words


def _seeds(settings: Settings, count: int) -> list[str]:
    try:
        usual = get_task(settings.task).budgets[settings.budget].seeds
    except (LabError, KeyError):
        usual = None
    return [] if count == usual else ["--seeds", str(count)]


def compare_command(experiment: Experiment, names: Iterable[str]) -> str:
    """Return the ``alrao compare`` that runs the methods of some labels, Alrao's at their defaults."""
    methods = experiment.methods.loc[list(names)]
    specs: list[MethodSpec] = list(methods["spec"])
    many = sum(spec.name == "sgd" for spec in specs) >= MANY
    chosen = dict.fromkeys("sgd" if many and spec.name == "sgd" else str(spec) for spec in specs)
    words = ["compare", experiment.settings.task, "--methods", ",".join(chosen)]
    words += _seeds(experiment.settings, int(methods["seeds"].max()))
    return shlex.join(["alrao", *words, *_options(experiment.settings)])


def triangle_command(experiment: Experiment, method: str, rates: Iterable[float]) -> str:
    """Return the ``alrao triangle`` over some rates."""
    words = ["triangle", experiment.settings.task, "--rates", ",".join(map(spelled, rates))]
    words += [] if method == "alrao" else ["--method", method]  # which is its default
    return shlex.join(["alrao", *words, *_options(experiment.settings)])
