"""What a classifier returns: log-probabilities that remember what they are.

A classifier returns :class:`LogProbs`. Users pass them to ``cross_entropy`` or ``log_softmax`` like logits;
neither is linear in log-probabilities, and on log-probabilities the log-softmax is the identity.

Operations that only change the shape, or move whole rows of outputs, keep the type and its axis. Others leave
a note of where that was. They return a plain tensor, or scores: functions of log-probabilities, without an
axis, which :mod:`.likelihoods` follows to find a loss that is no likelihood.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    PACK,
    SPLIT,
    Marked,
    Op,
    axis_after,
    axis_of_written,
    changes_values,
    joined_axis,
    selects_rows,
    whole,
)
from .likelihoods import Outcome, outcome

__all__ = ["LogProbs"]

_T = torch.Tensor
_implicit_dim = F._get_softmax_dim  # type: ignore[attr-defined]  # with torch's warning


class LogProbs(Marked):
    """Log-probabilities of the mixture. ``axis`` is that of the classes, None once that is lost."""

    flat: int | None = None
    """The number of classes, if the rows stand behind each other without an axis of the classes."""
    shifted: bool = False
    """Whether something was added to scores, which are on no axis; see :mod:`.likelihoods`."""
    rest: Tensor | None = None
    """Where other numbers stand beside the log-probabilities: rows of padding, rows not written yet."""

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
    def __torch_function__(
        cls, func: Op, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace softmax and cross-entropy by their equivalents; keep the type through changes of shape."""
        kwargs = kwargs or {}
        source = args[0] if args else kwargs.get("input")
        with torch._C.DisableTorchFunctionSubclass():
            route = _ROUTES.get(func)
            if route is not None and isinstance(source, LogProbs) and source.axis is not None:
                if not args:
                    kwargs = {key: value for key, value in kwargs.items() if key != "input"}
                if not torch.compiler.is_compiling() and source.rest is not None:
                    source = _complete(source)
                return route(source, *args[1:], **kwargs)
            if func is _T.__deepcopy__ and isinstance(source, LogProbs):
                return cls.of(source.as_subclass(Tensor).__deepcopy__(*args[1:]), source.axis)
            if not isinstance(source, LogProbs) or changes_values(func, kwargs):
                return _computed(func, args, kwargs)
            if source.axis is None:
                if torch.compiler.is_compiling() or source.flat is None or func not in KEEP:
                    return _computed(func, args, kwargs)
                return _unflattened(source, func(*args, **kwargs))
            if func in SPLIT:
                result = func(*args, **kwargs)
                return type(result)([cls._after(func, source, args[1:], kwargs, part) for part in result])
            if func is PACK:
                result = func(*args, **kwargs)
                return (cls._after(func, source, args[1:], kwargs, result[0]), *result[1:])
            if func in MOVE or func in FLAT:
                result = func(*args, **kwargs)
                if not isinstance(result, Tensor):
                    return result
                return cls._after(func, source, args[1:], kwargs, result)
            return _computed(func, args, kwargs)

    @classmethod
    def _after(cls, func: Op, source: LogProbs, args: tuple[Any, ...], kwargs: Any, result: Tensor) -> Tensor:
        """Return the result of a change of shape, marked if all classes are still on one axis."""
        axis = source.axis
        assert axis is not None
        classes = source.shape[axis]
        if func in FLAT:
            new = None
            flat = selects_rows(source, axis, kwargs["mask"] if "mask" in kwargs else args[0])
            flat = flat and source.rest is None
        else:
            new = axis_after(func, source, axis, args, kwargs, result)
            flat = result.ndim == 1 and result.numel() == source.numel() and axis == source.ndim - 1
            flat = flat and func in KEEP and not torch.compiler.is_compiling()
            if new is not None and result.shape[new] == classes:
                flat = False
                new = new if whole(func, source, axis, args, kwargs) else None
            else:
                new = None
        if flat:
            return _flattened(result, classes)
        if new is None:
            return _lost(func, result)
        marked = cls.of(result, new)
        if torch.compiler.is_compiling():
            return marked
        if func is F.pad or source.rest is not None:
            marked.rest = _rest_after(func, source, args, kwargs, result)
        return marked


def _flattened(result: Tensor, classes: int) -> Tensor:
    marked = LogProbs.of(result, None)
    marked.flat = classes
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
    """Mark a function of log-probabilities, if it is to be differentiated; see :mod:`.likelihoods`."""
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


def _rest_after(func: Op, source: LogProbs, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    rest = source.rest if source.rest is not None else torch.zeros_like(source, dtype=torch.bool)
    if func is F.pad:
        pad = kwargs["pad"] if "pad" in kwargs else args[0]
        return F.pad(rest.as_subclass(Tensor).byte(), pad, value=1).bool()
    rest = rest.as_subclass(Tensor)
    if result.shape == source.shape and result.dtype != source.dtype:
        return rest  # another type of numbers
    return func(rest, *args, **kwargs)


def _complete(x: LogProbs) -> LogProbs:
    """Normalise the rows that are no log-probabilities, as the loss would."""
    assert x.axis is not None
    assert x.rest is not None
    plain = x.as_subclass(Tensor)
    return LogProbs.of(torch.where(x.rest, plain.log_softmax(x.axis), plain), x.axis)


def _write(func: Op, target: Any = None, *rest: Any) -> bool:
    """Mark a tensor into which log-probabilities were written, as in ``outputs[t] = out``."""
    if func not in (_T.__setitem__, _T.copy_) or torch.compiler.is_compiling():
        return False
    index, value = rest[:2] if func is _T.__setitem__ else (..., rest[0])
    if not isinstance(target, Tensor) or not isinstance(value, LogProbs) or value.axis is None:
        return False
    axis = axis_of_written(target, index, value, value.axis) if value.rest is None else None
    if axis is None:
        return False
    if not isinstance(target, LogProbs):
        target.__class__ = LogProbs
        target = cast(LogProbs, target)
        target.axis, target.rest = axis, torch.ones_like(target, dtype=torch.bool).as_subclass(Tensor)
    elif target.axis != axis:
        return False
    if target.rest is not None:
        target.rest[index] = False
    return True


def _joined(func: Op, result: Tensor, tensors: Any, dim: int = 0, **_: Any) -> Tensor:
    """Mark the result of ``cat`` or ``stack`` along another axis than that of the classes."""
    axes = {part.axis if isinstance(part, LogProbs) else None for part in tensors}
    axis = axes.pop()
    if axes or axis is None or (func is torch.cat and dim % result.ndim == axis):
        return result
    marked = LogProbs.of(result, joined_axis(func, result, dim, axis))
    if any(part.rest is not None for part in tensors):
        rests = [torch.zeros_like(t, dtype=torch.bool) if t.rest is None else t.rest for t in tensors]
        marked.rest = func([rest.as_subclass(Tensor) for rest in rests], dim)
    return marked


def _log_softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)  # methods take it by position
    if dim is None:
        dim = _implicit_dim("log_softmax", x.ndim, 5)
    if dim % x.ndim != x.axis:
        result = F.log_softmax(x.as_subclass(Tensor), dim, dtype=dtype)
        trail.record(F.log_softmax, result)
        return result
    return LogProbs.of(x.to(dtype) if dtype is not None else x.view_as(x), x.axis)


def _softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)  # methods take it by position
    if dim is None:
        dim = _implicit_dim("softmax", x.ndim, 5)
    if dim % x.ndim != x.axis:
        return F.softmax(x.as_subclass(Tensor), dim, dtype=dtype)
    return x.as_subclass(Tensor).to(dtype or x.dtype).exp()


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
