"""Folders of image files, one folder for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import LabError
from .files import is_archive, readable
from .pictures import EXTENSIONS
from .places import short_digest
from .progress import progress
from .unpack import unpacked

__all__ = ["Listing", "identity_of", "in_proportion", "open_folder", "require_same_classes", "scan"]


@dataclass(frozen=True)
class Listing:
    """Image files and their classes.

    Names and labels are arrays, and not lists, so that processes started later share the memory they are in.
    """

    root: Path
    classes: tuple[str, ...]
    names: np.ndarray[Any, Any]
    """Paths from the root, as bytes."""
    labels: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    """Of the files, in bytes."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: torch.Tensor) -> Listing:
        """Those of the indices, in their order."""
        chosen = indices.numpy()
        return Listing(self.root, self.classes, self.names[chosen], self.labels[chosen], self.sizes[chosen])

    def path(self, index: int) -> Path:
        """The file of that number."""
        return self.root / os.fsdecode(self.names[index])


def open_folder(source: Path) -> Path:
    """The folder itself, or what an archive unpacks to; past a single folder that holds all the others.

    Raises:
        LabError: it is neither a folder nor an archive, or it is damaged.
    """
    if source.is_dir():
        folder = source
    elif is_archive(source):
        folder = unpacked(source)
    else:
        raise LabError(f"{source} is neither a folder nor a tar archive of one")
    while True:
        inside = _folders(folder)
        if len(inside) != 1 or inside[0] == "train" or not _folders(folder / inside[0]):
            return folder
        folder = folder / inside[0]


def scan(folder: Path) -> Listing:
    """The images below ``<class>/`` in a folder, sorted by class and name; hidden files do not count.

    Raises:
        LabError: there are fewer than two classes, or one has no images.
    """
    classes = tuple(_folders(folder))
    if len(classes) < 2:
        found = f"only {classes[0]}/" if classes else "none"
        raise LabError(
            f"{folder} needs a folder of images for each of at least two classes; there is {found}"
        )
    names: list[bytes] = []
    labels: list[int] = []
    sizes: list[int] = []
    with readable(folder), progress(f"listing {folder.name}") as show:
        for label, name in enumerate(classes):
            before = len(names)
            for path, size in _images(folder / name):
                names.append(os.fsencode(os.path.relpath(path, folder)))
                labels.append(label)
                sizes.append(size)
            if len(names) == before:
                raise LabError(
                    f"{folder / name} holds no image ({', '.join(EXTENSIONS)}): fill or remove the folder"
                )
            show((label + 1) / len(classes))
    return Listing(folder, classes, np.array(names), np.array(labels), np.array(sizes))


def require_same_classes(first: Listing, second: Listing) -> None:
    """Raise if two folders do not have the same classes.

    Raises:
        LabError: they differ; the message names up to five classes.
    """
    different = sorted({*first.classes} ^ {*second.classes})
    if different:
        some = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
        raise LabError(f"classes that are not in both of {first.root} and {second.root}: {some}")


def in_proportion(listing: Listing, shares: Sequence[float], generator: torch.Generator) -> list[Listing]:
    """Random parts of a listing, each in random order, with the classes in the same proportions in all."""
    order = torch.randperm(len(listing), generator=generator)
    labels = torch.from_numpy(listing.labels)[order]
    counts = torch.bincount(labels, minlength=len(listing.classes))
    firsts = counts.cumsum(0) - counts
    sorted_labels, by_class = labels.sort(stable=True)
    ranks = torch.empty(len(listing), dtype=torch.float64)
    ranks[by_class] = torch.arange(len(listing), dtype=torch.float64) - firsts[sorted_labels]
    quantiles = (ranks + 0.5) / counts[labels]
    bounds = torch.tensor(shares, dtype=torch.float64).cumsum(0)[:-1]
    part = torch.bucketize(quantiles, bounds)
    return [listing.take(order[part == number]) for number in range(len(shares))]


def identity_of(listings: Sequence[Listing]) -> str:
    """A digest of the classes, names and sizes."""
    parts: list[object] = []
    for listing in listings:
        parts += [listing.classes, listing.names.tobytes(), listing.labels.tobytes(), listing.sizes.tobytes()]
    return short_digest(*parts)


def _folders(folder: Path) -> list[str]:
    with readable(folder), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[tuple[str, int]]:
    """Paths and sizes of the images at any depth, sorted."""
    found = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found += _images(Path(entry.path))
            elif entry.name.lower().endswith(EXTENSIONS):
                found.append((entry.path, entry.stat().st_size))
    return found
