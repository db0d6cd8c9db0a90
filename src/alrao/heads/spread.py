r"""The mixture of a classifier whose outputs go through more of the network first, copy by copy.

The mathematics is that of :mod:`alrao.heads.softmax`, for the logits :math:`l_j` that come out of the rest of
the network: :math:`m = \sum_j a_j\, \mathrm{softmax}(l_j)`.
"""

from __future__ import annotations

from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import evidence as reports
from ..finite import HUGE, alive_distributions, fail, share_among, zero_nonfinite
from ..tensors import LogProbs, Members, Spread, members_of
from .softmax import refuse_second_derivative, wide

__all__ = ["mixture_of_softmaxes"]

_T = torch.Tensor


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
        alive = alive_distributions(log_p)
        log_p = fail(log_p, alive)
        a = share_among(alive, a, 1)
        log_m = (log_p + a.log()).logsumexp(1).clamp(min=-HUGE)
        log_m = torch.where(a.sum(1) > 0, log_m, -log(max(1, own.shape[-1])))
        ctx.save_for_backward(log_p, a, log_m, alive)
        ctx.dtype = own.dtype
        return log_m.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        log_p, a, log_m, alive = ctx.saved_tensors
        p, g = log_p.exp(), g.unsqueeze(1)
        total = g.sum(-1, keepdim=True)
        own = torch.where(alive, g - p * total, 0)
        mixed = (log_p + a.log() - log_m.unsqueeze(1)).exp() * g
        mixed = zero_nonfinite(mixed - p * mixed.sum(-1, keepdim=True))
        scores = (log_p * g).masked_fill(g == 0, 0)
        return own.to(ctx.dtype), mixed.to(ctx.dtype), None, reports.of_rows(scores, g, total)


def _members(x: Spread) -> Members:
    members = members_of(x)
    assert members is not None
    return members


def _implicit(x: Tensor) -> int:
    return 0 if x.ndim in (0, 1, 3) else 1  # torch's choice where none is given


def _log_softmax(
    x: Spread, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)
    log_m = mixture_of_softmaxes(_members(x), _implicit(x) if dim is None else dim)
    return log_m if dtype is None else log_m.to(dtype)


def _softmax(x: Spread, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    return _log_softmax(x, dim, *args, **kwargs).exp()


def _cross_entropy(x: Spread, *args: Any, **kwargs: Any) -> Tensor:
    return F.cross_entropy(mixture_of_softmaxes(_members(x), min(1, x.ndim - 1)), *args, **kwargs)


def _of_mixture(op: Any, place: int, default: int | None = None) -> Any:
    """Return an operation that picks outputs, on the mixture's probabilities instead of the mean logits."""

    def pick(x: Spread, *args: Any, **kwargs: Any) -> Any:
        dim = kwargs["dim"] if "dim" in kwargs else args[place] if len(args) > place else default
        if not isinstance(dim, int):
            return op(x.detach(), *args, **kwargs)
        return op(mixture_of_softmaxes(_members(x), dim).detach(), *args, **kwargs)

    return pick


Spread.softmaxes.update(
    {F.cross_entropy: _cross_entropy}
    | dict.fromkeys((F.log_softmax, torch.log_softmax, _T.log_softmax), _log_softmax)
    | dict.fromkeys((F.softmax, torch.softmax, _T.softmax), _softmax)
    | {op: _of_mixture(op, 0) for op in (torch.argmax, _T.argmax, torch.max, _T.max)}
    | {op: _of_mixture(op, 1, -1) for op in (torch.topk, _T.topk)}
)
