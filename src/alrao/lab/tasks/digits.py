"""Handwritten digits, which scikit-learn brings along."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import zoo
from ..data.places import short_digest
from ..errors import missing, unknown
from ..seeds import generator
from ..settings import Settings
from ..zoo.blocks import scaled
from .images import ImagesInMemory, Part
from .task import Budget, Task

__all__ = ["SPLIT", "Digits", "digits"]

SPLIT = {"train": 1000, "valid": 397, "test": 400}


class Digits(Task):
    """1797 images of 8×8 pixels in 17 shades of grey."""

    name = "digits"
    summary = "scikit-learn's handwritten digits, 8×8; needs no download"
    models = ("mlp", "cnn", "sigmoid")
    budgets: ClassVar = {
        "mini": Budget(epochs=30, batch=32, seeds=3),
        "paper": Budget(epochs=100, batch=32, seeds=10),  # not in the paper
    }
    options = frozenset({"width"})

    def load(self, settings: Settings, device: torch.device) -> ImagesInMemory:
        """The images, split by a constant seed; normalised, not augmented."""
        everything, rows, identity = digits()
        return ImagesInMemory(
            {name: everything.take(indices) for name, indices in rows.items()},
            lambda: _network(settings.model or self.models[0], settings.width),
            settings,
            self.budgets[settings.budget],
            device,
            identity=identity,
            about={"source": "scikit-learn", "classes": 10, "image": [1, 8, 8]},
        )


def digits(train_size: int | None = None) -> tuple[Part, dict[str, Tensor], str]:
    """All images, which of them are in which part, and a digest.

    Args:
        train_size: how many to train on; by default all of that part.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise missing("scikit-learn", "lab", "the task digits") from None
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.astype("uint8")
    everything = Part(torch.from_numpy(pixels).view(-1, 1, 8, 8), torch.from_numpy(labels).long())
    order = torch.randperm(len(everything), generator=generator("digits", "split"))
    rows = dict(zip(SPLIT, order.split(list(SPLIT.values())), strict=True))
    rows["train"] = rows["train"][:train_size]
    return everything, rows, short_digest(pixels.tobytes(), labels.tolist())


def _network(model: str, width: float) -> nn.Module:
    match model:
        case "mlp":
            return zoo.mlp(64, 10, hidden=(scaled(128, width),) * 2)
        case "sigmoid":
            return zoo.mlp(64, 10, hidden=(scaled(128, width),) * 2, activation=nn.Sigmoid)
        case "cnn":
            return zoo.digits_cnn(10, width)
        case _:
            raise unknown("model", model, Digits.models)
