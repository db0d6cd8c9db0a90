"""Tasks on folders of images: ImageNet, and one's own images.

torchvision takes long to import, so it is imported when a task is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..data.files import data_path, is_archive
from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from .examples import Data, Examples, ExamplesTask
from .task import Budget

if TYPE_CHECKING:
    from ..data.folders import Listing

Parts = dict[str, "Listing"]


class FolderTask(ExamplesTask):
    """A task on image folders, with torchvision's networks and transforms."""

    options = frozenset({"width", "image_size", "workers"})

    def load(self, settings: Settings, device: torch.device) -> Examples:
        from .image_files import ImagesInFolders

        return ImagesInFolders(self, self.read(settings), settings, device)

    def build(self, problem: Examples) -> nn.Module:
        from ..zoo.vision import classifier

        settings = problem.settings
        return classifier(settings.model or self.models[0], problem.about["classes"], width=settings.width)

    def data(self, source: Path, parts: Parts, listings: list[Listing], settings: Settings) -> Data:
        """Return the data, given its source, its parts, and the folders that were read."""
        from ..data.folders import identity_of

        size = settings.image_size or {"mini": 64, "paper": 224}[settings.budget]
        about = {"source": source.name, "classes": len(listings[0].classes), "image": [3, size, size]}
        return parts, identity_of(listings), about

    def shuffled(self, listing: Listing, part: str) -> Listing:
        """Bring a part of the data into a random order, the same for every run."""
        return listing.take(torch.randperm(len(listing), generator=generator(self.name, "split", part)))


class ImageNet(FolderTask):
    """Folders ``train`` and ``val``; the latter is for testing, and some of the former are for validation.

    As in the paper, 60,000 of the training images are held out, or every twentieth if those are fewer.
    """

    name = "imagenet"
    summary = "ImageNet, or any folder or tar with train/<class>/ and val/<class>/ (--data)"
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

    def read(self, settings: Settings) -> Data:
        from ..data import folders

        source = self._find(data_path(settings.data, self.remedy))
        folder = folders.open_folder(source)
        tests = [folder / name for name in ("val", "valid", "test") if (folder / name).is_dir()]
        if not tests or not (folder / "train").is_dir():
            raise LabError(f"{source} needs folders train and val (or valid, or test); {self.remedy}")
        train, test = folders.scan(folder / "train"), folders.scan(tests[0])
        folders.require_same_classes(train, test)
        order = torch.randperm(len(train), generator=generator("imagenet", "split"))
        count = max(1, min(self.held_out, len(train) // self.held_out_of_fewer))
        parts = {
            "train": train.take(order[count:]),
            "valid": train.take(order[:count]),
            "test": self.shuffled(test, "test"),
        }
        return self.data(source, parts, [train, test], settings)

    def _find(self, place: Path) -> Path:
        if place.is_file():
            return place
        named = (path for path in place.iterdir() if path.name.lower().startswith(("imagenet", "ilsvrc")))
        for path in (place, *sorted(named)):
            if is_archive(path) or (path / "train").is_dir():
                return path
        raise LabError(
            f"no ImageNet in {place}: neither a folder train, nor imagenet/, nor imagenet.tar; {self.remedy}"
        )


class ImageFolder(FolderTask):
    """Folders of images named after their classes, split 80 : 10 : 10 unless they are split already.

    With ``train`` and one of ``val``, ``valid`` and ``test`` beside it, the latter is for testing and a tenth
    of the former for validation; with ``test`` and a ``val`` or ``valid``, each is used for what it says.
    """

    name = "imagefolder"
    summary = "your own images: a folder or tar with a folder per class (--data)"
    models = ("resnet18", "*")
    mini = Budget(epochs=5, batch=32, seeds=3, train=4_000, valid=1_000, test=1_000)
    paper = Budget(epochs=200, batch=64, seeds=3)  # not in the paper
    remedy = (
        "sort images into folders <class>/, or train/<class>/ and test/<class>/, and name the folder that "
        "holds them, or a tar of it, with --data or ALRAO_DATA"
    )

    def read(self, settings: Settings) -> Data:
        from ..data import folders

        source = data_path(settings.data, self.remedy)
        listings, parts = self._parts(folders.open_folder(source))
        for name, part in parts.items():
            if not len(part):
                raise LabError(
                    f"{source}: {len(listings[0])} images are too few to split, none is left for {name}"
                )
        return self.data(source, parts, listings, settings)

    def _parts(self, folder: Path) -> tuple[list[Listing], Parts]:
        """The folders that were read, and the three parts made of them."""
        from ..data.folders import in_proportion, require_same_classes, scan

        random = generator("imagefolder", "split")
        if not (folder / "train").is_dir():
            everything = scan(folder)
            train, valid, test = in_proportion(everything, (0.8, 0.1, 0.1), random)
            return [everything], {"train": train, "valid": valid, "test": test}
        train = scan(folder / "train")
        others = {name: scan(folder / name) for name in ("val", "valid", "test") if (folder / name).is_dir()}
        if not others:
            raise LabError(f"{folder} has a folder train, but none of val, valid and test; {self.remedy}")
        for other in others.values():
            require_same_classes(train, other)
        listings = [train, *others.values()]
        test = self.shuffled(others.pop("test") if "test" in others else others.popitem()[1], "test")
        if others:
            train, valid = self.shuffled(train, "train"), self.shuffled(others.popitem()[1], "valid")
        else:
            train, valid = in_proportion(train, (0.9, 0.1), random)
        return listings, {"train": train, "valid": valid, "test": test}
