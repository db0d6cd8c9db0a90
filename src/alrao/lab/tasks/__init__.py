"""The tasks, by name."""

from __future__ import annotations

from importlib import import_module

from ..errors import unknown
from .task import Budget, Problem, Supervised, Task, Trainable

__all__ = ["TASKS", "Budget", "Problem", "Supervised", "Task", "Trainable", "get_task"]

# Imported when asked for: some need packages that not everyone has.
TASKS = {
    "digits": ("tasks.digits", "Digits"),
    "cifar10": ("tasks.cifar10", "Cifar10"),
    "imagenet": ("tasks.imagenet", "ImageNet"),
    "imagefolder": ("tasks.imagefolder", "ImageFolder"),
    "ptb": ("tasks.text", "PennTreebank"),
    "text": ("tasks.text", "Text"),
    "regression": ("tasks.regression", "Regression"),
    "autoencoder": ("tasks.autoencoder", "Autoencoder"),
    "pendulum": ("rl.tasks", "Pendulum"),
    "lunarlander": ("rl.tasks", "LunarLander"),
}


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        LabError: there is none.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, kind = TASKS[name]
    task: Task = getattr(import_module(f"..{module}", __name__), kind)()
    return task
