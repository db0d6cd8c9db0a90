"""Regression: predict a number from the other columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import alrao

from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from ..zoo import mlp, scaled
from .task import Batch, Budget, Supervised, Task

HIDDEN = 64
CHUNK = 1024
"""Rows evaluated at once."""


class Rows(Supervised):
    """Rows of inputs and targets in memory."""

    def __init__(
        self,
        task: Task,
        parts: Mapping[str, tuple[Tensor, ...]],
        settings: Settings,
        device: torch.device,
        *,
        identity: str,
        about: Mapping[str, Any],
    ) -> None:
        self.settings, self.batch = settings, settings.batch or task.batch(settings)
        self.parts = {part: (x.to(device), y.to(device)) for part, (x, y) in parts.items()}
        sizes = {part: len(x) for part, (x, _) in self.parts.items()}
        self.steps = -(-sizes["train"] // self.batch)
        self.identity, self.about = identity, {**about, **sizes}

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.parts["train"][0].shape[1]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        inputs, targets = self.parts["train"]
        order = torch.randperm(len(inputs), generator=generator(self.settings.seed, "order", epoch))
        for which in order.to(inputs.device).split(self.batch)[start:]:
            yield inputs[which], targets[which]

    def evaluation(self, part: str) -> Iterator[Batch]:
        return zip(*(each.split(CHUNK) for each in self.parts[part]), strict=True)


class TableProblem(Rows):
    r"""A Normal distribution of variance 1 around the network's output, for the standardised target.

    Trained on :math:`-\log p(y)` up to its constant: half the squared error of a plain network, the mixture's
    loss of an Alrao model. Measured, for both, by the mean squared error of the prediction and by
    :math:`R^2 = 1 - \mathrm{mse} / \mathrm{var}(y)`.
    """

    likelihood = "gaussian"
    measures: tuple[str, ...] = ("loss", "r2")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._criterion = alrao.MixtureMSELoss()

    def network(self) -> nn.Module:
        hidden = scaled(HIDDEN, self.settings.width)
        return mlp(self.inputs, self.parts["train"][1].shape[1], hidden=(hidden, hidden))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self._criterion(outputs, targets)
        return loss

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {
            "loss": (outputs - targets).square().sum(),
            "targets": targets.sum(),
            "squares": targets.square().sum(),
            "count": torch.tensor(targets.numel()),
        }

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the mean squared error, and the fraction of the variance explained (0 of a constant)."""
        loss, mean, square = (sums[name] / sums["count"] for name in ("loss", "targets", "squares"))
        variance = square - mean**2
        return {"loss": loss, "r2": 1 - loss / variance if variance > 0 else 0.0}


class Regression(Task):
    """scikit-learn's diabetes, or a CSV file."""

    name = "regression"
    summary = "scikit-learn's diabetes, or your own CSV file (--data FILE --target COLUMN)"
    models = ("mlp",)
    budgets: ClassVar = {
        "mini": Budget(epochs=100, batch=32, seeds=3),
        "paper": Budget(epochs=300, batch=32, seeds=10),  # not in the paper
    }
    options = frozenset({"resplit", "target", "width"})

    def load(self, settings: Settings, device: torch.device) -> TableProblem:
        from ..data.tables import diabetes, prepare, read_csv, split  # which imports pandas

        if settings.data is not None:  # $ALRAO_DATA, a directory for other tasks, names no table
            table = read_csv(Path(settings.data).expanduser(), settings.target)
        elif settings.target is not None:
            raise LabError(f"--target {settings.target} needs a file: name the file with --data FILE")
        else:
            table = diabetes()
        rows = split(len(table), settings.seed if settings.resplit else None)
        rows["train"] = rows["train"][: settings.train_size]
        inputs, targets, notes = prepare(table, rows["train"])
        return TableProblem(
            self,
            {part: (inputs[which], targets[which]) for part, which in rows.items()},
            settings,
            device,
            identity=table.identity,
            about={"source": table.source, "target": table.target.name, "inputs": inputs.shape[1], **notes},
        )
