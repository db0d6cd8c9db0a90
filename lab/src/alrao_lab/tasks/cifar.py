"""CIFAR-10 in the forms it is distributed in, and its cache on the disk."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import LabError
from ..store import replace_file
from .files import cache_folder, data_path, is_archive, locked, short_digest, state_of, track, unpack
from .folders import is_image, load_image, scan_parts

WANTED = (
    "download cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and name the file, or "
    "the folder it is in, with --data or ALRAO_DATA"
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
"""Bytes of an image in the binary version: its label, then the channels."""

Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Arrays:
    """Images (n, channels, height, width) of bytes, labels (n) of int64, for training and for testing."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...] = field(default=CLASSES, kw_only=True)

    @property
    def parts(self) -> list[Tensor]:
        return [self.train, self.train_labels, self.test, self.test_labels]

    @cached_property
    def digest(self) -> str:
        """A digest of the pixels and labels, whatever file they came from."""
        contents = [part.contiguous().numpy().reshape(-1).view(np.uint8).data for part in self.parts]
        return short_digest([tuple(part.shape) for part in self.parts], *contents)


def load_cifar10(where: str | Path | None = None) -> tuple[Arrays, Path]:
    """Return the images and labels, and the file or folder they were read from.

    The forms are the distributed ``cifar-10-python.tar.gz`` and ``cifar-10-binary.tar.gz``, the folders they
    unpack to, and image folders ``train/<class>/*`` and ``test/<class>/*`` or a tar archive of them. The
    decoded images are kept in the cache; a damaged cache is written again.
    """
    source = _find(data_path(where, WANTED))
    state = state_of(source, _files(source))
    path = cache_folder() / f"cifar10-{short_digest(str(source.resolve()))}.pt"
    with locked(path):
        try:
            content = torch.load(path, weights_only=True)
            arrays = Arrays(*content["parts"], classes=tuple(content["classes"]))
            if (content["state"], content["digest"]) == (state, arrays.digest):
                return arrays, source
        except Exception:  # whatever is wrong with it, or if there is none, it can be made again
            pass
        arrays = _read(source)
        content = {"state": state, "parts": arrays.parts, "digest": arrays.digest}
        content["classes"] = list(arrays.classes)
        try:
            replace_file(path, lambda file: torch.save(content, file))
        except LabError as error:  # which only costs time
            why = "no cache, so the data will be read again"
            warnings.warn(f"{why}: {error} (ALRAO_CACHE names another place)", stacklevel=2)
    return arrays, source


def _find(place: Path) -> Path:
    if place.is_file():
        return place
    named = ("batches-py", "python.tar.gz", "batches-bin", "binary.tar.gz")
    others = sorted(path for path in place.glob("cifar*10*") if "100" not in path.name)
    for path in (*(place / f"cifar-10-{name}" for name in named), *others, place):
        if is_archive(path) or _is_cifar(path):
            return path
    raise LabError(
        f"no CIFAR-10 in {place}: neither cifar-10-batches-py, cifar-10-batches-bin, their archives "
        f"cifar-10-python.tar.gz and cifar-10-binary.tar.gz, nor folders train and test; {WANTED}"
    )


def _files(source: Path) -> Iterable[Path]:
    if source.is_file():
        return [source]
    batches = (path for path in source.iterdir() if _is_batch(path.name))
    return (*batches, *source.glob("train/*/*"), *source.glob("test/*/*"))


def _is_batch(name: str) -> bool:
    return PurePath(name).stem in (*BATCHES, TEST)


def _read(source: Path) -> Arrays:
    if source.is_dir():
        return _of_folder(source)
    with tempfile.TemporaryDirectory(prefix="alrao-") as place:
        unpack(source, Path(place), lambda name: _is_batch(name) or is_image(name))
        try:
            below = (path.parent for path in sorted(Path(place).rglob("*")))
            return _of_folder(next((path for path in below if _is_cifar(path)), Path(place)))
        except LabError as error:
            raise LabError(str(error).replace(place, str(source))) from error


def _is_cifar(folder: Path) -> bool:
    """Whether a folder has a batch, or folders of images."""
    batches = any((folder / mark).is_file() for mark in (BATCHES[0], f"{BATCHES[0]}.bin"))
    return batches or all((folder / part).is_dir() for part in ("train", "test"))


def _of_folder(folder: Path) -> Arrays:
    if any(_is_batch(path.name) for path in folder.iterdir()):
        ending = ".bin" if any(folder.glob("*.bin")) else ""
        train = [_of_batch(folder / f"{name}{ending}") for name in BATCHES]
        images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
        return Arrays(images, labels, *_of_batch(folder / f"{TEST}{ending}"))
    parts = scan_parts(folder, ["train", "test"])
    if (count := len(parts[0].classes)) != len(CLASSES):
        raise LabError(f"{folder} has {count} classes, CIFAR-10 has {len(CLASSES)}; {WANTED}")
    tensors: list[Tensor] = []
    for part in parts:
        paths = track([part.path(i) for i in range(len(part))], f"reading {part.root.name}")
        tensors += [torch.stack([_pixels(path) for path in paths]), torch.from_numpy(part.targets)]
    return Arrays(*tensors, classes=parts[0].classes)


def _of_batch(path: Path) -> Part:
    """The images and labels of a batch, of the binary version or of the Python version."""
    if not path.is_file():
        raise LabError(f"{path.parent} lacks {path.name}; {WANTED}")
    if not path.suffix:
        return _unpickled(path)
    records = np.fromfile(path, np.uint8)
    if not len(records) or len(records) % RECORD:
        raise LabError(f"{path} is damaged: {len(records)} bytes are not records of {RECORD}; {WANTED}")
    records = records.reshape(-1, RECORD)
    labels = torch.from_numpy(records[:, 0]).long()
    if labels.max() >= len(CLASSES):
        raise LabError(f"{path} is damaged: labels are from 0 to {len(CLASSES) - 1}, got {labels.max()}")
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, SIDE, SIDE).copy()), labels


def _unpickled(path: Path) -> Part:
    """Read a pickle whose digest is known: of others, it could run a program."""
    from ..zoo.vision import torchvision  # which takes long

    known: Any = torchvision.datasets.CIFAR10
    digest = dict([*known.train_list, *known.test_list])[path.name]
    if not torchvision.datasets.utils.check_integrity(str(path), digest):
        raise LabError(f"{path} is damaged or not of CIFAR-10: its MD5 digest differs; {WANTED}")
    batch = pickle.loads(path.read_bytes(), encoding="latin1")
    return torch.from_numpy(batch["data"].reshape(-1, 3, SIDE, SIDE)), torch.tensor(batch["labels"])


def _pixels(path: Path) -> Tensor:
    image = load_image(path)
    if image.size != (SIDE, SIDE):
        raise LabError(f"{path} has {image.width}×{image.height} pixels; CIFAR-10 has {SIDE}×{SIDE}")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
