r"""The mixture of softmax output layers, with one forward and one backward.

With copies :math:`p_j = \mathrm{softmax}(W_j z + b_j)`, weights :math:`a_j` and the mixture
:math:`m = \sum_j a_j p_j`, the loss is :math:`L = \sum_k g_k \log m_k + \text{const}`, linear in
:math:`\log m` with :math:`g \le 0` (any negative log-likelihood: hard or soft targets, class weights,
ignored rows, any reduction). Then, for the logits of copy :math:`j`,

* the gradient of the copy's *own* loss :math:`\sum_k g_k \log p_{jk}` is :math:`g_k - p_{jk} \sum_i g_i`;
  it reaches :math:`W_j, b_j`;
* the gradient of the *mixture's* loss is :math:`g_k r_{jk} - p_{jk} \sum_i g_i r_{ji}` with the
  responsibilities :math:`r_{jk} = a_j p_{jk} / m_k`; it reaches :math:`z`, hence the body.

The evidence leaves the same backward; see :mod:`alrao.evidence`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import evidence as reports
from ..finite import (
    HUGE,
    TINY,
    alive_rows,
    fail,
    share_among,
    usable,
    zero_nonfinite,
    zero_unusable,
)
from ..shortcuts import applied_as
from ..tensors import LogProbs
from .compiled import compiled_mixture

__all__ = ["categorical_mixture", "refuse_second_derivative", "wide", "without_autocast"]


def categorical_mixture(
    z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor, mixing: slice | None = None
) -> LogProbs:
    """Return the mixture's log-probabilities ``(rows, classes)``; the module's docstring has its gradients.

    Args:
        z: inputs of the output layer, ``(rows, d)``.
        weight: stacked weights, ``(copies, classes, d)``.
        bias: stacked biases, ``(copies, classes)``, or None.
        a: weights of the copies in the mixture, ``(copies, 1)``.
        evidence: leaf whose gradient receives the evidence.
        mixing: the copies whose weight is not 0, to save work for the others; None: all.
    """
    if torch.compiler.is_compiling():
        return compiled_mixture(z, weight, bias, a, evidence)
    return apply_mixture(z, weight, bias, a, evidence, mixing)


def without_autocast(z: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off on the device of ``z``, which need not have any."""
    kind = z.device.type
    if torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind):  # which not every torch traces
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which probabilities are computed: float32, or float64 for float64."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def refuse_second_derivative() -> None:
    """Raise in a backward pass that is being recorded."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the gradient of an Alrao head cannot be differentiated again, and create_graph=True asks for "
            "that: leave it out. The gradients of the copies and of the body belong to different losses"
        )


FEW = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""Numbers in a register of the CPU: below, torch's kernels for a softmax take them one at a time."""


def _log_softmax_of_copies(z: Tensor, flat: Tensor, bias: Tensor | None, copies: int) -> Tensor:
    """Return log-probabilities ``(rows, copies, classes)``; ``flat`` has the weights of all copies."""
    logits = F.linear(z, flat, None if bias is None else bias.view(-1))
    logits, dtype = logits.view(-1, copies, flat.shape[0] // copies), wide(z.dtype)
    if not _are_few(logits):
        return logits.log_softmax(-1, dtype=dtype)
    logits = logits.to(dtype)  # in several operations: less than half the time for ten classes
    logits = logits - logits.amax(-1, keepdim=True)
    return logits - logits.exp().sum(-1, keepdim=True).log()


def _are_few(of_copies: Tensor) -> bool:
    """Return whether the classes are so few that torch's kernel is slow, and it is no single copy's."""
    return of_copies.shape[-1] < FEW and of_copies.shape[1] > 1 and of_copies.is_cpu


class _CategoricalMixture(torch.autograd.Function):
    # On a small network the number of operations determines the time of a step, so they are few here.

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor,
        mixing: slice | None,
    ) -> Tensor:  # fmt: skip
        copies, _, d = weight.shape
        flat = weight.view(-1, d)
        log_p = _log_softmax_of_copies(z, flat, bias, copies)
        p = log_p.exp()
        first, last = (0, copies) if mixing is None else (mixing.start, mixing.stop)
        several = last - first > 1
        if several:
            some_p, some_a = (p, a) if mixing is None else (p[:, mixing], a[mixing])
            m, least, limit = (some_p * some_a).sum(1), None, TINY
        else:  # nothing can underflow where no logarithm is taken of a sum
            m, least, limit = p[:, first], log_p[:, first], -torch.inf
        # Reading a value would split a compiled graph or stall a GPU: take the careful path there always.
        careful = not reports.is_readable(evidence)
        if not careful and m.numel():
            careful = not (m if least is None else least).amin().item() > limit
        if careful:  # a copy or a feature has failed, or a probability underflows
            log_p, m, a = _careful_mixture(z, flat, bias, a)
            p = log_p.exp()
            log_m = m.clone()
        else:
            log_m = m.log() if several else log_p[:, first].clone()  # a single copy: equal to the bit
        ctx.careful, ctx.room, ctx.mixing = careful, getattr(weight, "gradient_room", None), mixing
        ctx.save_for_backward(z, flat, bias, a, log_p, p, m)
        return log_m

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, flat, bias, a, log_p, p, m = ctx.saved_tensors
        _, copies, classes = p.shape
        g_of_all, careful = g.unsqueeze(1), ctx.careful
        total = g_of_all.sum(-1, keepdim=True)
        if not careful:
            own = _own_gradient(g_of_all, total, log_p, p)
            evidence, finite = reports.of_rows_on_host(log_p * g_of_all, g_of_all, total)
            if finite:
                # a_j p_jk (u_k - sum_i p_ji u_i) with u = g / m
                mixing = ctx.mixing
                some_p, some_a, mixed = p, a, own
                if mixing is not None:
                    some_p, some_a, mixed = p[:, mixing], a[mixing], own[:, mixing]
                if mixed.shape[1] > 1:
                    mixed = _mixed_gradient((g / m).unsqueeze(1) * some_a, some_p)
            else:  # a copy gives an observation the probability 0: weights of -inf, for example
                log_p, m, a = _careful_mixture(z, flat, bias, a)
                p, careful = log_p.exp(), True
        if careful:
            healthy = usable(z)
            z = torch.where(healthy, z, 0)
            own = _own_gradient(g_of_all, total, log_p, p)
            own = torch.where(log_p[..., :1] > -torch.inf, own, 0)
            mixed = own
            if copies > 1:
                mixed = (log_p + a.log() - m.unsqueeze(1)).exp() * g_of_all
                mixed = mixed - p * mixed.sum(-1, keepdim=True)
            scores = (log_p * g_of_all).masked_fill(g_of_all == 0, 0)
            evidence = reports.of_rows(scores, g_of_all, total)

        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            if careful:
                grad_z = torch.where(healthy, torch.mm(_flat(mixed, z.dtype), zero_nonfinite(flat)), 0)
            else:
                rows = ctx.mixing
                if rows is not None:
                    flat = flat[rows.start * classes : rows.stop * classes]
                grad_z = torch.mm(_flat(mixed, z.dtype), flat)
        if ctx.needs_input_grad[1]:
            # Some copies of a head have room for their gradient inside that of all.
            room = None if ctx.room is None else ctx.room().view(copies * classes, z.shape[1])
            grad_weight = torch.mm(_flat(own, z.dtype).t(), z, out=room).view(copies, classes, z.shape[1])
        if ctx.needs_input_grad[2]:
            grad_bias = own.sum(0)
        return grad_z, grad_weight, grad_bias, None, reports.count_once(ctx, evidence, total), None


apply_mixture = applied_as(LogProbs, _CategoricalMixture)


def _own_gradient(g: Tensor, total: Tensor, log_p: Tensor, p: Tensor) -> Tensor:
    """Return the gradient of each copy's own loss by its logits."""
    if p.shape[1] == 1:  # by torch's own function: a single copy is a plain network, to the bit
        return torch._log_softmax_backward_data(g, log_p, -1, log_p.dtype)
    return torch.addcmul(g, p, total, value=-1)


def _mixed_gradient(u: Tensor, p: Tensor) -> Tensor:
    """Return the gradient of the mixture's loss by the logits of its copies."""
    if not _are_few(p):
        return torch._softmax_backward_data(u, p, -1, p.dtype)
    pu = p * u
    return torch.addcmul(pu, p, pu.sum(-1, keepdim=True), value=-1)


def _flat(of_copies: Tensor, dtype: torch.dtype) -> Tensor:
    flat = of_copies.flatten(1)
    return flat if flat.dtype is dtype else flat.to(dtype)


def _careful_mixture(
    z: Tensor, flat: Tensor, bias: Tensor | None, a: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mixture in logarithms, without failed features and, row by row, without failed copies.

    A copy that gives anything but finite log-probabilities has ``log_p = -inf`` in that row, and the others
    share its weight; a row in which all copies do is uniform.

    Returns:
        ``log_p`` of the copies, ``log_m`` of the mixture, and the weights ``a`` in each row.
    """
    log_p = _log_softmax_of_copies(zero_unusable(z), flat, bias, a.shape[-2])
    alive = alive_rows(log_p)
    log_p = fail(log_p, alive)
    a = share_among(alive, a, 1)
    joint = log_p + a.log()
    highest = joint.amax(1).clamp(min=torch.finfo(log_p.dtype).min)
    log_m = (joint - highest.unsqueeze(1)).exp().sum(1).log() + highest
    log_m = log_m.clamp(min=-HUGE)
    return log_p, torch.where(a.sum(1) > 0, log_m, -log(log_p.shape[-1])), a
