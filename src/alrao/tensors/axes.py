"""The axis of the outputs after an operation that only changes the shape, or picks rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "EXPAND", "GATHER", "KEEP", "RESHAPE", "SAME_SHAPE", "SPLIT", "Op", "axis_after", "changes_values",
    "takes_all", "whole",
]  # fmt: skip

Op = Callable[..., Any]

_T = torch.Tensor
SAME_SHAPE: set[Op] = {
    _T.contiguous, _T.clone, _T.type_as, torch.clone,
    _T.float, _T.double, _T.half, _T.bfloat16, _T.to, _T.cpu, _T.cuda,
}  # fmt: skip
RESHAPE: set[Op] = {
    _T.view, _T.view_as, _T.reshape, _T.reshape_as, _T.flatten, _T.unflatten, _T.squeeze, _T.unsqueeze,
    _T.ravel, torch.reshape, torch.flatten, torch.squeeze, torch.unsqueeze, torch.ravel,
}  # fmt: skip
_TRANSPOSE: set[Op] = {
    _T.transpose, _T.swapaxes, _T.swapdims, _T.permute, _T.movedim, _T.moveaxis, _T.t,
    torch.transpose, torch.swapaxes, torch.swapdims, torch.permute, torch.movedim, torch.moveaxis, torch.t,
    _T.T.__get__, _T.mT.__get__,  # type: ignore[attr-defined]
}  # fmt: skip
EXPAND: set[Op] = {_T.expand, _T.expand_as, torch.broadcast_to}
_PICK: set[Op] = {_T.index_select, torch.index_select, _T.narrow, torch.narrow}
_SELECT: set[Op] = {_T.select, torch.select}
_UNBIND: set[Op] = {_T.unbind, torch.unbind}
GATHER: set[Op] = {_T.gather, torch.gather, _T.take_along_dim, torch.take_along_dim}
SPLIT: set[Op] = {_T.split, torch.split, _T.chunk, torch.chunk, _T.tensor_split, torch.tensor_split} | _UNBIND
"""Operations with several results."""
KEEP: set[Op] = SAME_SHAPE | RESHAPE | _TRANSPOSE | EXPAND | _PICK | _SELECT | {_T.__getitem__}

_HARMLESS = {"requires_grad_", "share_memory_", "detach_"}
_ASSIGNMENTS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


def _says_in_place(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    return in_place or name in _ASSIGNMENTS


_IN_PLACE: set[Op] = {getattr(_T, name) for name in dir(_T) if _says_in_place(name)}


def changes_values(op: Op, kwargs: dict[str, Any]) -> bool:
    """Return whether an operation works in place, by torch's conventions."""
    if op in _IN_PLACE or bool(kwargs.get("inplace")):
        return True
    # A compiler cannot follow names: functions of modules, such as torch.relu_, are not noticed there.
    return not torch.compiler.is_compiling() and _says_in_place(getattr(op, "__name__", ""))


def axis_after(
    op: Op, source: Tensor, axis: int, args: tuple[Any, ...], kwargs: Any, result: Tensor
) -> int | None:
    """Return the axis of the result that holds outputs of ``axis`` of ``source``, some of them at least.

    None if they are no longer on one axis.
    """
    if op in RESHAPE:
        before = prod(source.shape[:axis])
        for i, size in enumerate(result.shape):
            if size == source.shape[axis] and prod(result.shape[:i]) == before:
                return i
        return None
    if op in _TRANSPOSE:
        probe = torch.empty([2 if i == axis else 1 for i in range(source.ndim)], device="meta")
        return op(probe, *args, **kwargs).shape.index(2)
    if op in EXPAND:
        return axis + result.ndim - source.ndim
    if op == _T.__getitem__:
        return _after_index(source.ndim, axis, args[0])
    if op in _SELECT or op in _UNBIND:
        dim = _dim(op, source, args, kwargs)
        return axis - (dim < axis) if dim != axis else None
    return axis


def whole(op: Op, source: Tensor, axis: int, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Return whether an operation that picks along an axis keeps the outputs on ``axis`` together."""
    if op not in _PICK and op not in GATHER and op not in SPLIT:
        return True
    if op in GATHER:
        index = kwargs["index"] if "index" in kwargs else args[1]
        if index.stride(axis) != 0:  # else the index is the same for all outputs, and gathers rows
            return False
    return _dim(op, source, args, kwargs) != axis


def _dim(op: Op, source: Tensor, args: tuple[Any, ...], kwargs: Any) -> int:
    place = 1 if op in SPLIT and op not in _UNBIND else 0
    dim: int = kwargs["dim"] if "dim" in kwargs else args[place] if len(args) > place else 0
    return dim % source.ndim


def _after_index(ndim: int, axis: int, index: Any) -> int | None:
    """Follow torch's rules: numbers, then tensors, whose axes come first unless they are adjacent."""
    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [torch.as_tensor(part) if isinstance(part, list | range) else part for part in parts]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if any(t.dtype == torch.uint8 or (t.ndim == 0 and t.dtype == torch.bool) for t in tensors):
        return None  # a mask of bytes, or a single truth value
    parts = [0 if isinstance(part, Tensor) and part.ndim == 0 else part for part in parts]
    known = (int, slice, Tensor, type(None), type(Ellipsis))
    if not all(isinstance(part, known) and not isinstance(part, bool) for part in parts):
        return None
    parts = _spelled_out(ndim, parts)
    kept = [part for part in parts if not isinstance(part, int)]
    fancy = [i for i, part in enumerate(kept) if isinstance(part, Tensor)]
    width = max((1 if kept[i].dtype == torch.bool else kept[i].ndim for i in fancy), default=0)
    apart = bool(fancy) and fancy[-1] - fancy[0] >= len(fancy)
    old, new = 0, width if apart else 0
    seen = apart
    for part in parts:
        if part is not None and old <= axis < old + _taken(part):
            return new if isinstance(part, slice) else None
        old += _taken(part)
        if isinstance(part, Tensor):
            new, seen = new + (0 if seen else width), True
        elif not isinstance(part, int):
            new += 1
    return None


def takes_all(ndim: int, axis: int, size: int, index: Any) -> bool:
    """Return whether an index takes all outputs, ``size`` in number, in their order."""
    old = 0
    for part in _spelled_out(ndim, list(index) if isinstance(index, tuple) else [index]):
        if part is not None and old <= axis < old + _taken(part):
            return isinstance(part, slice) and part.indices(size) == (0, size, 1)
        old += _taken(part)
    return False


def _spelled_out(ndim: int, parts: list[Any]) -> list[Any]:
    """Return the parts of an index with one for each axis, in the place of an ellipsis."""
    rest = [slice(None)] * (ndim - sum(_taken(part) for part in parts))
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    return [*parts[:at], *rest, *parts[at + 1 :]]


def _taken(part: Any) -> int:
    """Return how many axes of the source an index takes."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, Tensor) and part.dtype == torch.bool else 1
