"""The workloads of the suite: networks and tasks, and which of them defaults are chosen on.

``workloads.csv`` has a row for each: its settings with the budget ``mini``, and the loss of ``chance``, in
bits for characters. Tiny data sets are split differently with every seed (``resplit``). ``listed`` is when it
was added:

- ``first``: the first suite's; figures on them have been seen many times.
- ``design``: the kinds that Auto was designed on, before it was run on any of these.
- ``new`` and ``new-held-out``, by ``kind``: of each, every other one in the order of the names' SHA-256 was
  held out until Auto was run on them. The search for rates was changed after that look.
- ``second``: added then, before Auto was run on any of them: other data, batches and lengths for kinds that
  are above. They have been looked at since.
- ``third``: a large vocabulary, before Auto was run on it; copies had been let sleep on one of its kind.
- ``held-out``: after ``second``, before any run on them. Their test sets have hundreds to tens of thousands
  of rows, so that a difference of some per cent is more than noise.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from ..settings import Settings


@dataclass(frozen=True)
class Workload:
    """A network on a task: at most a minute of training on one core with the budget ``mini``."""

    name: str
    what: str
    task: str
    model: str
    mini: Mapping[str, Any]
    """Settings of the budget ``mini``; ``paper`` is the task's own."""
    chance: float
    """The test loss of a model that knows only how frequent the targets are."""
    chosen_on: bool = False
    """Whether defaults were chosen on it."""

    def settings(self, common: Settings) -> Settings:
        """Return the settings of its runs, which go to the last epoch: all take the same number of steps."""
        settings = replace(common, task=self.task, model=self.model, experiment=f"suite-{self.name}")
        if common.budget == "mini":
            settings = replace(settings, **self.mini, patience=self.mini["epochs"])
        return settings


def _workload(row: Mapping[str, str]) -> Workload:
    mini: dict[str, Any] = {name: int(row[name]) for name in ("epochs", "train_size", "batch") if row[name]}
    mini |= {"level": row["level"]} if row["level"] else {}
    mini |= {"resplit": True} if row["resplit"] == "yes" else {}
    names: dict[str, Any] = {name: row[name] for name in ("name", "what", "task", "model")}
    return Workload(**names, mini=mini, chance=float(row["chance"]), chosen_on=row["listed"] != "held-out")


ROWS = list(csv.DictReader(files(__package__).joinpath("workloads.csv").read_text("utf-8").splitlines()))
WORKLOADS = {row["name"]: _workload(row) for row in ROWS}
