"""Images in memory: CIFAR-10 and handwritten digits, to classify and to fine-tune on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..seeds import generator
from ..settings import Settings
from ..zoo import modern, paper, small
from .cifar import load_cifar10
from .files import shipped, short_digest
from .task import Batch, Budget, Classification, Data, InMemory, Part, hold_out, pretrained

BAND = 4
"""The widest band, in pixels."""


def flip_and_frame(images: Tensor, generator: torch.Generator) -> Tensor:
    r"""Each image flipped with probability ½, and a black band of random width on each of its four sides.

    The widths are independent and uniform on 0, …, 4. Black is 0, so this comes before any normalisation.

    Images are (n, channels, height, width) on any device; the generator is on the CPU: all draw alike.
    """
    n, _, height, width = images.shape
    flips = torch.randint(2, (n,), generator=generator)
    top, bottom, left, right = torch.randint(BAND + 1, (4, n, 1), generator=generator)
    rows, columns = torch.arange(height), torch.arange(width)
    keep_rows = ((rows >= top) & (rows < height - bottom)).to(images)
    keep_columns = ((columns >= left) & (columns < width - right)).to(images)
    keep = keep_rows[:, None, :, None] * keep_columns[:, None, None, :]
    chosen = (torch.arange(n) + n * flips).to(images.device)
    return torch.cat([images, images.flip(-1)]).index_select(0, chosen).mul_(keep)


class ImagesInMemory(Classification, InMemory):
    """Images (n, channels, height, width) of bytes, normalised by the training part's mean and deviation.

    Training images may be augmented before, as bytes.
    """

    at_once = 500

    augmented: ClassVar[bool] = False
    networks: ClassVar[Mapping[str, Callable[[int, float], nn.Module]]]
    """Build networks, given the number of classes and the width."""

    def load(self, settings: Settings, device: torch.device) -> Self:
        super().load(settings, device)
        mean, deviation = _statistics(self.parts["train"].inputs.cpu())
        self.scale = (1 / deviation).float().to(device)
        self.shift = (-mean / deviation).float().to(device)
        if not settings.resplit:
            self.about |= {"mean": mean.flatten().tolist(), "deviation": deviation.flatten().tolist()}
        return self

    def network(self) -> nn.Module:
        # With the channels last, convolutions take a quarter less time on a CPU.
        return self.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def build(self) -> nn.Module:
        model = self.settings.model or self.models[0]
        return self.networks[model](self.about["classes"], self.settings.width)

    def prepare(self, inputs: Tensor, *name: object) -> Tensor:
        if name and self.augmented:
            inputs = flip_and_frame(inputs, generator(self.settings.seed, *name))
        images = inputs.to(torch.float32, memory_format=torch.channels_last)
        return images.mul_(self.scale).add_(self.shift)


def _statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, (channels, 1, 1), exactly: bytes can be counted."""
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)])
    weights = counts.double() / counts.sum(1, keepdim=True)
    mean = weights @ values
    deviation = (weights @ values.square() - mean.square()).clamp_min(0).sqrt()
    deviation[deviation == 0] = 1
    return mean[:, None, None], deviation[:, None, None]


def cifar10(settings: Settings) -> Data:
    """Read CIFAR-10; a fifth of the training images is held out for validation."""
    arrays, source = load_cifar10(settings.data)
    train, test = Part(arrays.train, arrays.train_labels), Part(arrays.test, arrays.test_labels)
    parts = hold_out(train, test, len(train) // 5, "cifar10")
    about = {"source": source.name, "classes": len(arrays.classes), "image": [3, 32, 32]}
    return parts, arrays.digest, about


class Cifar10(ImagesInMemory):
    """CIFAR-10 with the paper's augmentation (--data)."""

    networks: ClassVar = {
        "small": small.cnn,
        "mlp": partial(small.mlp, 3072),
        "resnet-gn": small.residual,
        "resnet-bn": partial(small.residual, batch_norm=True),
        "separable": small.separable,
        "vit": small.VisionTransformer,
        "convnext": modern.convnext,
        "densenet": modern.densenet,
        "vgg19": paper.vgg19,
        "googlenet": paper.googlenet,
        "mobilenet": paper.mobilenet_v2,
    }
    models = tuple(networks)
    mini = Budget(epochs=6, batch=32, seeds=3, train=20_000, valid=5_000, test=10_000)
    paper = Budget(epochs=500, batch=32, seeds=10)  # early stopping comes first
    options = frozenset({"width"})
    augmented = True

    def read(self, settings: Settings) -> Data:
        return cifar10(settings)


SPLIT = {"train": 1000, "valid": 397, "test": 400}


digits_cnn = partial(small.cnn, channels=1, sizes=(16, 32, 64))


class Digits(ImagesInMemory):
    """scikit-learn's handwritten digits, 8×8 pixels; no download."""

    networks: ClassVar = {
        "mlp": partial(small.mlp, 64),
        "cnn": digits_cnn,
    }
    models = tuple(networks)
    mini = Budget(epochs=30, batch=32, seeds=3)
    paper = Budget(epochs=100, batch=32, seeds=10)  # not in the paper
    options = frozenset({"resplit", "width"})

    def read(self, settings: Settings) -> Data:
        pixels, labels = shipped("load_digits", return_X_y=True)
        pixels = pixels.astype("uint8")
        everything = Part(torch.from_numpy(pixels).view(-1, 1, 8, 8), torch.from_numpy(labels).long())
        name = ("digits", "split", settings.seed) if settings.resplit else ("digits", "split")
        order = torch.randperm(len(everything), generator=generator(*name))
        rows = zip(SPLIT, order.split(list(SPLIT.values())), strict=True)
        digest = short_digest(pixels.tobytes(), labels.tolist())
        about = {"source": "scikit-learn", "image": [1, 8, 8], "classes": 10}
        return {name: everything.take(which) for name, which in rows}, digest, about


CLASSES = 5
"""The first five classes are known, the other five are learned."""
FIRST_STEPS, BATCH = 200, 64
"""Of the first training."""


class FinetuneCifar10(ImagesInMemory):
    """Five classes of CIFAR-10 from 500 images, by a network trained on the others (--data).

    Its output layer is new.
    """

    models = ("resnet-gn",)
    mini = Budget(epochs=15, batch=32, seeds=3, train=500, valid=1_000, test=2_000)
    paper = Budget(epochs=100, batch=32, seeds=10, train=500)  # not in the paper

    def read(self, settings: Settings) -> Data:
        parts, identity, about = cifar10(settings)
        unknown = {}
        for name, part in parts.items():
            rest = part.take((part.targets >= CLASSES).nonzero().flatten())
            unknown[name] = Part(rest.inputs, rest.targets - CLASSES)
        return unknown, identity, {**about, "classes": CLASSES}

    def build(self) -> nn.Module:
        net: Any = pretrained(self, partial(small.residual, CLASSES), self._known)
        net[-1] = nn.Linear(net[-1].in_features, CLASSES)
        return net

    def _known(self) -> Iterator[Batch]:
        """The batches of the first training."""
        part = cifar10(self.settings)[0]["train"]
        known = part.take((part.targets < CLASSES).nonzero().flatten())
        images = known.inputs.float()
        images = (images - images.mean()) / images.std()
        random = generator("pretraining", self.name, "order")
        for _ in range(FIRST_STEPS):
            which = torch.randint(len(known), (BATCH,), generator=random)
            yield images[which], known.targets[which]
