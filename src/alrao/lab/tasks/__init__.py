"""The tasks, by name."""

from __future__ import annotations

from importlib import import_module

from ..errors import unknown
from .task import Budget, Problem, Task, Trainable

__all__ = ["TASKS", "Budget", "Problem", "Task", "Trainable", "get_task"]

# Imported when asked for: some need packages that not everyone has.
TASKS = {
    "digits": ("digits", "Digits"),
    "cifar10": ("cifar10", "Cifar10"),
    "imagenet": ("imagenet", "ImageNet"),
    "imagefolder": ("imagefolder", "ImageFolder"),
    "ptb": ("text", "PennTreebank"),
    "text": ("text", "Text"),
    "regression": ("regression", "Regression"),
    "autoencoder": ("autoencoder", "Autoencoder"),
    "pendulum": ("reinforcement", "Pendulum"),
    "lunarlander": ("reinforcement", "LunarLander"),
}


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        LabError: there is none.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, kind = TASKS[name]
    task: Task = getattr(import_module(f".{module}", __name__), kind)()
    return task
