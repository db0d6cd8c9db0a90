"""A large output of a classifier that is computed only where it is read.

:class:`LazyLogProbs` has the shape and the type of the log-probabilities, but no numbers. A loss of hard
targets and ``argmax`` work through its rows in chunks; changes of shape and slices return another one.
Anything else reads the numbers, which are computed then, as :class:`LogProbs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..watch import version_of
from .axes import CHANGES_OF_SHAPE, RESHAPE, SAME_SHAPE, Op, axis_after, changes_values, keeps_whole
from .outputs import LogProbs

_T = torch.Tensor


class LazyLogProbs(LogProbs):
    """Log-probabilities of the mixture that are not computed yet."""

    z: Tensor  # the inputs of the output layer: the shape of the output, but for the features on ``axis``
    source: Any  # what computes the numbers: a Vocabulary
    _node: Any
    _real: LogProbs | None

    @staticmethod
    def empty(z: Tensor, axis: int, classes: int, dtype: torch.dtype) -> LazyLogProbs:
        """Return an output for the inputs ``z``; :meth:`attach` completes it."""
        shape = [*z.shape[:axis], classes, *z.shape[axis + 1 :]]
        return torch.Tensor._make_wrapper_subclass(LazyLogProbs, shape, dtype=dtype, device=z.device)

    def attach(self, z: Tensor, axis: int, source: Any) -> LazyLogProbs:
        """Complete an output that has its place in the graph."""
        self.z, self.axis, self.source = z, axis, source
        self._real = None
        with torch._C.DisableTorchFunctionSubclass():
            self._node = self.grad_fn
        return self

    def computed(self) -> LogProbs:
        """Return the output as ordinary log-probabilities, with its place in the graph."""
        if self._real is None:
            with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
                self._real = LogProbs.of(_Real.apply(self), self.axis)
        return self._real

    def as_subclass(self, cls: Any) -> Any:
        """Return a plain tensor with the numbers; see :meth:`Marked.as_subclass`."""
        return self.computed().as_subclass(cls) if cls is Tensor else self  # torch 2.6 cannot of this class

    def rows(self) -> Tensor:
        """Return the inputs as rows."""
        assert self.axis is not None
        return self.z.movedim(self.axis, -1).reshape(-1, self.z.shape[self.axis])

    def shape_of_rows(self) -> torch.Size:
        """Return the shape without the axis of the classes."""
        return torch.Size(size for i, size in enumerate(self.z.shape) if i != self.axis)

    def _unread(self) -> bool:
        """Return whether the inputs still determine the output: nothing has changed it or its graph."""
        if self._real is not None and version_of(self._real) != 0:
            return False
        with torch._C.DisableTorchFunctionSubclass():
            return self.grad_fn is self._node and not self._backward_hooks and not self.retains_grad

    @classmethod
    def call(cls, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Follow changes of shape, work through losses in chunks, compute the numbers for anything else."""
        if func in _METADATA or (getattr(func, "__name__", "") == "__get__" and func not in _VIEWS):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        source = args[0] if args else None
        if isinstance(source, LazyLogProbs) and source._unread():
            result = NotImplemented
            if func in _ROUTES:
                result = _ROUTES[func](*args, **kwargs)
            elif torch.is_grad_enabled() and func in CHANGES_OF_SHAPE:
                result = _of_inputs(func, source, args[1:], kwargs)
            if result is not NotImplemented:
                return result
        lazy = [x for x in tree_leaves((args, kwargs)) if isinstance(x, LazyLogProbs)]
        args, kwargs = tree_map(lambda x: x.computed() if isinstance(x, LazyLogProbs) else x, (args, kwargs))
        result = func(*args, **kwargs)
        for x in lazy:
            x.scores = x.computed().scores  # after a change in place
        return result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute the numbers for whatever comes here without a call of ``__torch_function__``."""
        if changes_values(func, kwargs or {}) or func._schema.is_mutable:
            raise RuntimeError(
                f"{func} would change the output of a large Alrao head in place: clone it first, with clone()"
            )
        given = (args, kwargs or {})
        args, kwargs = tree_map(
            lambda x: x.computed().detach().as_subclass(Tensor) if isinstance(x, LazyLogProbs) else x, given
        )
        return func(*args, **kwargs)


class _Real(torch.autograd.Function):
    """The numbers of an output, in its place in the graph."""

    @staticmethod
    def forward(ctx: Any, lazy: LazyLogProbs) -> Tensor:
        out = lazy.source.values(lazy.rows().detach(), lazy.shape_of_rows())
        if lazy.axis == out.ndim - 1:
            return out
        return out.movedim(-1, lazy.axis or 0).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


# Changes of shape: they change the inputs instead.


def _of_inputs(func: Op, x: LazyLogProbs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    axis, z = x.axis, x.z
    assert axis is not None
    with torch._C.DisableTorchFunctionSubclass():
        shape, dtype, device = x.shape, x.dtype, x.device
    if func in SAME_SHAPE:
        like = func(torch.empty(0, dtype=dtype, device=device), *args, **kwargs)
        return x.source.output(z, axis) if (like.dtype, like.device) == (dtype, device) else NotImplemented
    probe = torch.empty(shape, device="meta")
    result = func(probe, *args, **kwargs) if func in RESHAPE else probe
    after = axis_after(func, probe, axis, args, kwargs, result)
    if after is None:
        return NotImplemented
    if func == _T.__getitem__ and not all(keeps_whole(each, axis, args[0]) for each in (probe, z)):
        return NotImplemented  # a slice up to the last class may cut the inputs, where these are more
    if func not in RESHAPE:
        return x.source.output(func(z, *args, **kwargs), after)
    sizes = [*result.shape[:after], z.shape[axis], *result.shape[after + 1 :]]
    return x.source.output(z.reshape(sizes), after)


# Losses.


def _cross_entropy(x: LazyLogProbs, target: Tensor, *args: Any, **kwargs: Any) -> Any:
    smoothing = args[5] if len(args) > 5 else kwargs.pop("label_smoothing", 0.0)
    return _nll_loss(x, target, *args[:5], **kwargs) if smoothing == 0.0 else NotImplemented


def _nll_loss(
    x: LazyLogProbs, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Return ``F.nll_loss`` of hard targets; whatever torch would refuse is left to torch."""
    classes = x.shape[x.axis or 0]
    fits = x.axis == min(1, x.ndim - 1) and target.dtype is torch.int64 and target.shape == x.shape_of_rows()
    former = size_average is not None or reduce is not None
    if former or not fits or target.device != x.device or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    if weight is not None and (weight.shape != (classes,) or weight.dtype != x.dtype or weight.requires_grad):
        return NotImplemented
    rows, y = x.rows(), target.reshape(-1)
    kept = y != ignore_index
    index = None
    if x.source.reads:
        if not bool(kept.all()):
            (index,) = kept.nonzero(as_tuple=True)
            rows, y = rows[index], y[index]
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
            return NotImplemented
    else:  # without a host read
        y = torch.where(kept, y, 0)
    share = torch.ones_like(y, dtype=x.dtype) if weight is None else weight[y]
    if not x.source.reads:
        share = share * kept
    divisor = share.sum() if reduction == "mean" else share.new_ones(()) if reduction == "sum" else None
    losses = x.source.nll(rows, y, share, divisor)
    if divisor is not None:
        return losses
    if index is not None:
        losses = losses.new_zeros(target.numel()).index_put((index,), losses)
    return losses.view(target.shape)


def _log_softmax(
    x: LazyLogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Any:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)
    if dim is None or dim % x.ndim != x.axis or dtype not in (None, x.dtype) or not torch.is_grad_enabled():
        return NotImplemented
    return x.source.output(x.z, x.axis)


def _argmax(x: LazyLogProbs, dim: int | None = None, keepdim: bool = False) -> Any:
    if x._real is not None or dim is None or dim % x.ndim != x.axis or not x.z.numel():
        return NotImplemented
    parts = [x.source.values(part).argmax(-1) for part in x.rows().detach().split(ROWS)]
    found = torch.cat(parts).view(x.shape_of_rows())
    return found.unsqueeze(dim) if keepdim else found


ROWS = 128  # rows whose numbers are computed at a time where only a few of the numbers are needed

_ROUTES: dict[Op, Op] = {
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll_loss,
    **dict.fromkeys((F.log_softmax, torch.log_softmax, _T.log_softmax), _log_softmax),
    **dict.fromkeys((torch.argmax, _T.argmax), _argmax),
}

_METADATA: set[Op] = {
    _T.size, _T.dim, _T.ndimension, _T.numel, _T.nelement, torch.numel, _T.element_size, _T.stride,
    _T.is_contiguous, _T.is_floating_point, torch.is_floating_point, _T.is_complex, torch.is_complex,
    _T.get_device, _T.__len__, _T.__hash__, _T.requires_grad_, _T.register_hook, _T.retain_grad,
}  # fmt: skip
"""What can be answered without the numbers; properties are, but for those that return another tensor."""

_VIEWS: set[Op] = {getattr(_T, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real", "imag")}
