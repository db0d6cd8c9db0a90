"""ImageNet as in the paper, or any image folder with its layout."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from ..data.files import is_archive
from ..data.folders import Listing, identity_of, open_folder, require_same_classes, scan
from ..data.places import data_path
from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from .folders import FolderTask
from .task import Budget

__all__ = ["ImageNet"]

WANTED = (
    "get the ILSVRC 2012 images from https://www.image-net.org, sort them into train/<class>/ and "
    "val/<class>/, and name the folder with --data or ALRAO_DATA"
)
HELD_OUT = 60_000
"""Training images for validation."""
FEWER = 20
"""In a smaller folder, one image of so many."""
TEST = ("val", "valid", "test")


class ImageNet(FolderTask):
    """Folders ``train`` and ``val``; the latter is for testing, and some of the former are for validation.

    As in the paper, 60,000 of the training images are held out, or every twentieth if those are fewer.
    """

    name = "imagenet"
    summary = "ImageNet: a folder, or a tar of one, with train/<class>/ and val/<class>/"
    models = ("alexnet", "resnet50", "densenet121", "*")
    budgets: ClassVar = {
        "mini": Budget(epochs=2, batch=32, seeds=1, train=2_000, valid=500, test=1_000),
        "paper": Budget(epochs=200, batch=256, seeds=1),  # early stopping comes first
    }

    def batch(self, settings: Settings) -> int:
        """Half as many for DenseNet121."""
        usual = super().batch(settings)
        return min(usual, 128) if settings.model == "densenet121" else usual

    def read(self, settings: Settings) -> tuple[Path, dict[str, Listing], str]:
        """The training images without those held out, these, and those of ``val``."""
        source = _find(data_path(settings.data, WANTED))
        folder = open_folder(source)
        test_folder = next((folder / name for name in TEST if (folder / name).is_dir()), None)
        if test_folder is None or not (folder / "train").is_dir():
            raise LabError(f"{source} needs folders train and val (or valid, or test); {WANTED}")
        train, test = scan(folder / "train"), scan(test_folder)
        require_same_classes(train, test)
        order = torch.randperm(len(train), generator=generator("imagenet", "split"))
        held_out = max(1, min(HELD_OUT, len(train) // FEWER))
        parts = {
            "train": train.take(order[held_out:]),
            "valid": train.take(order[:held_out]),
            "test": test.take(torch.randperm(len(test), generator=generator("imagenet", "split", "test"))),
        }
        return source, parts, identity_of([train, test])


def _find(place: Path) -> Path:
    if place.is_file():
        return place
    candidates = [
        place,
        *sorted(path for path in place.iterdir() if path.name.lower().startswith(("imagenet", "ilsvrc"))),
    ]
    for path in candidates:
        if is_archive(path) or (path / "train").is_dir():
            return path
    raise LabError(
        f"no ImageNet in {place}: neither a folder train, nor imagenet/, nor imagenet.tar; {WANTED}"
    )
