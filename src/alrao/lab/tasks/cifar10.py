"""CIFAR-10 as in the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from .. import zoo
from ..data.augment import flip_and_frame
from ..data.cifar import load_cifar10
from ..errors import unknown
from ..seeds import generator
from ..settings import Settings
from .images import ImagesInMemory, Part
from .task import Budget, Task

__all__ = ["Cifar10"]

NETWORKS: dict[str, Callable[[int, float], nn.Module]] = {
    "small": lambda classes, width: zoo.small_cnn(3, classes, width),
    "small-nobn": lambda classes, width: zoo.small_cnn(3, classes, width, batch_norm=False),
    "resnet-gn": zoo.residual_groupnorm,
    "vit": lambda classes, width: zoo.VisionTransformer(classes, width=width),
    "vgg19": zoo.vgg19,
    "googlenet": zoo.googlenet,
    "mobilenet": zoo.mobilenet_v2,
}


class Cifar10(Task):
    """A fifth of the training images is held out for validation: 40,000, 10,000 and 10,000."""

    name = "cifar10"
    summary = "CIFAR-10, 32×32, with the paper's augmentation"
    models = tuple(NETWORKS)
    budgets: ClassVar = {
        "mini": Budget(epochs=6, batch=32, seeds=3, train=20_000, valid=5_000, test=10_000),
        "paper": Budget(epochs=500, batch=32, seeds=10),  # early stopping comes first
    }
    options = frozenset({"width"})

    def load(self, settings: Settings, device: torch.device) -> ImagesInMemory:
        """The images, split by a constant seed; normalised, and augmented for training."""
        model = settings.model or self.models[0]
        if model not in NETWORKS:
            raise unknown("model", model, NETWORKS)
        arrays, source = load_cifar10(settings.data)
        train, test = Part(arrays.train, arrays.train_labels), Part(arrays.test, arrays.test_labels)
        order = torch.randperm(len(train), generator=generator("cifar10", "split"))
        held_out = len(train) // 5
        parts = {
            "train": train.take(order[held_out:]),
            "valid": train.take(order[:held_out]),
            "test": test.take(torch.randperm(len(test), generator=generator("cifar10", "split", "test"))),
        }
        return ImagesInMemory(
            parts,
            lambda: NETWORKS[model](len(arrays.classes), settings.width),
            settings,
            self.budgets[settings.budget],
            device,
            identity=arrays.digest,
            about={"source": source.name, "classes": len(arrays.classes), "image": [3, 32, 32]},
            augment=flip_and_frame,
        )
