"""What a task is: data, plain networks, and how their outputs are scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..settings import Settings

if TYPE_CHECKING:
    from ..training import Training

__all__ = ["Batch", "Budget", "Classification", "Problem", "Supervised", "Task", "Trainable"]

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True)
class Budget:
    """How much a task trains. Sizes of ``None`` mean: all there is."""

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
    measures: ClassVar[tuple[str, ...]]
    """Names of the figures of an evaluation; the first decides which epoch is best."""
    higher_is_better: ClassVar[bool] = False

    steps: int
    """Training steps in an epoch."""
    identity: str
    """A short digest of the data: other data is another run."""
    about: Mapping[str, Any]
    """A description of the data for ``config.json``: source, sizes of the parts, number of classes."""


class Trainable(Problem):
    """A problem with its own kind of training steps."""

    @abstractmethod
    def start(self, settings: Settings, device: torch.device) -> Training:
        """Prepare the training, with a fresh network."""


class Supervised(Problem):
    """A problem of batches of inputs and targets.

    The training batches depend only on the settings' seed, the epoch and the position in the epoch, so that a
    run can resume anywhere. Tensors are on the CPU or already on the run's device.
    """

    likelihood: ClassVar[str] = "categorical"
    measures: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    @abstractmethod
    def network(self) -> nn.Module:
        """A fresh plain network, with its output layer, initialised from torch's global generator."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The training batches of an epoch (numbered from 1), from number ``start`` (from 0) on."""

    @abstractmethod
    def evaluation(self, part: str) -> Iterator[Batch]:
        """The batches of ``"valid"`` or ``"test"``, in a fixed order, nothing augmented."""

    def forward(self, model: nn.Module, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """The model's outputs, and what the next batch of the same pass receives as ``carry``."""
        return model(inputs), None

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss to train on: a negative log-likelihood in nats, for Alrao's outputs or plain ones."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums over the batch that :meth:`measure` needs, and ``"count"``: how many terms they have."""

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The measures, from the sums of all batches of a pass: by default, the mean of each."""
        return {name: sums[name] / sums["count"] for name in self.measures}


class Classification(Supervised):
    """The class is the target; loss in nats, accuracy from 0 to 1."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy."""
        return F.cross_entropy(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums of the cross-entropy and of right answers."""
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
    """Names of its networks, the default first; ``"*"`` at the end: any torchvision classifier too."""
    budgets: ClassVar[Mapping[str, Budget]]
    interval: ClassVar[tuple[float, float]] = (1e-5, 10.0)
    """Alrao's rates, where the user names none."""
    adam_interval: ClassVar[tuple[float, float]] = (1e-6, 1.0)
    zoom_interval: ClassVar[tuple[float, float]] = (1e-6, 0.1)
    copies: ClassVar[int] = 10
    options: ClassVar[frozenset[str]] = frozenset()
    """Settings that make sense for this task alone: of level, dropout, target, image_size, width, …"""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The values of these, where the user gives none."""

    examples: ClassVar[str] = "examples"
    """What ``train`` of its budgets counts."""

    def interval_of(self, method: str) -> tuple[float, float]:
        """The rates of a method of Alrao, where the user names none."""
        own = {"alrao": self.interval, "alrao-zoom": self.zoom_interval}
        return own.get(method, self.adam_interval)

    def batch(self, settings: Settings) -> int:
        """The batch size, where the user names none."""
        return self.budgets[settings.budget].batch

    @abstractmethod
    def load(self, settings: Settings, device: torch.device) -> Problem:
        """Read the data and prepare a run.

        Raises:
            LabError: the data is missing or damaged; the message says where it was looked for.
        """
