"""One's own images, sorted into a folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from ..data.folders import Listing, identity_of, in_proportion, open_folder, require_same_classes, scan
from ..data.places import data_path
from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from .folders import FolderTask
from .task import Budget

__all__ = ["ImageFolder"]

WANTED = (
    "sort images into folders <class>/, or train/<class>/ and test/<class>/, and name the folder they are "
    "in, or a tar of it, with --data or ALRAO_DATA"
)


class ImageFolder(FolderTask):
    """Folders of images named after their classes, split 80 : 10 : 10 unless they are split already.

    With ``train`` and one of ``val``, ``valid`` and ``test`` beside it, the latter is for testing and a tenth
    of the former for validation; with ``test`` and a ``val`` or ``valid``, each is what it says.
    """

    name = "imagefolder"
    summary = "your images: a folder, or a tar of one, with a folder for each class"
    models = ("resnet18", "*")
    budgets: ClassVar = {
        "mini": Budget(epochs=5, batch=32, seeds=3, train=4_000, valid=1_000, test=1_000),
        "paper": Budget(epochs=200, batch=64, seeds=3),  # not in the paper
    }

    def read(self, settings: Settings) -> tuple[Path, dict[str, Listing], str]:
        """The parts as the folder has them, or a fixed split of it."""
        source = data_path(settings.data, WANTED)
        folder = open_folder(source)
        listings, parts = _parts(folder)
        for name, part in parts.items():
            if not len(part):
                raise LabError(
                    f"{source}: {len(listings[0])} images are too few to split, none is left for {name}"
                )
        return source, parts, identity_of(listings)


def _parts(folder: Path) -> tuple[list[Listing], dict[str, Listing]]:
    """The folders that were read, and the three parts made of them."""
    if not (folder / "train").is_dir():
        everything = scan(folder)
        train, valid, test = in_proportion(everything, (0.8, 0.1, 0.1), generator("imagefolder", "split"))
        return [everything], {"train": train, "valid": valid, "test": test}
    train = scan(folder / "train")
    others = {name: scan(folder / name) for name in ("val", "valid", "test") if (folder / name).is_dir()}
    if not others:
        raise LabError(f"{folder} has a folder train, but none of val, valid and test; {WANTED}")
    for other in others.values():
        require_same_classes(train, other)
    listings = [train, *others.values()]
    test = _shuffled(others.pop("test") if "test" in others else others.popitem()[1], "test")
    if others:
        return listings, {
            "train": _shuffled(train, "train"),
            "valid": _shuffled(others.popitem()[1], "valid"),
            "test": test,
        }
    train, valid = in_proportion(train, (0.9, 0.1), generator("imagefolder", "split"))
    return listings, {"train": train, "valid": valid, "test": test}


def _shuffled(listing: Listing, part: str) -> Listing:
    return listing.take(torch.randperm(len(listing), generator=generator("imagefolder", "split", part)))
