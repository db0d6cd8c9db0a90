"""What a classifier returns: log-probabilities that remember what they are.

A classifier returns :class:`LogProbs`. Users pass them to ``cross_entropy`` or ``log_softmax`` like logits;
neither is linear in log-probabilities, and on log-probabilities the log-softmax is the identity.

Operations that only change the shape, or move whole rows of outputs, keep the type and its axis. Others leave
a note of where that was. They return a plain tensor, or scores: functions of log-probabilities, without an
axis, which :func:`outcome` follows to find a loss that is no likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction as _Reduction
from torch.utils import _pytree as pytree

from . import trail
from .axes import (
    FLAT,
    KEEP,
    MOVE,
    SPLIT,
    Marked,
    Op,
    axis_after,
    axis_of_written,
    changes_values,
    functions,
    joined_axis,
    selects_rows,
    whole,
)

__all__ = ["LogProbs"]

_T = torch.Tensor
_implicit_dim = F._get_softmax_dim  # type: ignore[attr-defined]  # with torch's warning


class LogProbs(Marked):
    """Log-probabilities of the mixture. ``axis`` is that of the classes, None once that is lost."""

    flat: int | None = None
    """The number of classes, if the rows stand behind each other without an axis of the classes."""
    shifted: bool = False
    """Whether something was added to scores, which are on no axis; see :func:`outcome`."""
    padded: bool = False
    """Whether there may be rows of other numbers: padding, rows not written yet."""

    @property
    def intact(self) -> bool:
        """Whether it still has its meaning."""
        return self.axis is not None

    @classmethod
    def of(cls, tensor: Tensor, axis: int | None) -> LogProbs:
        """Mark ``tensor`` as log-probabilities that are normalised along ``axis``."""
        marked = tensor if isinstance(tensor, cls) else tensor.as_subclass(cls)
        marked.axis = axis
        return marked

    @classmethod
    def call(cls, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Replace softmax and cross-entropy by their equivalents; keep the type through changes of shape."""
        source = args[0] if args else None
        with torch._C.DisableTorchFunctionSubclass():
            route = _ROUTES.get(func)
            if route is not None and isinstance(source, LogProbs) and source.axis is not None:
                if not torch.compiler.is_compiling() and source.padded:
                    source = _normalised(source)
                return route(source, *args[1:], **kwargs)
            if func is _T.__deepcopy__ and isinstance(source, LogProbs):
                return cls.of(source.as_subclass(Tensor).__deepcopy__(*args[1:]), source.axis)
            if not isinstance(source, LogProbs) or changes_values(func, kwargs):
                return _computed(func, args, kwargs)
            if source.axis is None:
                if torch.compiler.is_compiling() or source.flat is None or func not in KEEP:
                    return _computed(func, args, kwargs)
                return _unflattened(source, func(*args, **kwargs))
            if func not in MOVE and func not in SPLIT and func not in FLAT:
                return _computed(func, args, kwargs)
            result = func(*args, **kwargs)
            if isinstance(result, tuple | list):
                return type(result)([cls._after(func, source, args[1:], kwargs, part) for part in result])
            return cls._after(func, source, args[1:], kwargs, result)

    @classmethod
    def _after(cls, func: Op, source: LogProbs, args: tuple[Any, ...], kwargs: Any, result: Any) -> Any:
        """Return a result of a change of shape, marked if all classes are still on one axis."""
        axis = source.axis
        assert axis is not None
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        classes, new, flat = source.shape[axis], None, False
        if func in FLAT:
            mask = kwargs["mask"] if "mask" in kwargs else args[0]
            flat = not source.padded and selects_rows(source, axis, mask)
        else:
            new = axis_after(func, source, axis, args, kwargs, result)
            if new is None or result.shape[new] != classes:
                new = None
                flat = result.ndim == 1 and result.numel() == source.numel() and axis == source.ndim - 1
                flat = flat and func in KEEP and not torch.compiler.is_compiling()
            elif not whole(func, source, axis, args, kwargs):
                new = None
        if new is None and not flat:
            return _lost(func, result)
        marked = cls.of(result, new)
        if flat:
            marked.flat = classes
        elif not torch.compiler.is_compiling() and (func is F.pad or source.padded):
            marked.padded = True
        return marked


def _unflattened(source: LogProbs, result: Tensor) -> Tensor:
    """Mark rows that were flat and have an axis of the classes again."""
    if result.numel() == source.numel() and result.ndim > 1 and result.shape[-1] == source.flat:
        return LogProbs.of(result, result.ndim - 1)
    return _lost(_T.flatten, result)


def _lost(func: Op, result: Tensor) -> Tensor:
    """Return the result of a change of shape after which the classes are on no axis."""
    if torch.compiler.is_compiling():
        return result
    trail.record(func, result)
    return _as_scores(result, shifted=False)


def _as_scores(result: Tensor, *, shifted: bool) -> Tensor:
    """Mark a function of log-probabilities, if it is to be differentiated; see :func:`outcome`."""
    if not (result.is_floating_point() and result.requires_grad and torch.is_grad_enabled()):
        return result
    marked = LogProbs.of(result, None)
    marked.shifted = shifted
    return marked


def _computed(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of any other operation than a change of the shape of log-probabilities."""
    if torch.compiler.is_compiling():
        result = func(*args, **kwargs)
        if changes_values(func, kwargs) and isinstance(args[0], LogProbs):
            args[0].axis = None
        return _joined(func, result, *args, **kwargs) if func in (torch.cat, torch.stack) else result
    leaves, structure = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, LogProbs)]
    scores = [leaves[i] for i in places]
    target = leaves[0] if changes_values(func, kwargs) and isinstance(leaves[0], Tensor) else None
    new = Outcome.PLAIN
    if torch.is_grad_enabled() and getattr(func, "__name__", "") not in _NO_ARITHMETIC:
        new = outcome(func, scores, any(score.shifted for score in scores), leaves)
    fresh = any(score.axis is not None or score.flat is not None for score in scores)
    if new is Outcome.REFUSED:
        for i in places:
            leaves[i] = _Refused.apply(leaves[i].as_subclass(Tensor))
        args, kwargs = pytree.tree_unflatten(leaves, structure)
    result = func(*args, **kwargs)
    if target is None:
        if func in (torch.cat, torch.stack):
            joined = _joined(func, result, *args, **kwargs)
            if isinstance(joined, LogProbs):
                return joined
        if fresh:
            trail.record(func, result)
        whole = isinstance(result, Tensor) and result.ndim == 0 and scores[0].ndim > 0
        if whole or new in (Outcome.PLAIN, Outcome.REFUSED):
            return result  # a sum over all is no score of an observation any more
        shifted = new is Outcome.SHIFTED
        parts, structure = pytree.tree_flatten(result)
        parts = [_as_scores(part, shifted=shifted) if isinstance(part, Tensor) else part for part in parts]
        return pytree.tree_unflatten(parts, structure)
    if _write(func, *args):
        return result
    if target is not leaves[0]:
        target.copy_(leaves[0])
    if fresh:
        trail.record(func, target)
    if target.requires_grad and not isinstance(target, LogProbs):
        target.__class__ = LogProbs
    if isinstance(target, LogProbs):
        target.axis, target.flat, target.shifted = None, None, new is Outcome.SHIFTED
    return target


_NO_ARITHMETIC = {"backward", "grad", "__get__", "__set__"}


def _normalised(x: LogProbs) -> LogProbs:
    """Normalise the rows that are no log-probabilities, as the loss would: those do not sum to 1."""
    assert x.axis is not None
    plain = x.as_subclass(Tensor)
    log_sums = plain.logsumexp(x.axis, keepdim=True)
    return LogProbs.of(plain - torch.where(log_sums.detach().abs() > 1e-2, log_sums, 0), x.axis)


def _write(func: Op, target: Any = None, *rest: Any) -> bool:
    """Mark a tensor into which log-probabilities were written, as in ``outputs[t] = out``."""
    if func not in (_T.__setitem__, _T.copy_) or torch.compiler.is_compiling():
        return False
    index, value = rest[:2] if func is _T.__setitem__ else (..., rest[0])
    if not isinstance(target, Tensor) or not isinstance(value, LogProbs) or value.axis is None:
        return False
    axis = None if value.padded else axis_of_written(target, index, value, value.axis)
    if axis is None or (isinstance(target, LogProbs) and target.axis != axis):
        return False
    if not isinstance(target, LogProbs):
        target.__class__ = LogProbs
        target = cast(LogProbs, target)
        target.axis, target.padded = axis, True
    return True


def _joined(func: Op, result: Tensor, tensors: Any, dim: int = 0, **_: Any) -> Tensor:
    """Mark the result of ``cat`` or ``stack`` along another axis than that of the classes."""
    axes = {part.axis if isinstance(part, LogProbs) else None for part in tensors}
    axis = axes.pop()
    if axes or axis is None or (func is torch.cat and dim % result.ndim == axis):
        return result
    marked = LogProbs.of(result, joined_axis(func, result, dim, axis))
    if not torch.compiler.is_compiling() and any(part.padded for part in tensors):
        marked.padded = True
    return marked


def _log_softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)  # methods take it by position
    dim = _implicit_dim("log_softmax", x.ndim, 5) if dim is None else dim
    if dim % x.ndim != x.axis:
        result = F.log_softmax(x.as_subclass(Tensor), dim, dtype=dtype)
        trail.record(F.log_softmax, result)
        return result
    return LogProbs.of(x.to(dtype) if dtype is not None else x.view_as(x), x.axis)


def _softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)
    dim = _implicit_dim("softmax", x.ndim, 5) if dim is None else dim
    plain = x.as_subclass(Tensor)
    return F.softmax(plain, dim, dtype=dtype) if dim % x.ndim != x.axis else plain.to(dtype or x.dtype).exp()


def _logsumexp(x: LogProbs, dim: Any, keepdim: bool = False, **kwargs: Any) -> Tensor:
    """Return the logarithm of the sum of all probabilities, which is 0."""
    plain = x.as_subclass(Tensor)
    dims = [dim] if isinstance(dim, int) else list(dim)
    if [d % x.ndim for d in dims] != [x.axis]:
        return torch.logsumexp(plain, dim, keepdim, **kwargs)
    some = plain.select(x.axis, 0)
    return LogProbs.of(torch.zeros_like(some.unsqueeze(x.axis) if keepdim else some), None)


def _cross_entropy(
    x: LogProbs,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``F.cross_entropy`` of log-probabilities: what it computes after its log-softmax."""
    if x.axis != min(1, x.ndim - 1):
        plain = x.as_subclass(Tensor)
        trail.record(F.cross_entropy, plain)
        return F.cross_entropy(
            plain, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    log_p = x if x.ndim == 2 else x.contiguous()  # nll_loss needs that of images
    soft = target.is_floating_point() and target.shape == x.shape
    if not soft:
        hard = F.nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction=reduction)
        if label_smoothing == 0.0:
            return hard
    if soft and ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    axis, classes = x.axis, x.shape[x.axis]
    if weight is not None:
        log_p = log_p * weight.view([-1] + [1] * (x.ndim - 1 - axis))
    if soft:
        losses = -(log_p * (target * (1 - label_smoothing) + label_smoothing / classes)).sum(axis)
        if reduction == "mean":
            return losses.sum() / losses.numel()
        return losses.sum() if reduction == "sum" else losses
    ignored = target == ignore_index
    smooth = -log_p.sum(axis).masked_fill(ignored, 0.0)
    if reduction == "mean":
        counts = ~ignored if weight is None else weight[target.masked_fill(ignored, 0)] * ~ignored
        smooth = smooth.sum() / counts.sum()
    elif reduction == "sum":
        smooth = smooth.sum()
    return (1 - label_smoothing) * hard + label_smoothing / classes * smooth


# What becomes of log-probabilities in a loss that is written by hand: whether it is still a likelihood.


class Outcome(Enum):
    """What an operation on log-probabilities returns."""

    PLAIN = "probabilities, or a weighted likelihood"
    SCORES = "scores: a function of log-probabilities"
    SHIFTED = "scores to which something was added"
    REFUSED = "no part of a likelihood"


def _ops(*names: str) -> set[Op]:
    """Return the operations of these names: functions, methods, those in place, and operators of Python."""
    found = functions(*names, places=(torch, torch.Tensor, F, torch.linalg, torch.special))
    for form in ("{}_", "__{}__", "__r{}__", "__i{}__"):
        found |= functions(*map(form.format, names), places=(torch.Tensor,))
    return found


_PROBABILITIES = _ops(
    "exp", "exp2", "expm1", "softmax", "log_softmax", "logsumexp", "logaddexp", "logaddexp2",
    "logcumsumexp",
)  # fmt: skip
_SUMS = _ops("add", "sub", "subtract", "rsub", "lerp")
_DIVISIONS = _ops("div", "divide", "truediv", "true_divide")
_PRODUCTS = _DIVISIONS | _ops(
    "mul", "multiply", "matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "einsum", "tensordot",
    "linear", "addmm", "addmv", "addbmm", "baddbmm", "vecdot",
)  # fmt: skip
_SELECTIONS = MOVE | SPLIT | FLAT | _ops(
    "where", "masked_fill", "masked_scatter", "scatter", "scatter_add", "scatter_reduce", "index_add",
    "index_put", "index_fill", "index_copy", "index_reduce", "take", "cat", "concat", "concatenate",
    "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack", "broadcast_tensors", "copy",
    "nll_loss", "kl_div", "setitem",
)  # fmt: skip
_LINEAR = _ops(
    "sum", "nansum", "mean", "nanmean", "neg", "negative", "positive", "cumsum", "diff", "max", "min",
    "amax", "amin", "topk", "sort", "msort", "median", "nanmedian", "kthvalue", "nan_to_num", "diagonal",
    "diag", "trace", "tril", "triu", "dropout", "pos", "requires_grad",
)  # fmt: skip


def outcome(func: Op, scores: Sequence[Any], shifted: bool, leaves: Sequence[Any]) -> Outcome:
    """Return what an operation makes of ``scores`` among its arguments, the ``leaves``.

    These are log-probabilities, or functions of them; ``shifted``: something was added to one. A negative
    log-likelihood is linear in log-probabilities, or weights them by probabilities, as a focal loss does. A
    distance to a target is neither, though its gradient has the same sign while every output is below its
    target. So a likelihood takes log-probabilities through linear operations and through functions of
    themselves. Once something was added to them, only linear operations and exponentials are left; and no
    other function takes them together with another tensor.
    """
    others = [x for x in leaves if isinstance(x, Tensor) and not any(x is score for score in scores)]
    kept = Outcome.SHIFTED if shifted else Outcome.SCORES
    if func in _PROBABILITIES:
        return Outcome.PLAIN
    if func in _SUMS:
        added = others or any(isinstance(x, int | float) and x != 0 for x in leaves)
        return Outcome.SHIFTED if added else kept
    if func in _SELECTIONS:
        return kept
    if func in _PRODUCTS:
        if func in _DIVISIONS and leaves[0] is not scores[0]:
            return Outcome.REFUSED
        if len(scores) == 1 and not any(x.requires_grad for x in others):
            return kept
        return Outcome.REFUSED if shifted else Outcome.PLAIN
    alone = len(scores) == 1 and not others
    return kept if alone and (func in _LINEAR or not shifted) else Outcome.REFUSED


class _Refused(torch.autograd.Function):
    """The identity, for a loss that must not train: its gradient has both signs, which a step refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if g.numel() == 1:  # which cannot have both signs
            raise RuntimeError(
                "the loss is not a negative log-likelihood of the model's output: use cross_entropy or "
                "nll_loss, or train the plain network, alrao.Auto(net)"
            )
        signs = torch.ones_like(g)
        signs.view(-1)[1::2] = -1
        return (g.abs() + g.abs().mean()) * signs  # none is 0, so that both signs are there


_ROUTES: dict[Op, Op] = {
    F.cross_entropy: _cross_entropy,
    **dict.fromkeys((F.log_softmax, torch.log_softmax, _T.log_softmax), _log_softmax),
    **dict.fromkeys((F.softmax, torch.softmax, _T.softmax), _softmax),
    **dict.fromkeys((torch.logsumexp, torch.special.logsumexp, _T.logsumexp), _logsumexp),
}
# Saved outputs can be loaded with torch's default, weights_only=True.
torch.serialization.add_safe_globals([LogProbs])
