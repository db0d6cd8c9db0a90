"""Classification of images in memory, and CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..seeds import generator
from ..settings import Settings
from ..zoo import paper, small
from .examples import Data, Examples, ExamplesTask, InMemory, Part
from .task import Budget, Classification

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

    def __init__(self, task: ImageTask, *args: Any) -> None:
        super().__init__(task, *args)
        self.augment = flip_and_frame if task.augmented else None
        mean, deviation = _statistics(self.parts["train"].inputs.cpu())
        self.scale = (1 / deviation).float().to(self.device)
        self.shift = (-mean / deviation).float().to(self.device)
        if not self.settings.resplit:
            self.about |= {"mean": mean.flatten().tolist(), "deviation": deviation.flatten().tolist()}

    def network(self) -> nn.Module:
        # With the channels last, convolutions take a quarter less time on a CPU.
        return super().network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def prepare(self, inputs: Tensor, *name: object) -> Tensor:
        if name and self.augment is not None:
            inputs = self.augment(inputs, generator(self.settings.seed, *name))
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


class ImageTask(ExamplesTask):
    """Classification of images in memory."""

    kind = ImagesInMemory
    augmented: ClassVar[bool] = False


NETWORKS: dict[str, Callable[[int, float], nn.Module]] = {
    "small": lambda classes, width: small.small_cnn(3, classes, width),
    "small-nobn": lambda classes, width: small.small_cnn(3, classes, width, batch_norm=False),
    "mlp": lambda classes, width: small.mlp(3072, classes, hidden=(small.scaled(128, width),) * 2),
    "resnet-gn": small.residual,
    "resnet-bn": lambda classes, width: small.residual(classes, width, batch_norm=True),
    "separable": small.separable,
    "vit": lambda classes, width: small.VisionTransformer(classes, width=width),
    "mixer": lambda classes, width: small.Mixer(classes, width=width),
    "vgg19": paper.vgg19,
    "googlenet": paper.googlenet,
    "mobilenet": paper.mobilenet_v2,
}


def cifar10(settings: Settings) -> Data:
    """Read CIFAR-10 and split it."""
    from ..data.cifar import load_cifar10  # which imports torchvision

    arrays, source = load_cifar10(settings.data)
    train, test = Part(arrays.train, arrays.train_labels), Part(arrays.test, arrays.test_labels)
    order = torch.randperm(len(train), generator=generator("cifar10", "split"))
    held_out = len(train) // 5
    parts = {
        "train": train.take(order[held_out:]),
        "valid": train.take(order[:held_out]),
        "test": test.take(torch.randperm(len(test), generator=generator("cifar10", "split", "test"))),
    }
    about = {"source": source.name, "classes": len(arrays.classes), "image": [3, 32, 32]}
    return parts, arrays.digest, about


class Cifar10(ImageTask):
    """CIFAR-10; a fifth of the training images is held out for validation: 40,000, 10,000 and 10,000."""

    name = "cifar10"
    summary = "CIFAR-10 with the paper's augmentation (--data)"
    models = tuple(NETWORKS)
    mini = Budget(epochs=6, batch=32, seeds=3, train=20_000, valid=5_000, test=10_000)
    paper = Budget(epochs=500, batch=32, seeds=10)  # early stopping comes first
    options = frozenset({"width"})
    augmented = True

    def read(self, settings: Settings) -> Data:
        return cifar10(settings)

    def build(self, problem: Examples) -> nn.Module:
        return NETWORKS[problem.settings.model or self.models[0]](10, problem.settings.width)
