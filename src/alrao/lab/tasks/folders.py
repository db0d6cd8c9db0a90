"""Classification of images that are read from their files while training."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..data.folders import Listing
from ..data.pictures import decode
from ..errors import LabError, unknown
from ..seeds import generator, seed_of
from ..settings import Settings
from .images import cut, limited
from .task import Batch, Budget, Classification, Task

__all__ = ["FolderTask", "ImagesInFolders"]

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as torchvision has them."""
EVALUATION_BATCH = 128
MOST_WORKERS = 8


class FolderTask(Task):
    """What image folders have in common: torchvision's networks and transforms."""

    image_sizes: ClassVar[Mapping[str, int]] = {"mini": 64, "paper": 224}
    options = frozenset({"width", "image_size", "workers"})

    @abstractmethod
    def read(self, settings: Settings) -> tuple[Path, dict[str, Listing], str]:
        """Where the data is from, the parts ``train``, ``valid`` and ``test``, and the data's identity."""

    def load(self, settings: Settings, device: torch.device) -> ImagesInFolders:
        """List the files, and make sure that the network takes images of their size."""
        from ..zoo.vision import classifier, classifiers

        model = settings.model or self.models[0]
        if model not in (known := classifiers()):
            raise unknown("model", model, known)
        size = settings.image_size or self.image_sizes[settings.budget]
        source, parts, identity = self.read(settings)
        classes = parts["train"].classes

        def build() -> nn.Module:
            return classifier(model, len(classes), width=settings.width)

        _require_fit(build, model, size)
        return ImagesInFolders(
            parts,
            build,
            settings,
            self.budgets[settings.budget],
            device,
            batch=settings.batch or self.batch(settings),
            size=size,
            identity=identity,
            about={"source": source.name, "classes": len(classes)},
        )


class ImagesInFolders(Classification):
    """Image files, read, cropped and flipped by other processes.

    What happens to an image depends on the seed, the epoch and its number alone: not on how many processes
    there are, nor on where an epoch was resumed.

    Args:
        parts: ``train``, ``valid`` and ``test``, each in a fixed random order.
        build: makes a plain network.
        settings: of the run.
        budget: the task's, for that run.
        device: where the batches go.
        batch: images in a training batch.
        size: side of the images that the network sees.
        identity: stands for the data.
        about: what else ``config.json`` says of it.
    """

    def __init__(
        self,
        parts: Mapping[str, Listing],
        build: Callable[[], nn.Module],
        settings: Settings,
        budget: Budget,
        device: torch.device,
        *,
        batch: int,
        size: int,
        identity: str,
        about: Mapping[str, object],
    ) -> None:
        from ..zoo.vision import torchvision

        sizes = limited({name: len(part) for name, part in parts.items()}, budget, settings)
        self.parts = {name: part.take(torch.arange(sizes[name])) for name, part in parts.items()}
        self.build = build
        self.seed = settings.seed
        self.device = device
        self.identity = identity
        self.workers = _workers(settings.workers)
        self.cuts = cut(sizes["train"], batch)
        self.steps = len(self.cuts)
        self.about = {**about, **sizes, "image": [3, size, size]}
        transforms = torchvision.transforms
        self.for_training = transforms.Compose(
            [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        )
        self.for_evaluation = transforms.Compose(
            [
                transforms.Resize(round(size * 256 / 224)),
                transforms.CenterCrop(size),
                transforms.PILToTensor(),
            ]
        )
        mean, deviation = torch.tensor(MEAN)[:, None, None], torch.tensor(DEVIATION)[:, None, None]
        self.scale, self.shift = (1 / (255 * deviation)).to(device), (-mean / deviation).to(device)

    def network(self) -> nn.Module:
        """A fresh plain network."""
        return self.build()

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Random crops in the epoch's order, from number ``start`` on."""
        train = self.parts["train"]
        order = torch.randperm(len(train), generator=generator(self.seed, "order", epoch))
        numbers = [order[low:high].tolist() for low, high in self.cuts[start:]]
        return self._read(_Images(train, self.for_training, (self.seed, "augment", epoch)), numbers)

    def evaluation(self, part: str) -> Iterator[Batch]:
        """The centres of the images of a part."""
        chosen = self.parts[part]
        numbers = torch.arange(len(chosen)).split(EVALUATION_BATCH)
        return self._read(_Images(chosen, self.for_evaluation, None), [each.tolist() for each in numbers])

    def _read(self, images: _Images, numbers: list[list[int]]) -> Iterator[Batch]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more than cores, if asked to
            batches = iter(
                DataLoader(
                    images,
                    batch_sampler=numbers,
                    num_workers=min(self.workers, len(numbers)),
                    collate_fn=_collate,
                    generator=torch.Generator(),  # else it draws from the global one, which is the network's
                    pin_memory=self.device.type == "cuda",
                )
            )
        try:
            for batch in batches:
                if isinstance(batch, str):
                    raise LabError(batch)
                pixels, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
                yield pixels.float().mul_(self.scale).add_(self.shift), labels
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            reason = str(error).splitlines()[0]
            raise LabError(f"a process that reads images died: try fewer --workers ({reason})") from error


class _Images(Dataset[Any]):
    """Pixels and label of an image by its number, or the line that says why it cannot be read.

    An exception would arrive from another process with a traceback for a message.
    """

    def __init__(
        self, listing: Listing, transform: Callable[[Any], Tensor], seed: tuple[object, ...] | None
    ) -> None:
        self.listing = listing
        self.transform = transform
        self.seed = seed

    def __getitem__(self, number: int) -> tuple[Tensor, int] | str:
        path = self.listing.path(number)
        try:
            image = decode(path, str(path))
        except LabError as error:
            return str(error)
        return self._transformed(image, number), int(self.listing.labels[number])

    def _transformed(self, image: Any, number: int) -> Tensor:
        if self.seed is None:
            return self.transform(image)
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(seed_of(*self.seed, number))
            return self.transform(image)


def _collate(samples: list[tuple[Tensor, int] | str]) -> tuple[Tensor, Tensor] | str:
    pixels, labels = [], []
    for sample in samples:
        if isinstance(sample, str):
            return sample
        pixels.append(sample[0])
        labels.append(sample[1])
    return torch.stack(pixels), torch.tensor(labels)


def _workers(wanted: int | None) -> int:
    if wanted is not None:
        if wanted < 0:
            raise LabError(f"--workers must not be negative, got {wanted}")
        return wanted
    if multiprocessing.current_process().daemon:  # may not have children
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


def _require_fit(build: Callable[[], nn.Module], model: str, size: int) -> None:
    """Raise if the network cannot take images of that size: pass one through it that has shapes alone."""
    try:
        with torch.device("meta"):
            build().eval()(torch.empty(2, 3, size, size))
    except NotImplementedError:
        return
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LabError(
            f"{model} cannot take images of {size}×{size} ({reason}): try another --image-size"
        ) from error
