"""Folders of images, one folder per class, and the tasks on them: ImageNet, and one's own images.

The files are read while training. torchvision takes long to import, so it is imported when a task is loaded.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..errors import LabError
from ..seeds import generator, seed_of
from ..settings import Settings
from .files import data_path, is_archive, readable, short_digest, track, unpacked
from .task import Batch, Budget, Classification, Data, Examples, Part, hold_out

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as in torchvision."""
TESTS = ("val", "valid", "test")
"""Folders that may stand beside ``train``."""
EVALUATION_BATCH = 128
MOST_WORKERS = 8


@cache
def _reader() -> Any:
    from ..zoo.vision import torchvision  # which takes long

    return torchvision.datasets.folder


def is_image(name: str) -> bool:
    """Whether this is the relative name of an image file; hidden ones do not count."""
    hidden = any(part.startswith(".") and part.strip(".") for part in name.split("/"))
    return not hidden and _reader().has_file_allowed_extension(name, _reader().IMG_EXTENSIONS)


def load_image(path: Path) -> Any:
    """Read an image in RGB."""
    try:
        return _reader().default_loader(str(path))
    except Exception as error:  # the decoders of Pillow raise errors of any type
        raise LabError(f"{path} is not an image, or damaged ({error}): replace or remove it") from error


def evaluation_transform(size: int) -> Callable[[Any], Tensor]:
    """Return what turns an image into pixels of a square: the middle of it."""
    from ..zoo.vision import transforms

    central = [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    made: Callable[[Any], Tensor] = transforms.Compose([*central, transforms.PILToTensor()])
    return made


@dataclass(frozen=True)
class Listing(Part):
    """Image files and their classes: the inputs are paths from the root, as bytes.

    They are arrays, not lists: worker processes then share their memory.
    """

    root: Path
    classes: tuple[str, ...]
    sizes: np.ndarray[Any, Any]
    """Of all files below the root, in bytes."""

    def take(self, which: Any) -> Self:
        return super().take(which if isinstance(which, slice) else which.numpy())  # one index is not a number

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(self.inputs[index])


def open_folder(source: Path) -> Path:
    """Return the folder that holds the classes, in a folder or a tar archive of one."""
    if not source.is_dir() and not is_archive(source):
        raise LabError(f"{source} is neither a folder nor a tar archive of one")
    folder = source if source.is_dir() else unpacked(source, is_image)
    while len(inside := _folders(folder)) == 1 and inside[0] != "train" and _folders(folder / inside[0]):
        folder = folder / inside[0]  # it holds nothing but one other folder of folders
    return folder


def scan(folder: Path) -> Listing:
    """List the images below ``<class>/``, sorted by class and name; hidden files do not count."""
    classes = tuple(_folders(folder))
    if len(classes) < 2:
        found = f"only {classes[0]}/" if classes else "none"
        raise LabError(
            f"{folder} needs a folder of images for each of at least two classes; there is {found}"
        )

    def relative(path: str) -> str:
        return path[len(os.path.join(folder, "")) :].replace(os.sep, "/")

    def visible(path: str) -> bool:
        return is_image(relative(path))

    files: list[tuple[str, int]] = []
    reader = _reader()
    with readable(folder):
        for label, name in enumerate(track(classes, f"listing {folder.name}")):
            try:
                found = reader.make_dataset(folder, {name: label}, is_valid_file=visible)
            except FileNotFoundError:
                endings = ", ".join(reader.IMG_EXTENSIONS)
                raise LabError(
                    f"{folder / name} holds no image ({endings}): fill or remove the folder"
                ) from None
            files += sorted(found, key=lambda file: file[0].split(os.sep))
        sizes = [os.path.getsize(path) for path, _ in files]
    names = [os.fsencode(relative(path)) for path, _ in files]
    return Listing(np.array(names), np.array([n for _, n in files]), folder, classes, np.array(sizes))


def scan_parts(folder: Path, names: Sequence[str]) -> list[Listing]:
    """List the images in each of the folders below one, which must have the same classes."""
    first, *others = parts = [scan(folder / name) for name in names]
    for other in others:
        if different := sorted({*first.classes} ^ {*other.classes}):
            some = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
            raise LabError(f"classes that are not in both of {first.root} and {other.root}: {some}")
    return parts


def in_proportion(listing: Listing, shares: Sequence[float], generator: torch.Generator) -> list[Listing]:
    """Split a listing at random into parts in random order, with the same proportions of classes in each."""
    order = torch.randperm(len(listing), generator=generator)
    labels = pd.Series(listing.targets[order.numpy()])
    by_class = labels.groupby(labels)
    quantiles = (by_class.cumcount() + 0.5) / by_class.transform("size")
    part = torch.from_numpy(np.searchsorted(np.cumsum(shares)[:-1], quantiles))
    return [listing.take(order[part == number]) for number in range(len(shares))]


def identity_of(listings: Sequence[Listing]) -> str:
    """Return a digest of classes, names and sizes."""
    arrays = [(each.classes, each.inputs, each.targets, each.sizes) for each in listings]
    parts = ((classes, *(array.tobytes() for array in rest)) for classes, *rest in arrays)
    return short_digest(*(part for each in parts for part in each))


def _folders(folder: Path) -> list[str]:
    with readable(folder):
        return sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")


class ImageFolder(Classification, Examples):
    """Your own images: a folder or tar with a folder per class (--data).

    They are split 80 : 10 : 10 unless they are split already. Of ``train`` and one of ``val``, ``valid`` and
    ``test``, the latter is for testing and a tenth of the former for validation; with ``test`` and a ``val``
    or ``valid``, each is used for what it says.

    Worker processes read, crop and flip the files, for torchvision's networks. A random crop depends only on
    the seed, the epoch and the number of the image: not on the number of workers, nor on where an epoch was
    resumed.
    """

    options = frozenset({"width", "image_size", "workers"})
    models: ClassVar[tuple[str, ...]] = ("resnet18", "*")
    mini = Budget(epochs=5, batch=32, seeds=3, train=4_000, valid=1_000, test=1_000)
    paper = Budget(epochs=200, batch=64, seeds=3)  # not in the paper
    remedy = (
        "sort images into folders <class>/, or train/<class>/ and test/<class>/, and name the folder that "
        "holds them, or a tar of it, with --data or ALRAO_DATA"
    )
    parts: dict[str, Listing]

    def find(self, place: Path) -> Path:
        """Return the folder or archive, in the place that the user named."""
        return place

    def split(self, folder: Path, source: Path) -> tuple[list[Listing], dict[str, Listing]]:
        """Return the folders that were read, and the three parts made of them."""
        name = ("imagefolder", "split")
        random = generator(*name)
        if not (folder / "train").is_dir():
            everything = scan(folder)
            train, valid, test = in_proportion(everything, (0.8, 0.1, 0.1), random)
            return [everything], {"train": train, "valid": valid, "test": test}
        tests = [name for name in TESTS if (folder / name).is_dir()]
        if not tests:
            raise LabError(f"{source} has a folder train, but none of val, valid and test; {self.remedy}")
        listings = train, *others, last = scan_parts(folder, ["train", *tests])
        test = last.shuffled(*name, "test")
        if others:
            train, valid = train.shuffled(*name, "train"), others[-1].shuffled(*name, "valid")
        else:
            train, valid = in_proportion(train, (0.9, 0.1), random)
        return listings, {"train": train, "valid": valid, "test": test}

    def read(self, settings: Settings) -> Data:
        source = self.find(data_path(settings.data, self.remedy))
        listings, parts = self.split(open_folder(source), source)
        for name, part in parts.items():
            if not len(part):
                count = len(listings[0])
                raise LabError(f"{source}: {count} images are too few to split, none is left for {name}")
        size = settings.image_size or {"mini": 64, "paper": 224}[settings.budget]
        about = {"source": source.name, "classes": len(listings[0].classes), "image": [3, size, size]}
        return parts, identity_of(listings), about

    def load(self, settings: Settings, device: torch.device) -> Self:
        from ..zoo.vision import transforms

        super().load(settings, device)
        size = self.about["image"][-1]
        _require_fit(self.network, settings.model or self.models[0], size)
        self.workers = _workers(settings.workers)
        random = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
        self.for_training = transforms.Compose([*random, transforms.PILToTensor()])
        self.for_evaluation = evaluation_transform(size)
        mean, deviation = torch.tensor(MEAN)[:, None, None], torch.tensor(DEVIATION)[:, None, None]
        self.scale, self.shift = (1 / (255 * deviation)).to(device), (-mean / deviation).to(device)
        return self

    def preparation(self) -> dict[str, Any]:
        return {
            "input": "images",
            "about": {"classes": self.about["classes"]},
            "labels": list(self.parts["train"].classes),
            "shape": self.about["image"],
            "scale": self.scale.cpu(),
            "shift": self.shift.cpu(),
        }

    def network(self) -> nn.Module:
        from ..zoo.vision import classifier

        model, width = self.settings.model or self.models[0], self.settings.width
        return classifier(model, self.about["classes"], width=width)

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
            raise LabError(str(error).splitlines()[-1].removeprefix("alrao_lab.errors.LabError: ")) from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            reason = str(error).splitlines()[0]
            raise LabError(f"a process that reads images died: try fewer --workers ({reason})") from error


@dataclass
class _Images(Dataset[Any]):
    """Pixels and label of an image, by its number."""

    listing: Listing
    transform: Callable[[Any], Tensor]
    seed: tuple[object, ...] | None

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = load_image(self.listing.path(number))
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            if self.seed is not None:
                torch.default_generator.manual_seed(seed_of(*self.seed, number))
            return self.transform(image), int(self.listing.targets[number])


def _workers(wanted: int | None) -> int:
    if wanted is not None:
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


class ImageNet(ImageFolder):
    """ImageNet, or any folder or tar with train/<class>/ and val/<class>/ (--data).

    ``val`` is for testing. As in the paper, 60,000 images of ``train`` are held out for validation, or every
    twentieth if those are fewer.
    """

    models = ("alexnet", "resnet50", "densenet121", "*")
    mini = Budget(epochs=2, batch=32, seeds=1, train=2_000, valid=500, test=1_000)
    paper = Budget(epochs=200, batch=256, seeds=1)  # early stopping comes first
    remedy = (
        "get the ILSVRC 2012 images from https://www.image-net.org, sort them into train/<class>/ and "
        "val/<class>/, and name the folder with --data or ALRAO_DATA"
    )
    held_out = 60_000
    held_out_of_fewer = 20
    """Of a smaller folder, one image in this many is held out."""

    def batch(self, settings: Settings) -> int:
        """Return the default batch size, at most 128 for DenseNet121."""
        usual = super().batch(settings)
        return min(usual, 128) if settings.model == "densenet121" else usual

    def split(self, folder: Path, source: Path) -> tuple[list[Listing], dict[str, Listing]]:
        tests = [name for name in TESTS if (folder / name).is_dir()]
        if not tests or not (folder / "train").is_dir():
            raise LabError(f"{source} needs folders train and val (or valid, or test); {self.remedy}")
        train, test = scan_parts(folder, ["train", tests[0]])
        count = max(1, min(self.held_out, len(train) // self.held_out_of_fewer))
        return [train, test], hold_out(train, test, count, "imagenet")

    def find(self, place: Path) -> Path:
        if place.is_file():
            return place
        named = (path for path in place.iterdir() if path.name.lower().startswith(("imagenet", "ilsvrc")))
        for path in (place, *sorted(named)):
            if is_archive(path) or (path / "train").is_dir():
                return path
        raise LabError(
            f"no ImageNet in {place}: neither a folder train, nor imagenet/, nor imagenet.tar; {self.remedy}"
        )
