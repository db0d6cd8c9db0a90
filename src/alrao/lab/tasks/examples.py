"""Examples in the parts ``train``, ``valid`` and ``test``: how many are used, and the batches of an epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from .task import Batch, Supervised, Task

Data = tuple[dict[str, Any], str, dict[str, Any]]
"""The parts of the data, a digest of all of it, and its description."""


def cut(size: int, batch: int) -> list[tuple[int, int]]:
    """Return the beginnings and ends of the batches of an epoch.

    The last one may be smaller; a single example left over joins the batch before it, since BatchNorm has
    no variance of one.
    """
    starts = list(range(0, size, batch))
    if len(starts) > 1 and size - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], size], strict=True))


class Examples(Supervised):
    """Parts in a fixed random order; the first examples are used, as many as settings and budget allow.

    A part has a length, and ``take`` selects examples of it.
    """

    def __init__(self, task: ExamplesTask, data: Data, settings: Settings, device: torch.device) -> None:
        parts, self.identity, about = data
        budget, wanted = task.budgets[settings.budget], settings.train_size
        if wanted is not None and wanted > len(parts["train"]):
            raise LabError(f"--train-size {wanted}: there are {len(parts['train'])} training examples")
        limits = {"train": wanted or budget.train, "valid": budget.valid, "test": budget.test}
        self.parts = {name: part.take(slice(limits[name])) for name, part in parts.items()}
        self.task, self.settings, self.device = task, settings, device
        sizes = {name: len(part) for name, part in self.parts.items()}
        self.cuts = cut(sizes["train"], settings.batch or task.batch(settings))
        self.steps = len(self.cuts)
        self.about = {**about, **sizes}

    def network(self) -> nn.Module:
        return self.task.build(self)

    def order(self, epoch: int) -> Tensor:
        """Return the order of the training examples in an epoch."""
        random = generator(self.settings.seed, "order", epoch)
        return torch.randperm(len(self.parts["train"]), generator=random)


class ExamplesTask(Task):
    """A task whose data are examples in parts."""

    kind: ClassVar[type[Examples]]

    @abstractmethod
    def read(self, settings: Settings) -> Data:
        """Read the data and split it."""

    @abstractmethod
    def build(self, problem: Examples) -> nn.Module:
        """Build the plain network."""

    def load(self, settings: Settings, device: torch.device) -> Examples:
        return self.kind(self, self.read(settings), settings, device)


@dataclass(frozen=True)
class Part:
    """Inputs and targets, a row for each example."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which: Tensor | slice) -> Part:
        """Select examples by their indices, in that order."""
        return Part(self.inputs[which], self.targets[which])


class InMemory(Examples):
    """Examples in the memory of the device."""

    parts: dict[str, Part]
    at_once: ClassVar[int] = 1024
    """Examples evaluated at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts = {
            name: Part(part.inputs.to(self.device), part.targets.to(self.device))
            for name, part in self.parts.items()
        }

    def prepare(self, inputs: Tensor, *name: object) -> Tensor:
        """Return what the network sees of stored inputs; a name seeds the augmentation of training inputs."""
        return inputs

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order = self.order(epoch).to(self.device)
        for number in range(start, self.steps):
            batch = self.parts["train"].take(order[slice(*self.cuts[number])])
            yield self.prepare(batch.inputs, "augment", epoch, number), batch.targets

    def evaluation(self, part: str) -> Iterator[Batch]:
        for start in range(0, len(self.parts[part]), self.at_once):
            batch = self.parts[part].take(slice(start, start + self.at_once))
            yield self.prepare(batch.inputs), batch.targets
