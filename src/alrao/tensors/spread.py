"""The outputs of all copies, each on its way through the rest of the network.

Where a network does more with its output layer's outputs than change their shape (scales or caps them,
resizes or pools them, splits them into two distributions), that belongs to every copy, not to their mixture:
:class:`Spread` applies it to the outputs of each copy. The mixture is made where the distribution is: in the
softmax or the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from ..shortcuts import without_fallback_warning
from .axes import KEEP, Op, axis_after, changes_values
from .means import mean_of_copies, mixture_logit
from .predictions import BASE, Members, Prediction, announce, members_of
from .randomness import Randomness
from .rows import axis_of_written
from .watched import watched

__all__ = ["Spread"]

_T = torch.Tensor
_PLAIN = {
    "__reduce_ex__", "__deepcopy__", "__repr__", "__format__", "__array__", "__dlpack__", "__len__",
    "__contains__", "numpy", "backward", "item", "tolist", "register_hook", "retain_grad",
    "as_subclass",
}  # fmt: skip
"""Operations on the numbers that are shown: the mean of the copies'."""


def _shown(members: Members, own: Tensor) -> Tensor:
    mean = (mixture_logit if members.likelihood == "bernoulli" else mean_of_copies)(own, members.weights)
    return torch.where((own == own[:1]).all(0), own[0], mean)  # of a class that is masked, -inf


class Spread(Prediction):
    """The outputs of all copies. Its numbers are their weighted mean (the mixture's logit for labels)."""

    softmaxes: ClassVar[dict[Op, Op]] = {}
    """What makes the mixture of a classifier; see :mod:`alrao.heads.spread`."""

    @classmethod
    def of(cls, tensor: Tensor | None, axis: int | None, members: Members) -> Spread:
        """Mark the mean of ``members``; ``tensor`` has its numbers, if they are known."""
        if tensor is None:
            tensor = _shown(members, members.own.detach())
            if members.own.grad_fn is not None or members.mixed.grad_fn is not None:
                tensor = watched(tensor, len(members.own), members.evidence)
        marked = tensor.as_subclass(cls)
        marked.axis, marked.members = axis, members
        return marked

    @classmethod
    def __torch_function__(
        cls, func: Op, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Apply an operation to the outputs of each copy; make the mixture in a softmax."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func == BASE:
            return None
        if name in _PLAIN or (name == "__get__" and func not in KEEP):
            with torch._C.DisableTorchFunctionSubclass():
                if func is _T.register_hook:
                    announce(*args)
                return func(*args, **kwargs)
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "a model whose copies go through the rest of the network cannot be compiled: use it without "
                "torch.compile"
            )
        source = args[0] if args else kwargs.get("input")
        if isinstance(source, Spread) and source.members is not None:
            if source.members.likelihood != "categorical":
                if func in cls.routes:
                    return cls.routes[func](*args, **kwargs)
            elif func in cls.softmaxes:
                rest = args[1:] if args else ()
                named = kwargs if args else {key: value for key, value in kwargs.items() if key != "input"}
                return cls.softmaxes[func](source, *rest, **named)
        with torch._C.DisableTorchFunctionSubclass():
            leaves, structure = pytree.tree_flatten((args, kwargs))
            found = [
                i
                for i, leaf in enumerate(leaves)
                if isinstance(leaf, Spread) and members_of(leaf) is not None
            ]
            if not found:
                return func(*args, **kwargs)
            if func in (F.batch_norm, torch.batch_norm):
                raise RuntimeError(
                    "a BatchNorm layer follows the output layer, which would see every copy's outputs: name "
                    'a later layer with Alrao(net, output="its.dotted.name"), or remove it'
                )
            if changes_values(func, kwargs) and isinstance(leaves[0], Tensor):
                return _in_place(func, leaves, structure, found)
            return _follow(func, leaves, structure, found)


def _follow(func: Op, leaves: list[Any], structure: Any, found: list[int]) -> Any:
    """Return what the operation returns, with the outputs of each copy behind every real tensor."""
    numbers = Randomness(leaf for leaf in leaves if isinstance(leaf, Tensor))
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    shown = func(*args, **kwargs)
    parts, shape = pytree.tree_flatten(shown)
    real = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.is_floating_point()]
    if not real:
        return shown

    def one(filled: list[Any]) -> tuple[Tensor, ...]:
        args, kwargs = pytree.tree_unflatten(filled, structure)
        results = pytree.tree_leaves(func(*args, **kwargs))
        return tuple(results[i] for i in real)

    own, mixed = _of_copies(one, leaves, found, numbers)
    first: Spread = leaves[found[0]]
    assert first.members is not None
    for i, one_own, one_mixed in zip(real, own, mixed, strict=True):
        members = first.members._replace(own=one_own, mixed=one_mixed)
        parts[i] = Spread.of(None, _axis(func, leaves, structure, first, first.axis, parts[i]), members)
    return pytree.tree_unflatten(parts, shape)


def _in_place(func: Op, leaves: list[Any], structure: Any, found: list[int]) -> Any:
    """Change the outputs of each copy, and the mean that is shown.

    The target need not have been an output before: rows of a tensor of zeros, to which outputs are added.
    """
    numbers = Randomness(leaf for leaf in leaves if isinstance(leaf, Tensor))
    target, first = leaves[0], leaves[found[0]]

    def one(filled: list[Any]) -> tuple[Tensor, ...]:
        args, kwargs = pytree.tree_unflatten([filled[0].clone(), *filled[1:]], structure)
        func(*args, **kwargs)
        return (pytree.tree_leaves((args, kwargs))[0],)

    (own,), (mixed,) = _of_copies(one, leaves, sorted({0, *found}), numbers)
    axis = _axis(func, leaves, structure, first, first.axis, target)
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    func(*args, **kwargs)
    if not isinstance(target, Spread):
        target.__class__ = Spread
    members = first.members._replace(own=own, mixed=mixed)
    target.axis, target.members = axis, members
    with torch.no_grad():
        target.as_subclass(Tensor).detach().copy_(_shown(members, own.detach()))
    return target


def _of_copies(
    one: Callable[[list[Any]], tuple[Tensor, ...]], leaves: list[Any], found: list[int], numbers: Randomness
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what an operation makes of the outputs of each copy: for the copies, and for the body.

    Args:
        one: the operation, by the leaves of its arguments.
        leaves: these leaves.
        found: the places of outputs among them; one that has no copies is the same for all.
        numbers: the random numbers before it, so that all copies drop the same outputs.
    """

    def of(which: str) -> list[Tensor]:
        # What stands beside the outputs belongs to the body, and learns from the mixture only.
        fixed = [x.detach() if which == "own" and isinstance(x, Tensor) else x for x in leaves]
        copies = next(len(x.members.own) for x in leaves if isinstance(x, Spread) and x.members is not None)
        outputs = [
            getattr(leaves[i].members, which)
            if isinstance(leaves[i], Spread)
            else fixed[i].expand(copies, *fixed[i].shape)
            for i in found
        ]

        def filled(*of_copy: Tensor) -> tuple[Tensor, ...]:
            complete = list(fixed)
            for i, output in zip(found, of_copy, strict=True):
                complete[i] = output
            return one(complete)

        numbers.restore()
        return _for_each_copy(filled, outputs, numbers)

    own = of("own")
    return own, of("mixed") if torch.is_grad_enabled() else own


def _axis(
    func: Op, leaves: list[Any], structure: Any, source: Spread, axis: int | None, result: Tensor
) -> int | None:
    """Return the axis of the outputs, for losses of several outputs; None if they are not on one axis."""
    if axis is None:
        return None
    if func is _T.__setitem__ and leaves[0] is not source:
        (target, index, _), _ = pytree.tree_unflatten(leaves, structure)
        return axis_of_written(target, index, source, axis)
    if func in KEEP and leaves[0] is source:
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        return axis_after(func, source, axis, args[1:], kwargs, result)
    same = result.ndim == source.ndim and result.shape[axis] == source.shape[axis]
    return axis if same else None


def _for_each_copy(
    one: Callable[..., tuple[Tensor, ...]], outputs: list[Tensor], numbers: Randomness
) -> list[Tensor]:
    try:
        with without_fallback_warning():
            return list(torch.vmap(one, randomness="same")(*outputs))
    except RuntimeError:  # an operation that cannot be batched
        rows = []
        for of_copy in zip(*outputs, strict=True):
            numbers.restore()
            rows.append(one(*of_copy))
        return [torch.stack(results) for results in zip(*rows, strict=True)]


torch.serialization.add_safe_globals([Spread])
