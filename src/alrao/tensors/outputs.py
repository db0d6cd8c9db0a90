"""The tensors that a model returns, with their meaning.

A classifier returns :class:`LogProbs`. Users pass them to ``cross_entropy`` or ``log_softmax`` like logits;
neither is linear in log-probabilities, and on log-probabilities the log-softmax is the identity. A regressor
or a multi-label classifier returns a :class:`Prediction`, which holds the outputs of all copies for the loss.

Operations that only change the shape keep the type; all others return a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction as _Reduction

from .axes import GATHER, KEEP, SPLIT, Op, axis_after, changes_values, whole

__all__ = ["LogProbs", "Members", "Prediction"]

_T = torch.Tensor


class LogProbs(torch.Tensor):
    """Log-probabilities of the mixture. ``axis`` is that of the classes, None once that is lost."""

    axis: int | None = None

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
            if func in _ROUTES and isinstance(source, LogProbs) and source.axis is not None:
                if not args:
                    kwargs = {key: value for key, value in kwargs.items() if key != "input"}
                return _ROUTES[func](source, *args[1:], **kwargs)
            if not isinstance(source, LogProbs):
                result = func(*args, **kwargs)
                if func in (torch.cat, torch.stack) and isinstance(result, Tensor):
                    return _joined(func, result, *args, **kwargs)
                return result
            if func is _T.__deepcopy__:
                return cls.of(source.as_subclass(Tensor).__deepcopy__(*args[1:]), source.axis)
            if changes_values(func, kwargs):
                source.axis = None
            result = func(*args, **kwargs)
            if source.axis is None:
                return result
            if (func in KEEP or func in GATHER) and isinstance(result, Tensor):
                return cls._after(func, source, args[1:], kwargs, result)
            if func in SPLIT:
                return type(result)([cls._after(func, source, args[1:], kwargs, part) for part in result])
            return result

    @classmethod
    def _after(cls, func: Op, source: LogProbs, args: tuple[Any, ...], kwargs: Any, result: Tensor) -> Tensor:
        """Return the result of a change of shape, marked if all classes are still on one axis."""
        assert source.axis is not None
        axis = axis_after(func, source, source.axis, args, kwargs, result)
        if axis is None or result.shape[axis] != source.shape[source.axis]:
            return result
        return cls.of(result, axis) if whole(func, source, source.axis, args, kwargs) else result


def _joined(func: Op, result: Tensor, tensors: Any, dim: int = 0, **_: Any) -> Tensor:
    """Mark the result of ``cat`` or ``stack`` along another axis than that of the classes."""
    axes = {part.axis if isinstance(part, LogProbs) else None for part in tensors}
    axis = axes.pop()
    if axes or axis is None:
        return result
    dim = dim % result.ndim
    if func is torch.cat:
        return LogProbs.of(result, axis) if dim != axis else result
    return LogProbs.of(result, axis + (dim <= axis))


def _log_softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)  # methods take it by position
    if dim is None or dim % x.ndim != x.axis:
        return F.log_softmax(x.as_subclass(Tensor), dim, dtype=dtype)
    return LogProbs.of(x.to(dtype) if dtype is not None else x.view_as(x), x.axis)


def _softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)  # methods take it by position
    if dim is None or dim % x.ndim != x.axis:
        return F.softmax(x.as_subclass(Tensor), dim, dtype=dtype)
    return x.as_subclass(Tensor).to(dtype or x.dtype).exp()


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
        kept = target.masked_select(~ignored)
        smooth = smooth.sum() / (kept.numel() if weight is None else weight[kept].sum())
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
        signs = torch.ones_like(g)
        signs.view(-1)[::2] = -1
        return g.abs() * signs


def _refused(loss: Op) -> Op:
    """Return a loss of numbers, not of probabilities, that can be computed but not trained with."""
    return lambda x, *args, **kwargs: loss(_Refused.apply(x.as_subclass(Tensor)), *args, **kwargs)


_ROUTES: dict[Op, Op] = {
    **{loss: _refused(loss) for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)},
    F.cross_entropy: _cross_entropy,
    F.log_softmax: _log_softmax,
    torch.log_softmax: _log_softmax,
    _T.log_softmax: _log_softmax,
    F.softmax: _softmax,
    torch.softmax: _softmax,
    _T.softmax: _softmax,
}


class Members(NamedTuple):
    """The outputs of all copies behind a prediction, copies first, and what a loss needs of the head."""

    own: Tensor
    """What flows back into these reaches only the copies."""
    mixed: Tensor
    """The same values; what flows back into these reaches only the body."""
    weights: Tensor
    """The copies' weights in the mixture."""
    evidence: Tensor
    """The leaf whose gradient is the evidence."""
    likelihood: str


class Prediction(torch.Tensor):
    """The mixture's prediction; ``members`` holds those of the copies, in the same shape.

    ``axis`` is that of the outputs, None once they are no longer on one axis.
    """

    axis: int | None = None
    members: Members | None = None
    routes: ClassVar[dict[Op, Op]] = {}
    """Replacements for losses of torch; see :mod:`alrao.losses`."""

    @property
    def intact(self) -> bool:
        """Whether it still has its meaning."""
        return self.members is not None

    @classmethod
    def of(cls, tensor: Tensor, axis: int | None, members: Members) -> Prediction:
        """Mark ``tensor`` as the prediction of ``members``."""
        marked = tensor.as_subclass(cls)
        marked.axis = axis
        marked.members = members
        return marked

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Apply to the copies' outputs whatever changes the shape of the prediction."""
        kwargs = kwargs or {}
        source = args[0] if args else None
        if func in cls.routes and isinstance(source, Prediction):
            return cls.routes[func](*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if not isinstance(source, Prediction):
                return result
            if changes_values(func, kwargs):
                source.members = None
            members = source.members
            if members is None or not (func in KEEP or func in GATHER) or not isinstance(result, Tensor):
                return result
            axis = source.axis
            if axis is not None:
                axis = axis_after(func, source, axis, args[1:], kwargs, result)
            follow = torch.vmap(lambda member: func(member, *args[1:], **kwargs))
            members = members._replace(own=follow(members.own), mixed=follow(members.mixed))
            return cls.of(result, axis, members)


# Saved predictions can be loaded with torch's default, weights_only=True.
torch.serialization.add_safe_globals([LogProbs, Prediction, Members])
