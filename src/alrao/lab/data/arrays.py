"""Sets of small images of one size, in memory, and their cache on the disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import LabError
from ..store import replace_file
from .places import cache_folder, locked, short_digest


@dataclass(frozen=True)
class Arrays:
    """Images (n, channels, height, width) of bytes, labels (n) of int64, for training and for testing."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    digest: str
    """Of the pixels and labels, whatever file they came from."""

    @staticmethod
    def of(*parts: Tensor, classes: tuple[str, ...]) -> Arrays:
        """Complete images and labels, of training and of testing, by their digest."""
        train, train_labels, test, test_labels = tensors = [tensor.contiguous() for tensor in parts]
        contents = [tensor.numpy().reshape(-1).view(np.uint8).data for tensor in tensors]
        digest = short_digest([tuple(tensor.shape) for tensor in tensors], *contents)
        return Arrays(train, train_labels, test, test_labels, classes, digest)


def cached(kind: str, source: Path, state: str, read: Callable[[], Arrays]) -> Arrays:
    """Return what ``read`` returns, from the cache if it was read before.

    A damaged cache is written again. One that cannot be written only costs time: it is a warning.

    ``state`` is a text that changes when the source does.
    """
    path = cache_folder() / f"{kind}-{short_digest(str(source.resolve()))}.pt"
    arrays = _load(path, state)
    if arrays is not None:
        return arrays
    with locked(path):
        return _load(path, state) or _make(path, state, read)


def _make(path: Path, state: str, read: Callable[[], Arrays]) -> Arrays:
    made = read()
    parts = [made.train, made.train_labels, made.test, made.test_labels]
    content = {"state": state, "parts": parts, "classes": list(made.classes), "digest": made.digest}
    try:
        replace_file(path, lambda file: torch.save(content, file))
    except LabError as error:
        warnings.warn(
            f"no cache, so the data will be read again: {error} (ALRAO_CACHE names another place)",
            stacklevel=4,
        )
    return made


def _load(path: Path, state: str) -> Arrays | None:
    """The content of the cache, or None if there is none, if the source has changed, or if it is damaged."""
    if not path.is_file():
        return None
    try:
        content = torch.load(path, weights_only=True)
        arrays = Arrays.of(*content["parts"], classes=tuple(content["classes"]))
        return arrays if (content["state"], content["digest"]) == (state, arrays.digest) else None
    except Exception:  # whatever is wrong with it, it can be made again
        return None
