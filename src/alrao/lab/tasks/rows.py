"""Small tables and pictures that scikit-learn ships: labels to predict, colours to regress."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.places import short_digest
from ..errors import missing
from ..seeds import generator
from ..settings import Settings
from ..zoo import mlp, scaled
from .regression import HIDDEN, Rows, TableProblem
from .task import Budget, Classification, Task

FREQUENCIES = 64
"""Random waves that stand for a place in a picture."""
PICTURE_SIDE = 4
"""One pixel of so many, in each direction, is used of a picture."""
PATCH = 7
"""Side of the square around the pixel to predict."""
PATCHES = 8_000


def _sklearn(name: str, *arguments: Any, **options: Any) -> Any:
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise missing("scikit-learn", "lab", "this task") from None
    return getattr(datasets, name)(*arguments, **options)


class _Labelled(Rows, Classification):
    """A class to predict from the standardised columns of a table."""

    def network(self) -> nn.Module:
        hidden = scaled(HIDDEN, self.settings.width)
        return mlp(self.inputs, self.about["classes"], hidden=(hidden, hidden))


class _LabelledTable(Task):
    models = ("mlp",)
    budgets: ClassVar = {
        "mini": Budget(epochs=50, batch=16, seeds=3),
        "paper": Budget(epochs=200, batch=16, seeds=10),  # not in the paper
    }
    options = frozenset({"resplit", "width"})
    source: ClassVar[str]
    """The function of scikit-learn that loads it."""

    def load(self, settings: Settings, device: torch.device) -> Rows:
        from ..data.tables import split  # which imports pandas

        table = _sklearn(self.source)
        inputs, labels = torch.from_numpy(table.data), torch.from_numpy(table.target).long()
        rows = split(len(labels), settings.seed if settings.resplit else None)
        rows["train"] = rows["train"][: settings.train_size]
        inputs = _standardised(inputs, rows["train"])
        return _Labelled(
            self,
            {part: (inputs[which], labels[which]) for part, which in rows.items()},
            settings,
            device,
            identity=short_digest(table.data.tobytes(), table.target.tolist()),
            about={"source": "scikit-learn", "classes": int(labels.max()) + 1, "inputs": inputs.shape[1]},
        )


def _standardised(columns: Tensor, train: Tensor) -> Tensor:
    """The columns with mean 0 and deviation 1 over the training rows."""
    mean, deviation = columns[train].mean(0), columns[train].std(0, correction=0)
    return ((columns - mean) / deviation).float()


class Cancer(_LabelledTable):
    """Breast cancer, Wisconsin: 569 samples, 30 measurements, malignant or benign."""

    name = "cancer"
    summary = "scikit-learn's breast cancer, two classes; no download"
    source = "load_breast_cancer"


class Wine(_LabelledTable):
    """178 wines of three growers, 13 measurements."""

    name = "wine"
    summary = "scikit-learn's wines, three classes; no download"
    source = "load_wine"


class _PictureTask(Task):
    """Something to regress from a picture."""

    models = ("mlp",)
    budgets: ClassVar = {
        "mini": Budget(epochs=16, batch=256, seeds=3),
        "paper": Budget(epochs=100, batch=256, seeds=10),  # not in the paper
    }
    options = frozenset({"width"})
    file: ClassVar[str]

    @abstractmethod
    def rows(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets made of the pixels (height, width, 3)."""

    def load(self, settings: Settings, device: torch.device) -> TableProblem:
        from ..data.tables import split  # which imports pandas

        pixels = _sklearn("load_sample_image", self.file)
        inputs, targets = self.rows(torch.tensor(pixels).double())
        rows = split(len(inputs))
        rows["train"] = rows["train"][: settings.train_size]
        inputs, targets = (_standardised(each, rows["train"]) for each in (inputs, targets))
        return TableProblem(
            self,
            {part: (inputs[which], targets[which]) for part, which in rows.items()},
            settings,
            device,
            identity=short_digest(pixels.tobytes()),
            about={"source": f"scikit-learn's {self.file}", "inputs": inputs.shape[1]},
        )


class Picture(_PictureTask):
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


class Patches(_PictureTask):
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
