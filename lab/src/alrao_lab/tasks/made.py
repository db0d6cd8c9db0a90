"""Data that is made, not measured: noisy tables, a chessboard, series, and a picture as a function.

The data is the same for every run; the test part is large, so that it adds little noise to a comparison.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import optional
from ..settings import Settings
from ..zoo import modern
from ..zoo.small import mlp
from .files import short_digest
from .tables import Numbers, Pixels, Rows, data_of, standardised
from .task import Budget, Classification, Data

PARTS = {"train": 20_000, "valid": 2_000, "test": 10_000}
ROWS = sum(PARTS.values())
WINDOW = 48
"""Values of a series that the next one is predicted from."""

Network = Callable[[int, int, float], nn.Module]
"""Builds a network, given the number of inputs, of outputs, and the width."""


def _mlp(depth: int) -> Network:
    return lambda inputs, outputs, width: mlp(inputs, outputs, width, hidden=(64,) * depth)


class _Made(Rows):
    """Rows that a function makes, with one seed for all runs."""

    mini = Budget(epochs=20, batch=32, seeds=3, train=4_000)
    paper = Budget(epochs=100, batch=32, seeds=10)  # not in the paper
    options = frozenset({"width"})
    networks: ClassVar[Mapping[str, Network]] = {"mlp": _mlp(2)}

    @abstractmethod
    def make(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of ``ROWS`` rows."""

    def read(self, settings: Settings) -> Data:
        rows, targets = (torch.from_numpy(np.ascontiguousarray(each)) for each in self.make())
        parts = dict(zip(PARTS, torch.arange(ROWS).split(list(PARTS.values())), strict=True))
        about: dict[str, Any] = {"source": f"made: {self.name}"}
        identity = short_digest(rows.numpy().tobytes(), targets.numpy().tobytes())
        inputs = standardised(rows, parts["train"])
        if targets.dtype == torch.int64:
            about["classes"] = int(targets.max()) + 1
        else:
            targets = standardised(targets[:, None], parts["train"])
        return data_of(inputs, targets, parts, identity, about)

    def network(self) -> nn.Module:
        targets, model = self.parts["train"].targets, self.settings.model or self.models[0]
        outputs = self.about["classes"] if targets.ndim == 1 else targets.shape[1]
        return self.networks[model](self.about["inputs"], outputs, self.settings.width)


def _redrawn(labels: np.ndarray, part: float, classes: int, random: np.random.Generator) -> np.ndarray:
    """The labels, a part of them drawn again at random."""
    noise = random.integers(classes, size=len(labels))
    return np.where(random.random(len(labels)) < part, noise, labels).astype(np.int64)


def _sklearn(name: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    module = optional("sklearn.datasets", "lab", "making data", "scikit-learn")
    inputs, targets = getattr(module, name)(n_samples=ROWS, random_state=0, **options)
    return inputs, targets


class Classes(Classification, _Made):
    """Made: five classes of several clusters, a fifth of the labels random; no download."""

    networks: ClassVar = {"mlp": _mlp(2), "deep": _mlp(10)}
    models = tuple(networks)

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        counts = {"n_features": 20, "n_informative": 10, "n_redundant": 4, "n_classes": 5}
        inputs, labels = _sklearn("make_classification", **counts, n_clusters_per_class=2, flip_y=0.2)
        return inputs, labels.astype(np.int64)


class Quantiles(Classification, _Made):
    """Made: ten nested shells around a point, a tenth of the labels random; no download."""

    networks: ClassVar = {"residual": modern.residual_rows}
    models = tuple(networks)

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = _sklearn("make_gaussian_quantiles", n_features=10, n_classes=10)
        return inputs, _redrawn(labels, 0.1, 10, np.random.default_rng(1))


class Hastie(Classification, _Made):
    """Made: the inside and outside of a sphere, four labels of ten random; no download."""

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = _sklearn("make_hastie_10_2")
        return inputs, _redrawn(labels > 0, 0.4, 2, np.random.default_rng(2))


class Checker(Classification, _Made):
    """Made: the colour of a chessboard's field, a twentieth of the labels random; no download."""

    networks: ClassVar = {"selu": modern.self_normalising}
    models = tuple(networks)

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(3)
        places = random.random((ROWS, 2))
        labels = np.floor(4 * places).sum(1).astype(np.int64) % 2
        return places, _redrawn(labels, 0.05, 2, random)


class Friedman(Numbers, _Made):
    """Made: Friedman's first function of ten numbers, with noise; no download."""

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        return _sklearn("make_friedman1", n_features=10, noise=3.0)


class Waves(Numbers, _Made):
    """Made: the next value of two waves with noise; no download."""

    networks: ClassVar = {"tcn": modern.TemporalConvolutions}
    models = tuple(networks)

    def make(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(4)
        periods, phases = random.uniform(6, 40, (2, ROWS, 1)), random.uniform(0, 2 * np.pi, (2, ROWS, 1))
        waves = np.sin(2 * np.pi * np.arange(WINDOW + 1) / periods + phases).sum(0)
        series = waves + 0.1 * random.standard_normal(waves.shape)
        return series[:, :-1], series[:, -1]


class Flower(Pixels):
    """scikit-learn's picture of a flower, the colour at a place by sine units; no download."""

    file = "flower.jpg"
    models = ("siren",)

    def places(self, height: int, width: int) -> Tensor:
        return torch.cartesian_prod(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width))

    def network(self) -> nn.Module:
        return modern.siren(2, 3, self.settings.width)
