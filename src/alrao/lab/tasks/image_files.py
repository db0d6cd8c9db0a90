"""Classification of images that are read from their files while training."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..data.folders import Listing, load_image
from ..errors import LabError
from ..seeds import seed_of
from ..vision import transforms
from .examples import Examples
from .task import Batch, Classification

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as in torchvision."""
EVALUATION_BATCH = 128
MOST_WORKERS = 8


class ImagesInFolders(Classification, Examples):
    """Image files, read, cropped and flipped by worker processes.

    A random crop depends only on the seed, the epoch and the number of the image: not on the number of
    workers, nor on where an epoch was resumed.
    """

    parts: dict[str, Listing]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = self.about["image"][-1]
        _require_fit(self.network, self.settings.model or self.task.models[0], size)
        self.workers = _workers(self.settings.workers)
        random = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
        central = [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
        self.for_training = transforms.Compose([*random, transforms.PILToTensor()])
        self.for_evaluation = transforms.Compose([*central, transforms.PILToTensor()])
        mean, deviation = torch.tensor(MEAN)[:, None, None], torch.tensor(DEVIATION)[:, None, None]
        self.scale, self.shift = (1 / (255 * deviation)).to(self.device), (-mean / deviation).to(self.device)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order = self.order(epoch)
        numbers = [order[low:high].tolist() for low, high in self.cuts[start:]]
        seed = (self.settings.seed, "augment", epoch)
        return self._read(_Images(self.parts["train"], self.for_training, seed), numbers)

    def evaluation(self, part: str) -> Iterator[Batch]:
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
                    generator=torch.Generator(),  # else it draws from the global one, which is the network's
                    pin_memory=self.device.type == "cuda",
                )
            )
        try:
            for batch in batches:
                pixels, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
                yield pixels.float().mul_(self.scale).add_(self.shift), labels
        except LabError as error:  # from a worker, with its traceback before the message
            raise LabError(str(error).splitlines()[-1].removeprefix("alrao.lab.errors.LabError: ")) from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            reason = str(error).splitlines()[0]
            raise LabError(f"a process that reads images died: try fewer --workers ({reason})") from error


class _Images(Dataset[Any]):
    """Pixels and label of an image, by its number."""

    def __init__(
        self, listing: Listing, transform: Callable[[Any], Tensor], seed: tuple[object, ...] | None
    ) -> None:
        self.listing, self.transform, self.seed = listing, transform, seed

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = load_image(self.listing.path(number))
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            if self.seed is not None:
                torch.default_generator.manual_seed(seed_of(*self.seed, number))
            return self.transform(image), int(self.listing.labels[number])


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
    """Raise if a network does not accept images of a size, by passing one through it on the meta device."""
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
