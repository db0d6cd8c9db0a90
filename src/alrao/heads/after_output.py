r"""The outputs of all copies, each on its way through the rest of the network.

Where a network does more with its output layer's outputs than change their shape (scales or caps them,
resizes or pools them, splits them into two distributions), that belongs to every copy, not to their mixture:
:class:`Spread` applies it to the outputs of each copy. The mixture is made where the distribution is: in the
softmax, :math:`m = \sum_j a_j\, \mathrm{softmax}(l_j)` for the logits :math:`l_j` that come out of the rest
of the network, or in the loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..finite import alive_distributions
from ..tensors import LogProbs, Members, Prediction, members_of
from ..tensors.axes import KEEP, Op, functions
from ..tensors.predictions import BASE, CallOnCopies, hook_members
from .members import shown_output, watched
from .softmax import careful_gradients, careful_mixture, refuse_second_derivative, wide

_T = torch.Tensor
_PLAIN = {
    "__reduce_ex__", "__deepcopy__", "__repr__", "__format__", "__array__", "__dlpack__", "__len__",
    "__contains__", "numpy", "backward", "item", "tolist", "register_hook", "retain_grad",
    "as_subclass",
}  # fmt: skip
"""Operations on the numbers that are shown: the mean of the copies'."""


class Spread(Prediction):
    """The outputs of all copies. Its numbers are their weighted mean (the mixture's logit for labels)."""

    @classmethod
    def showing(cls, members: Members, axis: int | None) -> Spread:
        """Return the mean of ``members``, marked."""
        own = members.own.detach()
        mean = torch.where((own == own[:1]).all(0), own[0], shown_output(members))  # a masked class: -inf
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
            call = CallOnCopies(func, args, kwargs)
            if call.source is None:
                return func(*args, **kwargs)
            if func in (F.batch_norm, torch.batch_norm):
                raise RuntimeError(
                    "a BatchNorm layer follows the output layer, which would see every copy's outputs: name "
                    'a later layer with Alrao(net, output="its.dotted.name"), or remove it'
                )
            out = call.result(lambda part, axis, members: cls.showing(members, axis))
            if not call.in_place:
                return out
            func(*args, **kwargs)
            target = call.leaves[0]
            if not isinstance(target, cls):  # zeros, to which outputs are added
                target.__class__ = cls
            target.axis, target.members = out.axis, out.members
            with torch.no_grad():
                target.as_subclass(Tensor).detach().copy_(out)
            return target


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
_TOPK = functions("topk")
_ON_MIXTURE: set[Op] = {F.cross_entropy} | _SOFTMAXES | _TOPK | functions("argmax", "max")
"""What a classifier's mixture does: the softmax, the loss, and picking the highest outputs."""


def _of_mixture(func: Op, x: Spread, *args: Any, **kwargs: Any) -> Any:
    """Return the result of one of :data:`_ON_MIXTURE` for the mixture's log-probabilities."""
    members = members_of(x)
    assert members is not None
    if func is F.cross_entropy:
        return func(mixture_of_softmaxes(members, min(1, x.ndim - 1)), *args, **kwargs)
    given, default = (args[1:], -1) if func in _TOPK else (args, None)  # behind the number of outputs
    dim = kwargs.get("dim", given[0] if given else default)
    if func in _SOFTMAXES:
        if dim is None:
            dim = 0 if x.ndim in (0, 1, 3) else 1  # torch's choice where none is given
        kwargs.pop("dim", None)
        return func(mixture_of_softmaxes(members, dim), dim, *args[1:], **kwargs)
    outputs: Tensor = mixture_of_softmaxes(members, dim) if isinstance(dim, int) else x.as_subclass(Tensor)
    return func(outputs.detach(), *args, **kwargs)
