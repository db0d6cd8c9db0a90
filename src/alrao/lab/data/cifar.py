"""CIFAR-10, in each of the forms it is met in."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import LabError
from .arrays import Arrays, cached
from .files import contents, is_archive, state_of
from .pictures import EXTENSIONS, decode
from .places import data_path

__all__ = ["load_cifar10"]

WANTED = (
    "download cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and name the file, or "
    "the folder it is in, with --data or ALRAO_DATA"
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
SIDE = 32
BYTES = 3 * SIDE * SIDE

Part = tuple[Tensor, Tensor]


def load_cifar10(where: str | Path | None = None) -> tuple[Arrays, Path]:
    """The images and labels, and the file or folder they were read from.

    It reads the distributed ``cifar-10-python.tar.gz`` and ``cifar-10-binary.tar.gz``, what they unpack to,
    and image folders ``train/<class>/*`` and ``test/<class>/*`` or a tar archive of one. The first time takes
    the longest: the result is kept in the cache.

    Args:
        where: one of these, or the folder it is in; ``$ALRAO_DATA`` if None.

    Raises:
        LabError: there is none, or it is damaged.
    """
    source = _find(data_path(where, WANTED))
    return cached("cifar10", source, state_of(source, _wanted), lambda: _read(source)), source


def _find(place: Path) -> Path:
    if place.is_file():
        return place
    named = (
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
    )
    others = sorted(path for path in place.glob("cifar*10*") if "100" not in path.name)
    for path in (place, *(place / name for name in named), *others):
        if is_archive(path) or any((path / mark).is_file() for mark in (BATCHES[0], f"{BATCHES[0]}.bin")):
            return path
    for path in (*others, place):
        if (path / "train").is_dir() and (path / "test").is_dir():
            return path
    raise LabError(
        f"no CIFAR-10 in {place}: neither cifar-10-batches-py, cifar-10-batches-bin, their archives "
        f"cifar-10-python.tar.gz and cifar-10-binary.tar.gz, nor folders train and test; {WANTED}"
    )


def _wanted(name: str) -> bool:
    path = PurePosixPath(name)
    return path.stem in (*BATCHES, TEST, "batches") or _is_picture(path)


def _is_picture(path: PurePosixPath) -> bool:
    image = path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")
    return image and len(path.parts) >= 3 and path.parts[-3] in ("train", "test")


def _read(source: Path) -> Arrays:
    batches: dict[str, Part] = {}
    pictures: dict[PurePosixPath, Tensor] = {}
    classes: tuple[str, ...] = CLASSES
    for name, content in contents(source, _wanted):
        path = PurePosixPath(name)
        title = f"{source / name}" if source.is_dir() else f"{name} in {source}"
        if path.name in ("batches.meta", "batches.meta.txt"):
            classes = _classes(path.suffix, content, title)
        elif path.name in (*BATCHES, TEST):
            batches[path.name] = _of_pickle(content, title)
        elif path.suffix == ".bin" and path.stem in (*BATCHES, TEST):
            batches[path.stem] = _of_binary(content, title)
        elif _is_picture(path):
            pictures[path] = _of_picture(content, title)
    if batches:
        return _of_batches(batches, classes, source)
    return _of_pictures(pictures, source)


def _of_batches(batches: dict[str, Part], classes: tuple[str, ...], source: Path) -> Arrays:
    if absent := [name for name in (*BATCHES, TEST) if name not in batches]:
        raise LabError(f"{source} lacks {', '.join(absent)}; {WANTED}")
    images, labels = zip(*(batches[name] for name in BATCHES), strict=True)
    return Arrays.of((torch.cat(images), torch.cat(labels)), batches[TEST], classes)


def _of_pictures(pictures: dict[PurePosixPath, Tensor], source: Path) -> Arrays:
    parts: dict[str, Part] = {}
    found: dict[str, tuple[str, ...]] = {}
    for part in ("train", "test"):
        paths = sorted(path for path in pictures if path.parts[-3] == part)
        found[part] = tuple(sorted({path.parts[-2] for path in paths}))
        if len(found[part]) != len(CLASSES):
            raise LabError(
                f"{source} has images of {len(found[part])} classes in {part}/<class>/, CIFAR-10 has "
                f"{len(CLASSES)}; {WANTED}"
            )
        labels = torch.tensor([found[part].index(path.parts[-2]) for path in paths])
        parts[part] = torch.stack([pictures[path] for path in paths]), labels
    if found["train"] != found["test"]:
        different = ", ".join(sorted({*found["train"]} ^ {*found["test"]}))
        raise LabError(f"{source}: these classes are not in both of train and test: {different}")
    return Arrays.of(parts["train"], parts["test"], found["train"])


def _of_picture(content: bytes, title: str) -> Tensor:
    image = decode(content, title)
    if image.size != (SIDE, SIDE):
        raise LabError(
            f"{title} has {image.width}×{image.height} pixels; images of CIFAR-10 have {SIDE}×{SIDE}"
        )
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _of_binary(content: bytes, title: str) -> Part:
    records = np.frombuffer(content, np.uint8)
    if not content or len(content) % (BYTES + 1):
        raise LabError(f"{title} is damaged: {len(content)} bytes are not records of {BYTES + 1}")
    records = records.reshape(-1, BYTES + 1)
    return _part(records[:, 1:], records[:, 0], title)


def _of_pickle(content: bytes, title: str) -> Part:
    batch = _unpickle(content, title)
    try:
        return _part(batch["data"], batch["labels"], title)
    except KeyError as error:
        raise LabError(f"{title} is no batch of CIFAR-10: it lacks {error}") from None


def _part(data: Any, labels: Any, title: str) -> Part:
    if not (
        isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == BYTES
    ):
        shape = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise LabError(f"{title} is no batch of CIFAR-10: images are uint8 (n, {BYTES}), got {shape}")
    try:
        targets = torch.tensor([int(label) for label in labels])
        whole = len(targets) == len(data) > 0 and 0 <= int(targets.min()) <= int(targets.max()) < len(CLASSES)
    except (TypeError, ValueError, RuntimeError):
        whole = False
    if not whole:
        raise LabError(
            f"{title} is damaged: {len(data)} images need as many labels from 0 to {len(CLASSES) - 1}"
        )
    return torch.from_numpy(data.reshape(-1, 3, SIDE, SIDE).copy()), targets


def _classes(suffix: str, content: bytes, title: str) -> tuple[str, ...]:
    if suffix == ".txt":
        names: Iterable[Any] = content.split()
    else:
        names = _unpickle(content, title).get("label_names", ())
    classes = tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)
    if len(classes) != len(CLASSES):
        raise LabError(f"{title} is damaged: it names {len(classes)} classes, CIFAR-10 has {len(CLASSES)}")
    return classes


def _unpickle(content: bytes, title: str) -> dict[str, Any]:
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except LabError as error:
        raise LabError(f"{title} is not read: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise LabError(f"{title} is damaged ({error}): get it again") from error
    if not isinstance(value, dict):
        raise LabError(f"{title} is no batch of CIFAR-10: it holds {type(value).__name__}, not a dictionary")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): item for key, item in value.items()}


class _Unpickler(pickle.Unpickler):
    """Makes numpy arrays and plain values, and calls nothing else: the file may come from anywhere."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core", 1)
        arrays = {("numpy", "ndarray"), ("numpy", "dtype"), ("numpy._core.multiarray", "_reconstruct")}
        if (module, name) in {*arrays, ("numpy._core.numeric", "_frombuffer")}:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return _latin1
        raise LabError(f"it would call {module}.{name}, which no file of CIFAR-10 does")


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")
