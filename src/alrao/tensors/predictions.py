"""What a regressor or a multi-label classifier returns: a prediction, with the copies' behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..warn import note_lost
from .axes import JOINS, MOVE, SPLIT, Marked, Op, axis_after, axis_of_written, changes_values

_T = torch.Tensor
_ARRANGES = MOVE | SPLIT | JOINS
"""Operations that only move numbers: the prediction of the copies' results is that of the prediction."""

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
            changed = changes_values(func, kwargs)
            if func in _ARRANGES and not changed and _complete(func, args):
                return CallOnCopies(func, args, kwargs).result(Prediction.of)
            result = func(*args, **kwargs)
            if func is _T.register_hook:
                hook_members(source, *args[1:])
            if isinstance(source, Prediction):
                if source.members is None:
                    return result
                source.members = None if changed else source.members
            note_lost(func, source if changed else result)
            return result


def _complete(func: Op, args: tuple[Any, ...]) -> bool:
    """Return whether all that an operation moves are predictions, with the same copies behind them."""
    parts = args[0] if func in JOINS and args else args[:1]
    found: list[Any] = [getattr(part, "members", None) for part in parts]
    if not found or any(each is None for each in found):
        return False
    first, others = found[0], [each for each in found if each is not found[0]]
    return all(x.evidence is first.evidence and torch.equal(x.weights, first.weights) for x in others)


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


class Randomness:
    """The state of torch's random numbers, on the CPU and on the GPUs that hold some tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if devices and torch.cuda.is_current_stream_capturing():
            devices = set()
        self._cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restore(self) -> None:
        """Put it back, to draw the same numbers again."""
        torch.set_rng_state(self._cpu)
        for device, numbers in self._cuda:
            torch.cuda.set_rng_state(numbers, device)


class CallOnCopies:
    """A call of an operation on predictions, for each copy: ``source`` is the first of them, or None."""

    def __init__(self, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.leaves, self._structure = pytree.tree_flatten((args, kwargs))
        known = [isinstance(x, Prediction) and members_of(x) is not None for x in self.leaves]
        self._places = [i for i, each in enumerate(known) if each]
        self.source: Any = self.leaves[self._places[0]] if self._places else None
        self.in_place = changes_values(func, kwargs) and isinstance(self.leaves[0], Tensor)
        # All copies drop the same outputs. What only moves them draws no random numbers.
        drawing = self._places and func not in _ARRANGES
        self._numbers = Randomness(x for x in self.leaves if isinstance(x, Tensor)) if drawing else None

    def result(self, mark: Callable[[Tensor, int | None, Members], Tensor]) -> Any:
        """Return what the operation returns, each real tensor marked with the outputs of each copy.

        An operation in place is applied to a copy of its first argument, which is returned.
        """
        shown = self._run(self.leaves)
        parts, shape = pytree.tree_flatten(shown)
        real = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.is_floating_point()]
        if not real:
            return shown
        own = self._of_copies("own", real)
        mixed = self._of_copies("mixed", real) if torch.is_grad_enabled() else own
        for i, *both in zip(real, own, mixed, strict=True):
            members = self.source.members._replace(own=both[0], mixed=both[1])
            parts[i] = mark(parts[i], self._axis(parts[i]), members)
        return pytree.tree_unflatten(parts, shape)

    def _run(self, leaves: list[Any]) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        if not self.in_place:
            return self.func(*args, **kwargs)
        target = args[0].clone()
        self.func(target, *args[1:], **kwargs)
        return target

    def _of_copies(self, which: str, real: list[int]) -> list[Tensor]:
        """Return the real results for each copy, of the outputs for the copies or of those for the body."""
        # What stands beside the outputs belongs to the body, and learns from the mixture only.
        leaves = [x.detach() if which == "own" and isinstance(x, Tensor) else x for x in self.leaves]
        outputs = [getattr(self.leaves[i].members, which) for i in self._places]
        rows = []
        for of_copy in zip(*outputs, strict=True):
            for i, output in zip(self._places, of_copy, strict=True):
                leaves[i] = output
            if self._numbers is not None:
                self._numbers.restore()
            rows.append([part for i, part in enumerate(pytree.tree_leaves(self._run(leaves))) if i in real])
        return [torch.stack(results) for results in zip(*rows, strict=True)]

    def _axis(self, result: Tensor) -> int | None:
        """Return the axis of the outputs, for losses of several outputs; None if they are not on one axis."""
        func, source, args, axis = self.func, self.source, self.args, self.source.axis
        if axis is None:
            return None
        if func is _T.__setitem__ and args[0] is not source:
            return axis_of_written(args[0], args[1], source, axis)
        if func in JOINS:
            tensors, dim = args[0], args[1] if len(args) > 1 else self.kwargs.get("dim", 0)
            shifted = func is torch.stack and dim % result.ndim <= axis
            alike = all(x.axis == axis for x in tensors if isinstance(x, Prediction))
            return axis + shifted if alike else None
        if func in _ARRANGES and args and args[0] is source:
            return axis_after(func, source, axis, args[1:], self.kwargs, result)
        same = result.ndim == source.ndim and result.shape[axis] == source.shape[axis]
        return axis if same else None


# Saved predictions can be loaded with torch's default, weights_only=True.
torch.serialization.add_safe_globals([Prediction, Members])
