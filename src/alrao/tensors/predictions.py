"""What a regressor or a multi-label classifier returns: a prediction, with the copies' behind it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from . import trail
from .axes import MOVE, SPLIT, Marked, Op, axis_after, changes_values

_T = torch.Tensor

BASE = _T._base.__get__  # type: ignore[union-attr]  # the tensor that another one is a view of


class Members(NamedTuple):
    """The outputs of all copies behind a prediction, copies first, and what a loss needs of the head."""

    own: Tensor  # what flows back into these reaches only the copies
    mixed: Tensor  # the same values; what flows back into these reaches only the body
    weights: Tensor  # the copies' weights in the mixture
    evidence: Tensor  # the leaf whose gradient is the evidence
    likelihood: str


class Prediction(Marked):
    """The mixture's prediction; ``members`` holds those of the copies, in the same shape."""

    members: Members | None = None
    routes: ClassVar[dict[Op, Op]] = {}  # replacements for losses of torch; see :mod:`alrao.losses`

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
    def call(cls, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply to the copies' outputs whatever changes the shape of the prediction."""
        source = args[0] if args else None
        if func == BASE:
            return None  # torch warns of hooks that are lost with a view: those are with the members
        if func in cls.routes and isinstance(source, Prediction):
            return cls.routes[func](*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if func is _T.register_hook:
                hook_members(source, *args[1:])
            changed = changes_values(func, kwargs)
            if not isinstance(source, Prediction):
                if func in (torch.cat, torch.stack) and isinstance(result, Tensor):
                    return _joined_predictions(func, result, *args, **kwargs)
            elif changed:
                source.members = None
            elif source.members is None:
                return result
            elif func in MOVE and isinstance(result, Tensor):
                return _with_members(func, source, args, kwargs, result)
            elif func in SPLIT:
                parts = [_with_members(func, source, args, kwargs, part, i) for i, part in enumerate(result)]
                return type(result)(parts)
            trail.record(func, source if changed else result)
            return result


def members_of(prediction: Prediction) -> Members | None:
    """Return the members behind a prediction."""
    members = prediction.members
    if members is None or torch.compiler.is_compiling():
        return members
    if members.own.grad_fn is not None or members.mixed.grad_fn is not None:
        return members
    with torch._C.DisableTorchFunctionSubclass():
        trains = prediction.requires_grad
    if trains:
        raise RuntimeError(
            "no gradient would reach the copies of the head: their outputs went through a custom "
            "torch.autograd.Function, or the output layer is inside torch.utils.checkpoint with "
            "use_reentrant=True. Pass use_reentrant=False, write the function as torch operations, or train "
            "the plain network, alrao.Auto(net)"
        )
    return members


def hook_members(source: Any, hook: Any) -> None:
    """Call a hook by which torch gathers sharded parameters when the copies' outputs get their gradients."""
    # A loss is computed from those, so that no gradient comes through the prediction itself.
    members = getattr(source, "members", None)
    if members is not None and getattr(hook, "__module__", "").startswith("torch.distributed."):
        for output in (members.own, members.mixed):
            if output.requires_grad:
                output.register_hook(hook)


def _with_members(
    func: Op, source: Prediction, args: Any, kwargs: Any, result: Tensor, part: int | None = None
) -> Tensor:
    """Return the result of a change of shape, with the copies' outputs in the same shape."""
    axis, members = source.axis, members_of(source)
    assert members is not None
    func = _BATCHED.get(func, func)

    def one(member: Tensor) -> Tensor:
        out = func(member, *args[1:], **kwargs)
        return out if part is None else out[part]

    if axis is not None:
        axis = axis_after(func, source, axis, args[1:], kwargs, result)
    of_all = torch.vmap(one)
    return Prediction.of(result, axis, members._replace(own=of_all(members.own), mixed=of_all(members.mixed)))


_BATCHED: dict[Op, Op] = {torch.moveaxis: torch.movedim, _T.moveaxis: _T.movedim}
"""Names that ``torch.vmap`` does not know, with others of the same function."""


def _joined_predictions(func: Op, result: Tensor, tensors: Any, dim: int = 0, **_: Any) -> Tensor:
    """Join the copies' outputs as the predictions of one model were joined, by ``cat`` or ``stack``."""
    parts = [part.members for part in tensors if isinstance(part, Prediction) and part.members is not None]
    axes = {part.axis if isinstance(part, Prediction) else None for part in tensors}
    complete = len(parts) == len(tensors) and len(axes) == 1
    first = parts[0] if complete else None
    if first is None or not all(
        part.evidence is first.evidence and torch.equal(part.weights, first.weights) for part in parts
    ):
        trail.record(func, result)
        return result
    own, mixed = (
        func([getattr(part, which) for part in parts], dim % result.ndim + 1) for which in ("own", "mixed")
    )
    axis = axes.pop()
    if axis is not None:
        axis += func is torch.stack and dim % result.ndim <= axis
    return Prediction.of(result, axis, first._replace(own=own, mixed=mixed))


# Saved predictions can be loaded with torch's default, weights_only=True.
torch.serialization.add_safe_globals([Prediction, Members])
