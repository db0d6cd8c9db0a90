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
    "wikitext": ("tasks.text", "WikiText"),
    "names": ("tasks.text", "Names"),
    "finetune-wikitext": ("tasks.text", "FinetuneWikiText"),
    "text": ("tasks.text", "Text"),
    "regression": ("tasks.tables", "Regression"),
    "classification": ("tasks.tables", "OwnClasses"),
    "cancer": ("tasks.tables", "Cancer"),
    "wine": ("tasks.tables", "Wine"),
    "picture": ("tasks.tables", "Picture"),
    "finetune-cifar10": ("tasks.images", "FinetuneCifar10"),
    "classes": ("tasks.made", "Classes"),
    "quantiles": ("tasks.made", "Quantiles"),
    "hastie": ("tasks.made", "Hastie"),
    "checker": ("tasks.made", "Checker"),
    "friedman": ("tasks.made", "Friedman"),
    "waves": ("tasks.made", "Waves"),
    "flower": ("tasks.made", "Flower"),
    "cora": ("tasks.graphs", "Cora"),
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
