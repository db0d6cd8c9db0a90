"""A number to predict from the other columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import alrao

from ..data.tables import Prepared, Table, diabetes, prepare, read_csv, split
from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from ..zoo.small import mlp
from .task import Batch, Budget, Supervised, Task

__all__ = ["Regression", "TableProblem"]

HIDDEN = 64
CHUNK = 1024
"""Rows evaluated at once."""


class TableProblem(Supervised):
    r"""A Normal law of variance 1 around the network's output, for the standardised target.

    Trained on :math:`-\log p(y)` up to its constant: half the squared error of a plain network, the mixture's
    loss of an Alrao model. Measured, for both, by the mean squared error of the prediction and by
    :math:`R^2 = 1 - \mathrm{mse} / \mathrm{var}(y)`.

    Args:
        data: inputs and targets of all rows.
        rows: which of them are ``"train"``, ``"valid"`` and ``"test"``.
        settings: of the run.
        batch: rows in a training batch.
        device: where the batches are.
    """

    likelihood: ClassVar[str] = "gaussian"
    measures: ClassVar[tuple[str, ...]] = ("loss", "r2")

    def __init__(
        self,
        data: Prepared,
        rows: Mapping[str, Tensor],
        settings: Settings,
        batch: int,
        device: torch.device,
        *,
        identity: str,
        about: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self.batch = batch
        self.parts = {
            part: (data.inputs[which].to(device), data.targets[which].to(device))
            for part, which in rows.items()
        }
        self.steps = -(-len(rows["train"]) // batch)
        self.identity = identity
        self.about = about
        self._criterion = alrao.MixtureMSELoss()

    def network(self) -> nn.Module:
        """Two hidden layers."""
        hidden = max(1, round(HIDDEN * self.settings.width))
        return mlp(self.parts["train"][0].shape[1], 1, hidden=(hidden, hidden))

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The training rows, in another order in every epoch."""
        inputs, targets = self.parts["train"]
        order = torch.randperm(len(inputs), generator=generator(self.settings.seed, "order", epoch))
        for which in order.to(inputs.device).split(self.batch)[start:]:
            yield inputs[which], targets[which]

    def evaluation(self, part: str) -> Iterator[Batch]:
        """The rows of that part, in the order of the split."""
        return zip(*(each.split(CHUNK) for each in self.parts[part]), strict=True)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The negative log-likelihood."""
        loss: Tensor = self._criterion(outputs, targets)
        return loss

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums of squared errors, of targets and of their squares."""
        return {
            "loss": (outputs - targets).square().sum(),
            "targets": targets.sum(),
            "squares": targets.square().sum(),
            "count": torch.tensor(len(targets)),
        }

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The mean squared error, and the part of the variance that the predictions explain."""
        loss, mean, square = (sums[name] / sums["count"] for name in ("loss", "targets", "squares"))
        variance = square - mean**2
        # Of a constant there is nothing to explain.
        return {"loss": loss, "r2": 1 - loss / variance if variance > 0 else 0.0}


class Regression(Task):
    """scikit-learn's diabetes, or a CSV file."""

    name: ClassVar[str] = "regression"
    summary: ClassVar[str] = (
        "scikit-learn's diabetes, or a CSV file of your own (--data FILE --target COLUMN)"
    )
    models: ClassVar[tuple[str, ...]] = ("mlp",)
    budgets: ClassVar[Mapping[str, Budget]] = {
        "mini": Budget(epochs=100, batch=32, seeds=3),
        "paper": Budget(epochs=300, batch=32, seeds=10),  # not in the paper
    }
    options: ClassVar[frozenset[str]] = frozenset({"target", "width"})

    def load(self, settings: Settings, device: torch.device) -> TableProblem:
        """Read the table, split it 70/15/15, standardise it by its training rows."""
        table = _table(settings)
        rows = split(len(table))
        rows["train"] = rows["train"][: settings.train_size]
        data = prepare(table, rows["train"])
        return TableProblem(
            data,
            rows,
            settings,
            settings.batch or self.batch(settings),
            device,
            identity=table.identity,
            about={
                "source": table.source,
                "target": table.target_name,
                "inputs": data.inputs.shape[1],
                **{part: len(which) for part, which in rows.items()},
                **data.notes,
            },
        )


def _table(settings: Settings) -> Table:
    """The user's file, if one is named; ``$ALRAO_DATA``, where other tasks have theirs, does not name one."""
    if settings.data is not None:
        return read_csv(Path(settings.data).expanduser(), settings.target)
    if settings.target is not None:
        raise LabError(f"--target {settings.target} names a column of a file: name the file with --data FILE")
    return diabetes()
