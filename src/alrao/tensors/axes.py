"""The axis of the outputs after an operation that only changes the shape, or moves whole rows of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Op = Callable[..., Any]

_T = torch.Tensor
_OTHER_NAMES = {"axis": "dim", "keepdims": "keepdim", "tensors": "input"}
"""Names of arguments, as in NumPy and in ``torch.cat``, with those that are used here."""


class Marked(torch.Tensor):
    """A tensor that remembers what it is; ``axis`` is that of the outputs, None once that is lost."""

    axis: int | None = None

    def as_subclass(self, cls: Any) -> Any:
        """Return a plain tensor; for the type of another package, which has no meaning here, the output."""
        return super().as_subclass(cls) if cls is Tensor else self

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let :meth:`call` do an operation; an ``input`` by name becomes the first argument."""
        kwargs = {_OTHER_NAMES.get(key, key): value for key, value in (kwargs or {}).items()}
        if not args and "input" in kwargs:
            args = (kwargs["input"],)
            kwargs = {key: value for key, value in kwargs.items() if key != "input"}
        return cls.call(func, args, kwargs)

    @classmethod
    def call(cls, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation on outputs."""
        raise NotImplementedError


def functions(*names: str, places: tuple[Any, ...] = (torch.Tensor, torch)) -> set[Op]:
    """Return what torch has under some names, as methods and as functions."""
    found = [getattr(place, name, None) for place in places for name in names]
    return {each for each in found if callable(each)}


SAME_SHAPE = functions(
    "contiguous", "clone", "type_as", "float", "double", "half", "bfloat16", "to", "cpu", "cuda"
)
RESHAPE = functions(
    "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"
)
_TRANSPOSE = functions("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t")
_TRANSPOSE |= {_T.T.__get__, _T.mT.__get__}  # type: ignore[attr-defined]
CHANGES_OF_SHAPE = SAME_SHAPE | RESHAPE | _TRANSPOSE | {_T.__getitem__}
_EXPAND = functions("expand", "expand_as", "broadcast_to")
_SELECT = functions("select")
_UNBIND = functions("unbind")
PACK: Op = torch._pack_padded_sequence
_ROWS = functions("flip", "fliplr", "flipud", "repeat", "repeat_interleave", "tile", "type") | {PACK, F.pad}
"""Operations that repeat, pad, turn or pack rows: the axes of the result count from the last one."""
SPLIT = functions("split", "chunk", "tensor_split") | _UNBIND  # operations with several results
KEEP = CHANGES_OF_SHAPE | _EXPAND | _SELECT | functions("index_select", "narrow")
JOINS = functions("cat", "stack", places=(torch,))
MOVE = KEEP | _ROWS | functions("gather", "take_along_dim")

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
    """Return the axis of the result that holds outputs of ``axis`` of ``source``, some of them at least."""
    if op in RESHAPE:
        before = prod(source.shape[:axis])
        for i, size in enumerate(result.shape):
            if size == source.shape[axis] and prod(result.shape[:i]) == before:
                return i
        return None
    if op in _TRANSPOSE:
        return op(_probe(source.ndim, axis), *args, **kwargs).shape.index(2)
    if op in _EXPAND:
        return axis + result.ndim - source.ndim
    if op == _T.__getitem__:
        return _after_index(source.ndim, axis, args[0])
    if op in _SELECT or op in _UNBIND:
        dim = kwargs.get("dim", args[0] if args else 0) % source.ndim
        return axis - (dim < axis) if dim != axis else None
    if op not in _ROWS:
        return axis if result.ndim == source.ndim else None
    new = axis - 1 if op is PACK else axis + result.ndim - source.ndim
    kept = new >= 0 and result.is_floating_point() and result.shape[new] == source.shape[axis]
    return new if kept else None


def keeps_whole(source: Tensor, axis: int, index: Any) -> bool:
    """Return whether all outputs on ``axis`` are in ``source[index]``, which leaves them on an axis."""
    size, tried = source.shape[axis], _on_probe(index)
    return tried is not None and size in _probe(source.ndim, axis, size)[tuple(tried)].shape


def axis_of_written(target: Tensor, index: Any, value: Tensor, axis: int) -> int | None:
    """Return the axis of ``target`` on which outputs are written by ``target[index] = value``."""
    part = target.detach()[index]
    for candidate, size in enumerate(target.shape):
        new = _after_index(target.ndim, candidate, index)
        # Values broadcast from the last axis on.
        if new is not None and part.ndim - new == value.ndim - axis and part.shape[new] == size:
            return candidate if size == value.shape[axis] else None
    return None


# Indices: tried on tensors without numbers, all of whose axes but one have length 1.


def _probe(ndim: int, axis: int, size: int = 2) -> Tensor:
    return torch.empty([size if i == axis else 1 for i in range(ndim)], device="meta")


def _after_index(ndim: int, axis: int, index: Any) -> int | None:
    """Return where torch puts an axis that an index takes as it is, or a part of; None if it does neither."""
    tried = _on_probe(index)
    if tried is None:
        return None
    shape = _probe(ndim, axis)[
        tuple(slice(None) if isinstance(part, slice) else part for part in tried)
    ].shape
    return shape.index(2) if 2 in shape else None


def _on_probe(index: Any) -> list[Any] | None:
    """Return an index that does to a probe what another one does to a tensor; None if that is not known."""
    tried: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        each = torch.as_tensor(part) if isinstance(part, list | range) else part
        if each is None or each is Ellipsis or isinstance(each, slice):
            tried.append(each)
        elif isinstance(each, int) and not isinstance(each, bool):
            tried.append(0)
        elif not isinstance(each, Tensor) or each.dtype == torch.uint8:
            return None  # a mask of bytes, for example
        elif each.dtype == torch.bool:
            if each.ndim == 0:
                return None
            tried += [torch.empty(1, dtype=torch.int64, device="meta")] * each.ndim
        else:
            row = torch.empty([1] * each.ndim, dtype=torch.int64, device="meta")
            tried.append(row if each.ndim else 0)
    return tried
