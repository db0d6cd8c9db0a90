"""Tasks and problems: data, plain networks, and how their outputs are scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..settings import Settings

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True)
class Budget:
    """How much a task trains; a size of ``None`` is the whole part."""

    epochs: int
    batch: int
    seeds: int
    train: int | None = None
    valid: int | None = None
    test: int | None = None


class Problem(ABC):
    """A task, loaded for one run."""

    likelihood: ClassVar[str]
    """The likelihood of Alrao's copies."""
    measures: tuple[str, ...]
    """Names of the figures of an evaluation; the first decides which epoch is best."""
    higher_is_better: ClassVar[bool] = False

    steps: int
    """Training steps in an epoch."""
    identity: str
    """A short digest of the data: other data is another run."""
    about: dict[str, Any]
    """A description of the data for ``config.json``: source, sizes of the parts, number of classes."""


class Supervised(Problem):
    """A problem of batches of inputs and targets.

    The training batches depend only on the settings' seed, the epoch and the position in the epoch, so that a
    run can resume anywhere. Tensors are on the CPU or already on the run's device.
    """

    @abstractmethod
    def network(self) -> nn.Module:
        """Build a plain network with its output layer, initialised from torch's global generator."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Return the training batches of an epoch (from 1), beginning with number ``start`` (from 0)."""

    @abstractmethod
    def evaluation(self, part: str) -> Iterator[Batch]:
        """Return the batches of ``"valid"`` or ``"test"``, in a fixed order, not augmented."""

    def forward(self, model: nn.Module, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """Return the model's outputs, and the ``carry`` of the next batch."""
        return model(inputs), None

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood in nats, for Alrao's outputs or plain ones."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the batch's sums of the measures, and ``"count"``: the number of terms in them."""

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the measures, given the sums over all batches: by default, their means."""
        return {name: sums[name] / sums["count"] for name in self.measures}


class Classification(Supervised):
    """Classification: loss in nats, accuracy from 0 to 1."""

    likelihood = "categorical"
    measures: tuple[str, ...] = ("loss", "accuracy")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the sum of the cross-entropy and the number of right answers."""
        return {
            "loss": F.cross_entropy(outputs.float(), targets, reduction="sum"),
            "accuracy": (outputs.argmax(-1) == targets).sum(),
            "count": torch.tensor(targets.numel()),
        }


class Task(ABC):
    """A named kind of experiment."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """A line for ``alrao list``."""
    models: ClassVar[tuple[str, ...]]
    """Names of its networks, the default first; a last ``"*"`` stands for every torchvision classifier."""
    mini: ClassVar[Budget]
    paper: ClassVar[Budget]
    interval: ClassVar[tuple[float, float]] = (1e-5, 10.0)
    """Alrao's default interval of rates."""
    adam_interval: ClassVar[tuple[float, float]] = (1e-6, 1.0)
    """The same of Alrao-Adam."""
    copies: ClassVar[int] = 10
    options: ClassVar[frozenset[str]] = frozenset()
    """Settings that only some tasks take, and this one does: of level, dropout, target, image_size, …"""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Their default values."""
    unit: ClassVar[str] = ""
    """Of ``train`` in the budgets, if it is not a number of examples."""

    @property
    def budgets(self) -> dict[str, Budget]:
        """How much it trains, by the name of the budget."""
        return {"mini": self.mini, "paper": self.paper}

    def batch(self, settings: Settings) -> int:
        """Return the default batch size."""
        return self.budgets[settings.budget].batch

    @abstractmethod
    def load(self, settings: Settings, device: torch.device) -> Problem:
        """Read the data and prepare a run."""
