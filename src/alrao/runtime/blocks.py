"""Updates of a part of a parameter: of some copies of a head, or of blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**18
"""The most weights of a parameter that are updated at a time.

An update is several passes over weights, gradients, state and temporary tensors. Large ones leave the cache
between two passes, and the system must clear the memory of large temporary tensors.
"""


class Part:
    """A part of a parameter, by slices of its first axes; while it is updated, it has its own state."""

    def __init__(self, state: Any, whole: Tensor, rows: tuple[slice, ...]) -> None:
        self.whole, self.rows, self._state = whole, rows, state
        self.param = whole.detach()[rows]
        self._given = {key: self.of(value) for key, value in state[whole].items()}

    def of(self, value: Any) -> Any:
        """Return what belongs to this part of a value for the parameter; it may have axes of length 1."""
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        sizes = zip(self.rows, value.shape, self.whole.shape, strict=False)
        return value[tuple(rows if size == of_whole else slice(None) for rows, size, of_whole in sizes)]

    def begin(self, stands_for: int | None = None) -> None:
        """Give the part its state; for a step that stands for several, counted already, with counters."""
        of_part = dict(self._given)
        if stands_for is not None:
            counters = {"step": lambda now: now / stands_for - 1, "k": lambda now: now - 1}
            of_part.update({key: counters[key](of_part[key]) for key in counters.keys() & of_part.keys()})
        self._state[self.param] = of_part

    def end(self, starts_as_weights: Collection[str] | None) -> None:
        """Take the state back; what is new, and the counters, become the parameter's.

        Of new state, ``starts_as_weights`` begins as a copy of the weights. With None the counters stay.
        """
        whole = self._state[self.whole]
        for key, value in self._state.pop(self.param).items():
            if value is self._given.get(key) or starts_as_weights is None:
                continue
            if isinstance(value, Tensor) and value.shape == self.param.shape:
                start = self.whole.detach() if key in starts_as_weights else torch.zeros_like(self.whole)
                whole[key] = start.to(value.dtype, copy=True)
                whole[key][self.rows] = value
            else:
                whole[key] = value


def block_slices(shape: torch.Size) -> list[tuple[slice, ...]]:
    """Return where the blocks of a parameter are: along its first axis, or the second too; none, if small."""
    each = shape[1:].numel()
    if shape.numel() <= BLOCK or len(shape) < 2:
        return []
    if each <= BLOCK or len(shape) < 3:
        return [(rows,) for rows in _slices(shape[0], max(1, BLOCK // each))]
    inner = _slices(shape[1], max(1, BLOCK // shape[2:].numel()))
    return [(slice(j, j + 1), rows) for j in range(shape[0]) for rows in inner]


def _slices(length: int, most: int) -> list[slice]:
    return [slice(start, min(start + most, length)) for start in range(0, length, most)]
