"""Folders of image files, one folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch

from ..errors import LabError
from .files import is_archive, readable, short_digest, track, unpacked
from .task import Part


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


def require_same_classes(first: Listing, second: Listing) -> None:
    """Raise if two folders do not have the same classes."""
    different = sorted({*first.classes} ^ {*second.classes})
    if different:
        some = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
        raise LabError(f"classes that are not in both of {first.root} and {second.root}: {some}")


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
