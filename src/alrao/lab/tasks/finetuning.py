"""Fine-tuning on few rows: a network trained on half of the classes learns the others."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..seeds import generator, seed_of
from ..settings import Settings
from ..zoo import small
from .digits import digits
from .examples import Data, Examples, Part
from .images import ImageTask, cifar10
from .task import Budget

CLASSES = 5
"""The first five classes are known, the other five are learned."""
BATCH = 64
"""Images of a step of the first training, which is Adam's at 0.001."""


class _Finetuning(ImageTask):
    """The unknown classes of images, with a network that knows the others; its output layer is new."""

    source: ClassVar[staticmethod[[Settings], Data]]
    """Reads the data with all ten classes."""
    fresh: ClassVar[staticmethod[[int], nn.Sequential]]
    """Returns the network before its first training."""
    steps: ClassVar[int]
    """Of the first training."""
    trained: ClassVar[dict[str, nn.Module]] = {}
    """The networks after their first training, by the data they were trained on."""

    def read(self, settings: Settings) -> Data:
        parts, identity, about = self.source(settings)
        unknown = {}
        for name, part in parts.items():
            rest = part.take((part.targets >= CLASSES).nonzero().flatten())
            unknown[name] = Part(rest.inputs, rest.targets - CLASSES)
        return unknown, identity, {**about, "classes": CLASSES}

    def build(self, problem: Examples) -> nn.Module:
        settings = problem.settings
        parts, identity, _ = self.source(settings)
        key = f"{identity} {settings.seed if settings.resplit else ''}"
        if key not in self.trained:
            self.trained.clear()
            self.trained[key] = self._train(parts["train"])
        net: Any = copy.deepcopy(self.trained[key])
        net[-1] = nn.Linear(net[-1].in_features, CLASSES)
        return net

    def _train(self, part: Part) -> nn.Module:
        """Return the network after its first training: the same for every run on this data."""
        known = part.take((part.targets < CLASSES).nonzero().flatten())
        images = known.inputs.float()
        images = (images - images.mean()) / images.std()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("pretraining", self.name))
            net, random = self.fresh(CLASSES), generator("pretraining", self.name, "order")
            optimizer = torch.optim.Adam(net.parameters())
            for _ in range(self.steps):
                which = torch.randint(len(known), (BATCH,), generator=random)
                optimizer.zero_grad()
                F.cross_entropy(net(images[which]), known.targets[which]).backward()
                optimizer.step()
        return net


class FinetuneDigits(_Finetuning):
    """The digits 5 to 9 from 100 images, after 0 to 4."""

    name = "finetune-digits"
    summary = "digits 5 to 9 from 100 images, by a network that knows 0 to 4; no download"
    models = ("cnn",)
    mini = Budget(epochs=15, batch=16, seeds=3, train=100)
    paper = Budget(epochs=100, batch=16, seeds=10, train=100)  # not in the paper
    options = frozenset({"resplit"})
    source, fresh, steps = staticmethod(digits), staticmethod(small.digits_cnn), 150


class FinetuneCifar10(_Finetuning):
    """Five classes of CIFAR-10 from 500 images, after the other five."""

    name = "finetune-cifar10"
    summary = "five classes of CIFAR-10 from 500 images, by a network that knows the others (--data)"
    models = ("resnet-gn",)
    mini = Budget(epochs=15, batch=32, seeds=3, train=500, valid=1_000, test=2_000)
    paper = Budget(epochs=100, batch=32, seeds=10, train=500)  # not in the paper
    source, fresh, steps = staticmethod(cifar10), staticmethod(small.residual), 200
