"""More operations that move whole rows of outputs: repeating, padding, selecting, packing, writing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .axes import Op, axis_after

__all__ = ["FLAT", "PACK", "ROWS", "axis_of_written", "rows_after", "selects_rows"]

_T = torch.Tensor
_TURN: set[Op] = {_T.flip, torch.flip, _T.fliplr, torch.fliplr, _T.flipud, torch.flipud}
_ROLL: set[Op] = {_T.roll, torch.roll}
_REPEAT: set[Op] = {_T.repeat, _T.tile, torch.tile}
_INTERLEAVE: set[Op] = {_T.repeat_interleave, torch.repeat_interleave}
PACK: Op = torch._pack_padded_sequence
ROWS: set[Op] = _TURN | _ROLL | _REPEAT | _INTERLEAVE | {PACK, _T.type, F.pad}
FLAT: set[Op] = {_T.masked_select, torch.masked_select}
"""Operations whose result is flat, one row of outputs behind another."""


def rows_after(
    op: Op, source: Tensor, axis: int, args: tuple[Any, ...], kwargs: Any, result: Tensor
) -> int | None:
    """Return the axis of the result that holds all outputs of ``axis`` of ``source``; None if none does."""
    if op in _ROLL and _argument(1, "dims", args, kwargs) in (None, (), []):
        return None  # they are rolled as one row
    if op in _INTERLEAVE and _argument(1, "dim", args, kwargs) is None:
        return None
    new = axis - 1 if op is PACK else axis + result.ndim - source.ndim
    kept = new >= 0 and result.is_floating_point() and result.shape[new] == source.shape[axis]
    return new if kept else None


def selects_rows(source: Tensor, axis: int, mask: Tensor) -> bool:
    """Return whether a mask takes whole rows of outputs, which lie on the last axis."""
    if axis != source.ndim - 1:
        return False
    mask = mask.expand(torch.broadcast_shapes(mask.shape, source.shape))
    return mask.shape == source.shape and bool((mask == mask[..., :1]).all())


def axis_of_written(target: Tensor, index: Any, value: Tensor, axis: int) -> int | None:
    """Return the axis of ``target`` on which outputs are written by ``target[index] = value``."""
    part = target.detach()[index]
    for candidate, size in enumerate(target.shape):
        place = axis_after(_T.__getitem__, target, candidate, (index,), {}, part)
        # Values broadcast from the last axis on.
        if place is not None and part.ndim - place == value.ndim - axis and part.shape[place] == size:
            return candidate if size == value.shape[axis] else None
    return None


def _argument(place: int, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    return kwargs[name] if name in kwargs else args[place] if len(args) > place else None
