"""The workloads of the suite: networks and data, and which of them defaults may be chosen on.

``workloads.csv`` has a row for each, the cheapest of each half first: its settings, the number of steps and
of evaluations, the loss of ``chance``, that of a model that knows how frequent the targets are (in bits
for characters), and the processor ``seconds`` of a run of AdamW, from whole runs where there are any, else
from its first steps and evaluations. All runs on a workload take the same number of steps.

**The rule of the budget.** All runs of all contenders take at most 12 hours on two cores. What would take
longer is cut in steps, before any run on it.

**The rule of the halves.** A workload is *held out* if its data or its kind of network was new to the project
when the suite was listed: no method of this library had ever been run on it. ``KNOWN`` names what was not
new. Nothing of this library is run on a held-out workload before its defaults are final, and then once.

**The rule of the list.** No workload whose test loss deviates by more than 5 % of the mean between the seeds
of a tuned run: of the former suite's 54, this left out everything on scikit-learn's digits (15 to 50 %), the
breast cancers (57 %), the wines (137 %) and the diabetics (17 %). Made data has a test part of 10,000 rows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from ..settings import Settings

KNOWN = {
    "data": frozenset({"cifar10", "classes", "cora", "names", "picture", "ptb", "shakespeare"}),
    "network": frozenset(
        {
            "CNN",
            "LSTM",
            "Transformer",
            "Vision Transformer",
            "deep perceptron",
            "graph convolutions",
            "n-gram perceptron",
            "perceptron",
            "residual CNN",
        }
    ),
}
"""What methods of this library had been run on before the suite was listed, or outside it since: names, by
an n-gram perceptron, among the published programs."""


@dataclass(frozen=True)
class Workload:
    """A network on a task: at most a minute of training on one core."""

    name: str
    what: str
    data: str
    network: str
    task: str
    model: str
    mini: Mapping[str, Any]
    """Its settings; with the budget ``paper`` they are the task's own."""
    chance: float
    """The test loss of a model that knows only how frequent the targets are."""
    seconds: float = 0.0
    """What a run of AdamW takes on one core, measured."""

    @property
    def chosen_on(self) -> bool:
        """Whether defaults may be chosen on it: neither its data nor its network was new."""
        return self.data in KNOWN["data"] and self.network in KNOWN["network"]

    def settings(self, common: Settings) -> Settings:
        """Return the settings of its runs, which go to the last step."""
        settings = replace(common, task=self.task, model=self.model, experiment=f"workload-{self.name}")
        if common.budget == "mini":
            settings = replace(settings, **self.mini, patience=self.mini["epochs"])
        return settings


SIZES = ("train_size", "valid_size", "test_size", "batch")


def _workload(row: Mapping[str, str]) -> Workload:
    steps, evaluations = int(row["steps"]), int(row["evaluations"])
    mini: dict[str, Any] = {"epochs": evaluations, "every": steps // evaluations}
    mini |= {name: int(row[name]) for name in SIZES if row[name]}
    mini |= {"level": row["level"]} if row["level"] else {}
    mini |= {"width": float(row["width"])} if row["width"] else {}
    names = ("name", "what", "data", "network", "task", "model")
    return Workload(
        **{name: row[name] for name in names},
        mini=mini,
        chance=float(row["chance"]),
        seconds=float(row["seconds"]),
    )


ROWS = list(csv.DictReader(files(__package__).joinpath("workloads.csv").read_text("utf-8").splitlines()))
WORKLOADS = {row["name"]: _workload(row) for row in ROWS}
