"""Images to be drawn again after a bottleneck."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import zoo
from ..data.tables import Prepared
from ..settings import Settings
from .digits import SPLIT, digits
from .regression import TableProblem
from .task import Budget, Task

__all__ = ["Autoencoder"]


class _Reconstruction(TableProblem):
    """The target is the input; errors are counted for every pixel."""

    def network(self) -> nn.Module:
        """Down to a few numbers, and back."""
        return zoo.autoencoder(self.parts["train"][0].shape[1], self.settings.width)

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums over pixels."""
        return {**super().score(outputs, targets), "count": torch.tensor(targets.numel())}


class Autoencoder(Task):
    """The digits, from twelve numbers each."""

    name = "autoencoder"
    summary = "scikit-learn's digits through a bottleneck of twelve numbers; the mean squared error"
    models = ("mlp",)
    budgets: ClassVar = {
        "mini": Budget(epochs=60, batch=32, seeds=3),
        "paper": Budget(epochs=300, batch=32, seeds=10),  # not in the paper
    }
    options = frozenset({"width"})

    def load(self, settings: Settings, device: torch.device) -> TableProblem:
        """The pixels with mean 0 and deviation 1, over all of them."""
        data, rows, identity = digits(settings.train_size)
        pixels = data.images.flatten(1).double()
        train = pixels[rows["train"]]
        pixels = ((pixels - train.mean()) / train.std(correction=0)).float()
        return _Reconstruction(
            Prepared(pixels, pixels, {}),
            rows,
            settings,
            settings.batch or self.batch(settings),
            device,
            identity=identity,
            about={"source": "scikit-learn", "image": [1, 8, 8], **{part: len(rows[part]) for part in SPLIT}},
        )
