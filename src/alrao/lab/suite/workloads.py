"""The workloads of the suite: networks and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..settings import Settings

__all__ = ["WORKLOADS", "Workload"]


@dataclass(frozen=True)
class Workload:
    """A network on a task: about a minute of training on one core with the budget ``mini``."""

    name: str
    what: str
    task: str
    model: str
    mini: Mapping[str, Any]
    """Settings of the budget ``mini``; ``paper`` is the task's own."""
    chosen_on: bool = False
    """Whether defaults were chosen on it."""

    def settings(self, common: Settings) -> Settings:
        """Return the settings of its runs, which go to the last epoch: all take the same number of steps."""
        settings = replace(common, task=self.task, model=self.model, experiment=f"suite-{self.name}")
        if common.budget == "mini":
            settings = replace(settings, **self.mini, patience=self.mini["epochs"])
        return settings


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "cnn", "CIFAR-10, four convolutions with BatchNorm", "cifar10", "small",
            {"epochs": 3, "train_size": 12_800}, chosen_on=True,
        ),
        Workload(
            "cnn-plain", "the same without normalisation", "cifar10", "small-nobn",
            {"epochs": 4, "train_size": 12_800}, chosen_on=True,
        ),
        Workload("lstm", "Penn Treebank's characters, LSTM", "ptb", "lstm", {"epochs": 4}, chosen_on=True),
        Workload("table", "diabetes, regression", "regression", "mlp", {"epochs": 100}, chosen_on=True),
        Workload(
            "resnet", "CIFAR-10, residual blocks with GroupNorm", "cifar10", "resnet-gn",
            {"epochs": 3, "train_size": 12_800},
        ),
        Workload("vit", "CIFAR-10, Vision Transformer", "cifar10", "vit", {"epochs": 3, "train_size": 9_600}),
        Workload(
            "transformer", "Penn Treebank's characters, Transformer", "ptb", "transformer", {"epochs": 4}
        ),
        Workload("sigmoid", "digits, two layers of sigmoid units", "digits", "sigmoid", {"epochs": 60}),
        Workload("autoencoder", "digits through twelve numbers", "autoencoder", "mlp", {"epochs": 60}),
    )
}  # fmt: skip
