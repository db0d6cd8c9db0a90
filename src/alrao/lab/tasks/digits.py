"""Handwritten digits, which scikit-learn ships: to classify, and to reconstruct."""

from __future__ import annotations

import torch
from torch import nn

from ..data.files import shipped, short_digest
from ..seeds import generator
from ..settings import Settings
from ..zoo import small
from .examples import Data, Examples, ExamplesTask, Part
from .images import ImageTask
from .tables import Numbers
from .task import Budget

SPLIT = {"train": 1000, "valid": 397, "test": 400}
LAYERS: dict[str, tuple[int, int, type[nn.Module]]] = {
    "mlp": (2, 128, nn.ReLU),
    "sigmoid": (2, 128, nn.Sigmoid),
    "deep": (10, 64, nn.ReLU),
    "deep-tanh": (16, 48, nn.Tanh),
    "deep-sigmoid": (3, 64, nn.Sigmoid),
}
"""Hidden layers, their units, and the activation of the dense networks."""


def digits(settings: Settings) -> Data:
    """Read the digits, and split them by a constant seed or by the run's."""
    pixels, labels = shipped("load_digits", return_X_y=True)
    pixels = pixels.astype("uint8")
    everything = Part(torch.from_numpy(pixels).view(-1, 1, 8, 8), torch.from_numpy(labels).long())
    name = ("digits", "split", settings.seed) if settings.resplit else ("digits", "split")
    order = torch.randperm(len(everything), generator=generator(*name))
    rows = zip(SPLIT, order.split(list(SPLIT.values())), strict=True)
    digest = short_digest(pixels.tobytes(), labels.tolist())
    about = {"source": "scikit-learn", "image": [1, 8, 8]}
    return {name: everything.take(which) for name, which in rows}, digest, about


class Digits(ImageTask):
    """1797 images of 8×8 pixels in 17 shades of grey."""

    name = "digits"
    summary = "scikit-learn's handwritten digits, 8×8 pixels; no download"
    models = ("mlp", "cnn", "sigmoid", "deep", "deep-tanh", "deep-sigmoid", "vit")
    mini = Budget(epochs=30, batch=32, seeds=3)
    paper = Budget(epochs=100, batch=32, seeds=10)  # not in the paper
    options = frozenset({"resplit", "width"})

    def read(self, settings: Settings) -> Data:
        parts, identity, about = digits(settings)
        return parts, identity, {**about, "classes": 10}

    def build(self, problem: Examples) -> nn.Module:
        model, width = problem.settings.model or self.models[0], problem.settings.width
        if model == "cnn":
            return small.digits_cnn(10, width)
        if model == "vit":
            return small.VisionTransformer(10, image=8, patch=2, channels=1, norm_first=False, width=width)
        layers, units, activation = LAYERS[model]
        return small.mlp(64, 10, hidden=(small.scaled(units, width),) * layers, activation=activation)


class Autoencoder(ExamplesTask):
    """The digits, reconstructed from twelve numbers each."""

    name = "autoencoder"
    summary = "scikit-learn's digits through a bottleneck of twelve numbers; no download"
    models = ("mlp",)
    mini = Budget(epochs=60, batch=32, seeds=3)
    paper = Budget(epochs=300, batch=32, seeds=10)  # not in the paper
    options = frozenset({"resplit", "width"})
    kind = Numbers

    def read(self, settings: Settings) -> Data:
        images, identity, about = digits(settings)
        images["train"] = images["train"].take(slice(settings.train_size))
        pixels = {name: part.inputs.flatten(1).double() for name, part in images.items()}
        mean, deviation = pixels["train"].mean(), pixels["train"].std(correction=0)
        parts = {name: Part(*[((x - mean) / deviation).float()] * 2) for name, x in pixels.items()}
        return parts, identity, about

    def build(self, problem: Examples) -> nn.Module:
        return small.autoencoder(64, problem.settings.width)
