"""Rows of numbers, of a CSV file or shipped by scikit-learn, with numbers or classes to predict."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import alrao

from ..data.files import shipped, short_digest
from ..data.tables import diabetes, prepare, read_csv, split
from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from ..zoo.small import mlp, scaled
from .task import Budget, Classification, Data, InMemory, Part

HIDDEN = 64
FREQUENCIES = 64
"""Random waves that stand for a place in a picture."""
PICTURE_SIDE = 4
"""One pixel of so many, in each direction, is used of a picture."""
PATCH = 7
"""Side of the square around the pixel to predict."""
PATCHES = 8_000


class Rows(InMemory):
    """A network with two hidden layers on rows of numbers."""

    models = ("mlp",)

    def network(self) -> nn.Module:
        targets, hidden = self.parts["train"].targets, scaled(HIDDEN, self.settings.width)
        outputs = targets.shape[1] if targets.ndim > 1 else self.about["classes"]
        return mlp(self.about["inputs"], outputs, hidden=(hidden, hidden))


class Numbers(Rows):
    r"""A Normal distribution of variance 1 around the network's output, for the standardised target.

    Trained on :math:`-\log p(y)` up to its constant: half the squared error of a plain network, the mixture's
    loss of an Alrao model. Measured, for both, by the mean squared error of the prediction and by
    :math:`R^2 = 1 - \mathrm{mse} / \mathrm{var}(y)`.
    """

    likelihood = "gaussian"
    measures: tuple[str, ...] = ("loss", "r2")

    criterion = alrao.MixtureMSELoss()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.criterion(outputs, targets)
        return loss

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {
            "loss": (outputs - targets).square().sum(),
            "targets": targets.sum(),
            "squares": targets.square().sum(),
            "count": torch.tensor(targets.numel()),
        }

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        loss, mean, square = (sums[name] / sums["count"] for name in ("loss", "targets", "squares"))
        variance = square - mean**2
        return {"loss": loss, "r2": 1 - loss / variance if variance > 0 else 0.0}


def _data(
    inputs: Tensor, targets: Tensor, rows: Mapping[str, Tensor], identity: str, about: Mapping[str, Any]
) -> Data:
    parts = {name: Part(inputs[which], targets[which]) for name, which in rows.items()}
    return parts, identity, {"inputs": inputs.shape[1], **about}


def _split(rows: int, settings: Settings) -> dict[str, Tensor]:
    """The rows of each part, by a constant seed or by the run's."""
    found = split(rows, settings.seed if settings.resplit else None)
    return {**found, "train": found["train"][: settings.train_size]}


def _standardised(columns: Tensor, train: Tensor) -> Tensor:
    """The columns with mean 0 and deviation 1 over the training rows."""
    mean, deviation = columns[train].mean(0), columns[train].std(0, correction=0)
    return ((columns - mean) / deviation).float()


class Regression(Numbers):
    """scikit-learn's diabetes, or a CSV file."""

    name = "regression"
    summary = "scikit-learn's diabetes, or your own CSV file (--data FILE --target COLUMN)"
    mini = Budget(epochs=100, batch=32, seeds=3)
    paper = Budget(epochs=300, batch=32, seeds=10)  # not in the paper
    options = frozenset({"resplit", "target", "width"})

    def read(self, settings: Settings) -> Data:
        if settings.data is not None:  # $ALRAO_DATA, a directory for other tasks, names no table
            table = read_csv(Path(settings.data).expanduser(), settings.target)
        elif settings.target is not None:
            raise LabError(f"--target {settings.target} needs a file: name the file with --data FILE")
        else:
            table = diabetes()
        rows = _split(len(table), settings)
        inputs, targets, notes = prepare(table, rows["train"])
        about = {"source": table.source, "target": table.target.name, **notes}
        return _data(inputs, targets, rows, table.identity, about)


class _Labelled(Classification, Rows):
    mini = Budget(epochs=50, batch=16, seeds=3)
    paper = Budget(epochs=200, batch=16, seeds=10)  # not in the paper
    options = frozenset({"resplit", "width"})
    source: ClassVar[str]
    """The function of scikit-learn that loads it."""

    def read(self, settings: Settings) -> Data:
        table = shipped(self.source)
        rows = _split(len(table.target), settings)
        inputs = _standardised(torch.from_numpy(table.data), rows["train"])
        identity = short_digest(table.data.tobytes(), table.target.tolist())
        about = {"source": "scikit-learn", "classes": len(table.target_names)}
        return _data(inputs, torch.from_numpy(table.target).long(), rows, identity, about)


class Cancer(_Labelled):
    """Breast cancer, Wisconsin: 569 samples, 30 measurements, malignant or benign."""

    name = "cancer"
    summary = "scikit-learn's breast cancer, two classes; no download"
    source = "load_breast_cancer"


class Wine(_Labelled):
    """178 wines of three growers, 13 measurements."""

    name = "wine"
    summary = "scikit-learn's wines, three classes; no download"
    source = "load_wine"


class _Pixels(Numbers):
    """Something to regress from a picture."""

    mini = Budget(epochs=16, batch=256, seeds=3)
    paper = Budget(epochs=100, batch=256, seeds=10)  # not in the paper
    options = frozenset({"width"})
    file: ClassVar[str]

    @abstractmethod
    def rows(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets made of the pixels (height, width, 3)."""

    def read(self, settings: Settings) -> Data:
        pixels = shipped("load_sample_image", self.file)
        made = self.rows(torch.tensor(pixels).double())
        rows = _split(len(made[0]), settings)
        inputs, targets = (_standardised(each, rows["train"]) for each in made)
        about = {"source": f"scikit-learn's {self.file}"}
        return _data(inputs, targets, rows, short_digest(pixels.tobytes()), about)


class Picture(_Pixels):
    """A picture as a function: the colour at a place."""

    name = "picture"
    summary = "scikit-learn's picture of a temple, the colour at a place; no download"
    file = "china.jpg"

    def rows(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the colours by their place, given as waves of random directions and lengths."""
        colours = pixels[::PICTURE_SIDE, ::PICTURE_SIDE]
        height, width, _ = colours.shape
        sides = torch.arange(height) / height, torch.arange(width) / height
        places = torch.cartesian_prod(*sides).double()
        waves = 20 * torch.randn(2, FREQUENCIES, generator=generator("picture"), dtype=torch.double)
        angles = places @ waves
        return torch.cat([angles.sin(), angles.cos()], 1), colours.reshape(-1, 3)


class Patches(_Pixels):
    """A pixel from the 48 around it."""

    name = "patches"
    summary = "scikit-learn's picture of a flower, a pixel from those around it; no download"
    file = "flower.jpg"

    def rows(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the grey values of pixels drawn at random, by those around them."""
        patches = pixels.mean(-1).unfold(0, PATCH, 1).unfold(1, PATCH, 1).reshape(-1, PATCH * PATCH)
        patches = patches[torch.randperm(len(patches), generator=generator("patches"))[:PATCHES]]
        middle = PATCH * PATCH // 2
        return torch.cat([patches[:, :middle], patches[:, middle + 1 :]], 1), patches[:, [middle]]
