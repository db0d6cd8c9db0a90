"""Sets of small images of one size, kept in memory, and their cache on the disk."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import LabError
from ..store import replace_file
from .places import cache_folder, locked, short_digest

__all__ = ["Arrays", "cached"]

FORMAT = 1
PARTS = ("train", "train_labels", "test", "test_labels")


@dataclass(frozen=True)
class Arrays:
    """Images (n, channels, height, width) of bytes, labels (n) of int64, for training and for testing."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    digest: str
    """Stands for the pixels and the labels, whatever file they came from."""

    @staticmethod
    def of(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: tuple[str, ...]) -> Arrays:
        """Images and labels of both parts."""
        tensors = [tensor.contiguous() for tensor in (*train, *test)]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        digest = short_digest(shapes, *(_bytes(tensor) for tensor in tensors))
        return Arrays(**dict(zip(PARTS, tensors, strict=True)), classes=classes, digest=digest)


def cached(kind: str, source: Path, state: str, read: Callable[[], Arrays]) -> Arrays:
    """What ``read`` returns, from the cache if it was read before.

    A cache that cannot be written costs time alone, so it is a warning; one that is damaged is written anew.

    Args:
        kind: the beginning of the name of the file in the cache.
        source: where ``read`` reads.
        state: what changes when the source does.
        read: reads the source.
    """
    path = cache_folder() / f"{kind}-{short_digest(str(source.resolve()))}.pt"
    arrays = _load(path, state)
    if arrays is not None:
        return arrays
    with locked(path):
        return _load(path, state) or _make(path, state, read)


def _make(path: Path, state: str, read: Callable[[], Arrays]) -> Arrays:
    arrays = read()
    content: dict[str, Any] = {part: getattr(arrays, part) for part in PARTS}
    content |= {"classes": list(arrays.classes), "digest": arrays.digest}
    content |= {"format": FORMAT, "state": state, "check": _check(content)}
    try:
        replace_file(path, lambda file: torch.save(content, file))
    except LabError as error:
        warnings.warn(
            f"no cache, so the data will be read again: {error} (ALRAO_CACHE names another place)",
            stacklevel=4,
        )
    return arrays


def _load(path: Path, state: str) -> Arrays | None:
    """The cache's content, or None if it is not there, of another state of the source, or damaged."""
    if not path.is_file():
        return None
    try:
        content = torch.load(path, weights_only=True)
        if (content["format"], content["state"], content["check"]) != (FORMAT, state, _check(content)):
            return None
        tensors = {part: content[part] for part in PARTS}
        return Arrays(**tensors, classes=tuple(content["classes"]), digest=content["digest"])
    except Exception:  # whatever is wrong with it, it can be made again
        return None


def _check(content: dict[str, Any]) -> int:
    check = 0
    for part in PARTS:
        check = zlib.crc32(_bytes(content[part]), check)
    return check


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy().reshape(-1).view(np.uint8))  # type: ignore[arg-type]
