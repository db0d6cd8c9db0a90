"""The tasks, by name."""

from __future__ import annotations

from importlib import import_module

from ..errors import unknown
from .task import Task

TASKS = {
    "digits": ("tasks.images", "Digits"),
    "cifar10": ("tasks.images", "Cifar10"),
    "imagenet": ("tasks.folders", "ImageNet"),
    "imagefolder": ("tasks.folders", "ImageFolder"),
    "ptb": ("tasks.text", "PennTreebank"),
    "shakespeare": ("tasks.text", "Shakespeare"),
    "text": ("tasks.text", "Text"),
    "regression": ("tasks.tables", "Regression"),
    "autoencoder": ("tasks.images", "Autoencoder"),
    "cancer": ("tasks.tables", "Cancer"),
    "wine": ("tasks.tables", "Wine"),
    "picture": ("tasks.tables", "Picture"),
    "patches": ("tasks.tables", "Patches"),
    "finetune-digits": ("tasks.images", "FinetuneDigits"),
    "finetune-cifar10": ("tasks.images", "FinetuneCifar10"),
    "pendulum": ("rl.tasks", "Pendulum"),
    "lunarlander": ("rl.tasks", "LunarLander"),
}
"""Module and class of each task; imported on demand."""


def get_task(name: str) -> Task:
    """Return the task of a name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, kind = TASKS[name]
    task: Task = getattr(import_module(f"..{module}", __name__), kind)()
    task.name = name
    return task
