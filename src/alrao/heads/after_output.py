r"""The outputs of all copies, each on its way through the rest of the network.

Where a network does more with its output layer's outputs than change their shape (scales or caps them,
resizes or pools them, splits them into two distributions), that belongs to every copy, not to their mixture:
:class:`Spread` applies it to the outputs of each copy. The mixture is made where the distribution is: in the
softmax, :math:`m = \sum_j a_j\, \mathrm{softmax}(l_j)` for the logits :math:`l_j` that come out of the rest
of the network, or in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from ..finite import alive_distributions
from ..shortcuts import without_fallback_warning
from ..tensors import LogProbs, Members, Prediction, members_of
from ..tensors.axes import KEEP, Op, axis_after, axis_of_written, changes_values, functions
from ..tensors.predictions import BASE, hook_members
from .exported import mean_of_copies, mixture_logit
from .members import watched
from .softmax import careful_gradients, careful_mixture, refuse_second_derivative, wide

_T = torch.Tensor
_PLAIN = {
    "__reduce_ex__", "__deepcopy__", "__repr__", "__format__", "__array__", "__dlpack__", "__len__",
    "__contains__", "numpy", "backward", "item", "tolist", "register_hook", "retain_grad",
    "as_subclass",
}  # fmt: skip
"""Operations on the numbers that are shown: the mean of the copies'."""


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


class Spread(Prediction):
    """The outputs of all copies. Its numbers are their weighted mean (the mixture's logit for labels)."""

    @classmethod
    def showing(cls, members: Members, axis: int | None) -> Spread:
        """Return the mean of ``members``, marked."""
        mean = _shown(members)
        if members.own.grad_fn is not None or members.mixed.grad_fn is not None:
            mean = watched(mean, len(members.own), members.evidence)
        marked = mean.as_subclass(cls)
        marked.axis, marked.members = axis, members
        return marked

    @classmethod
    def call(cls, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply an operation to the outputs of each copy; make the mixture in a softmax."""
        name = getattr(func, "__name__", "")
        if func == BASE:
            return None
        if name in _PLAIN or (name == "__get__" and func not in KEEP):
            with torch._C.DisableTorchFunctionSubclass():
                if func is _T.register_hook:
                    hook_members(*args)
                return func(*args, **kwargs)
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "a model whose copies go through the rest of the network cannot be compiled: use it without "
                "torch.compile"
            )
        source = args[0] if args else None
        if isinstance(source, Spread) and source.members is not None:
            if source.members.likelihood != "categorical":
                if func in cls.routes:
                    return cls.routes[func](*args, **kwargs)
            elif func in _ON_MIXTURE:
                return _of_mixture(func, *args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            leaves, structure = pytree.tree_flatten((args, kwargs))
            found = [i for i, x in enumerate(leaves) if isinstance(x, Spread) and members_of(x) is not None]
            if not found:
                return func(*args, **kwargs)
            if func in (F.batch_norm, torch.batch_norm):
                raise RuntimeError(
                    "a BatchNorm layer follows the output layer, which would see every copy's outputs: name "
                    'a later layer with Alrao(net, output="its.dotted.name"), or remove it'
                )
            in_place = changes_values(func, kwargs) and isinstance(leaves[0], Tensor)
            call = _Call(func, leaves, structure, sorted({0, *found}) if in_place else found)
            return call.in_place(leaves[0]) if in_place else call.result()


def _shown(members: Members) -> Tensor:
    own = members.own.detach()
    mean = (mixture_logit if members.likelihood == "bernoulli" else mean_of_copies)(own, members.weights)
    return torch.where((own == own[:1]).all(0), own[0], mean)  # of a class that is masked, -inf


class _Call:
    """A call of an operation on outputs of copies, with which its arguments at some ``places`` vary."""

    def __init__(self, func: Op, leaves: list[Any], structure: Any, places: list[int]) -> None:
        self.func, self.leaves, self.structure, self.places = func, leaves, structure, places
        self.source: Any = next(leaves[i] for i in places if isinstance(leaves[i], Spread))
        self.members: Members = self.source.members
        # All copies drop the same outputs.
        self._numbers = Randomness(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def result(self) -> Any:
        """Return what the operation returns, with the outputs of each copy behind every real tensor."""
        shown = self._plain(self.leaves)
        parts, shape = pytree.tree_flatten(shown)
        real = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.is_floating_point()]
        if not real:
            return shown

        def one(leaves: list[Any]) -> tuple[Tensor, ...]:
            results = pytree.tree_leaves(self._plain(leaves))
            return tuple(results[i] for i in real)

        for i, own, mixed in zip(real, *self._of_copies(one), strict=True):
            members = self.members._replace(own=own, mixed=mixed)
            parts[i] = Spread.showing(members, self._axis(parts[i]))
        return pytree.tree_unflatten(parts, shape)

    def in_place(self, target: Any) -> Any:
        """Change the outputs of each copy, and the mean that is shown."""

        def one(leaves: list[Any]) -> tuple[Tensor, ...]:
            changed = leaves[0].clone()
            self._plain([changed, *leaves[1:]])
            return (changed,)

        (own,), (mixed,) = self._of_copies(one)
        axis = self._axis(target)
        self._plain(self.leaves)
        if not isinstance(target, Spread):  # zeros, to which outputs are added
            target.__class__ = Spread
        target.axis, target.members = axis, self.members._replace(own=own, mixed=mixed)
        with torch.no_grad():
            target.as_subclass(Tensor).detach().copy_(_shown(target.members))
        return target

    def _plain(self, leaves: list[Any]) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.func(*args, **kwargs)

    def _of_copies(self, one: Callable[[list[Any]], tuple[Tensor, ...]]) -> tuple[list[Tensor], list[Tensor]]:
        """Return what ``one`` makes of the arguments for each copy: for the copies, then for the body."""
        copies = len(self.members.own)

        def of(which: str) -> list[Tensor]:
            # What stands beside the outputs belongs to the body, and learns from the mixture only.
            fixed = [x.detach() if which == "own" and isinstance(x, Tensor) else x for x in self.leaves]
            outputs = [
                getattr(x.members, which) if isinstance(x, Spread) else fixed[i].expand(copies, *x.shape)
                for i, x in ((i, self.leaves[i]) for i in self.places)
            ]

            def filled(*of_copy: Tensor) -> tuple[Tensor, ...]:
                varying = dict(zip(self.places, of_copy, strict=True))
                return one([varying.get(i, x) for i, x in enumerate(fixed)])

            self._numbers.restore()
            try:
                with without_fallback_warning():
                    return list(torch.vmap(filled, randomness="same")(*outputs))
            except RuntimeError:  # an operation that cannot be batched
                rows = []
                for of_copy in zip(*outputs, strict=True):
                    self._numbers.restore()
                    rows.append(filled(*of_copy))
                return [torch.stack(results) for results in zip(*rows, strict=True)]

        own = of("own")
        return own, of("mixed") if torch.is_grad_enabled() else own

    def _axis(self, result: Tensor) -> int | None:
        """Return the axis of the outputs, for losses of several outputs; None if they are not on one axis."""
        source, axis = self.source, self.source.axis
        if axis is None:
            return None
        args, kwargs = pytree.tree_unflatten(self.leaves, self.structure)
        if self.func is _T.__setitem__ and args[0] is not source:
            return axis_of_written(args[0], args[1], source, axis)
        if self.func in KEEP and args and args[0] is source:
            return axis_after(self.func, source, axis, args[1:], kwargs, result)
        same = result.ndim == source.ndim and result.shape[axis] == source.shape[axis]
        return axis if same else None


torch.serialization.add_safe_globals([Spread])


# The mixture of a classifier.


def mixture_of_softmaxes(members: Members, dim: int) -> LogProbs:
    """Return the mixture's log-probabilities over ``dim`` of the outputs, from the logits of all copies."""
    dim = dim % (members.own.ndim - 1)
    own, mixed = (logits.movedim(dim + 1, -1) for logits in (members.own, members.mixed))
    shape, classes = own.shape[1:], own.shape[-1]
    own, mixed = (logits.reshape(len(logits), -1, classes).transpose(0, 1) for logits in (own, mixed))
    a = members.weights.to(wide(own.dtype)).view(-1, 1)
    log_m = _MixtureOfSoftmaxes.apply(own, mixed, a, members.evidence)
    return LogProbs.of(log_m.view(shape).movedim(-1, dim), dim)


class _MixtureOfSoftmaxes(torch.autograd.Function):
    """Of logits ``(rows, copies, classes)``; a copy with a row that is no distribution fails in it."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, mixed: Tensor, a: Tensor, evidence: Tensor) -> Tensor:
        log_p = own.log_softmax(-1, dtype=wide(own.dtype))  # a logit of -inf is a class of probability 0
        log_p, log_m, alive, shares = careful_mixture(log_p, alive_distributions(log_p), a)
        ctx.save_for_backward(log_p, alive, shares)
        ctx.dtype = own.dtype
        return log_m

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        g = g.unsqueeze(1)
        own, mixed, evidence = careful_gradients(g, g.sum(-1, keepdim=True), *ctx.saved_tensors)
        return own.to(ctx.dtype), mixed.to(ctx.dtype), None, evidence


_SOFTMAXES = functions("softmax", "log_softmax", places=(F, torch, _T))
_MAXIMA = functions("argmax", "max")
_TOPK = functions("topk")
_ON_MIXTURE: set[Op] = {F.cross_entropy} | _SOFTMAXES | _MAXIMA | _TOPK
"""What a classifier's mixture does: the softmax, the loss, and picking the highest outputs."""


def _of_mixture(func: Op, x: Spread, *args: Any, **kwargs: Any) -> Any:
    """Return the result of one of :data:`_ON_MIXTURE` for the mixture's log-probabilities."""
    members = members_of(x)
    assert members is not None
    if func is F.cross_entropy:
        return func(mixture_of_softmaxes(members, min(1, x.ndim - 1)), *args, **kwargs)
    position = 1 if func in _TOPK else 0
    dim = kwargs["dim"] if "dim" in kwargs else args[position] if len(args) > position else None
    if func in _SOFTMAXES:
        if dim is None:
            dim = 0 if x.ndim in (0, 1, 3) else 1  # torch's choice where none is given
        kwargs.pop("dim", None)
        return func(mixture_of_softmaxes(members, dim), dim, *args[1:], **kwargs)
    if dim is None and func in _TOPK:
        dim = -1
    if isinstance(dim, int):
        return func(mixture_of_softmaxes(members, dim).detach(), *args, **kwargs)
    return func(x.as_subclass(Tensor).detach(), *args, **kwargs)
