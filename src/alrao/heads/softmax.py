r"""The mixture of softmax output layers, with one forward and one backward.

With copies :math:`p_j = \mathrm{softmax}(W_j z + b_j)`, weights :math:`a_j` and the mixture
:math:`m = \sum_j a_j p_j`, the loss is :math:`L = \sum_k g_k \log m_k + \text{const}`, linear in
:math:`\log m` with :math:`g \le 0` (any negative log-likelihood: hard or soft targets, class weights,
ignored rows, any reduction). Then, for the logits of copy :math:`j`,

* the gradient of the copy's *own* loss :math:`\sum_k g_k \log p_{jk}` is :math:`g_k - p_{jk} \sum_i g_i`;
  it reaches :math:`W_j, b_j`;
* the gradient of the *mixture's* loss is :math:`g_k r_{jk} - p_{jk} \sum_i g_i r_{ji}` with the
  responsibilities :math:`r_{jk} = a_j p_{jk} / m_k`; it reaches :math:`z`, hence the body.

The evidence leaves the same backward; see :mod:`alrao.evidence`. Where reading a number costs nothing, the
mixture is computed plainly, and again in logarithms and with masks if a number is not finite or underflows.
Elsewhere, on a GPU or in a compiled graph, it is computed with masks at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import evidence as reports
from ..finite import HUGE, TINY, alive_rows, fail, share_among, usable, zero_nonfinite, zero_unusable
from ..shortcuts import applied_as
from ..tensors import LogProbs

FEW = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""Numbers in a register of the CPU: below, torch's kernels for a softmax take them one at a time."""

TRANSPOSED = 32
"""The largest number of classes for which compiled code has the rows next to each other in memory."""


def categorical_mixture(
    z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor, mixing: slice | None = None
) -> LogProbs:
    """Return log-probabilities for ``z`` (rows, d), ``weight`` (copies, classes, d), ``a`` (copies, 1)."""
    if torch.compiler.is_compiling():
        return LogProbs.of(_CategoricalMixture.apply(z, weight, bias, a, evidence, mixing), 1)
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


def cast(z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the weights and the biases in the type of the inputs, that of the products."""
    if weight.dtype is z.dtype:
        return weight, bias
    return weight.to(z.dtype), None if bias is None else bias.to(z.dtype)


def refuse_second_derivative() -> None:
    """Raise in a backward pass that is being recorded."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the gradient of an Alrao head cannot be differentiated again, and create_graph=True asks for "
            "that: leave it out. The gradients of the copies and of the body belong to different losses"
        )


class _CategoricalMixture(torch.autograd.Function):
    # On a small network the number of operations determines the time of a step, so they are few here.

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor,
        mixing: slice | None,
    ) -> Tensor:  # fmt: skip
        copies, _, d = weight.shape
        flat = weight.view(-1, d)
        careful = not reports.is_readable(evidence)
        if not careful:
            log_p = _log_softmax_of_copies(z, flat, bias, copies)
            p = log_p.exp()
            first, last = (0, copies) if mixing is None else (mixing.start, mixing.stop)
            if last - first > 1:
                some_p, some_a = (p, a) if mixing is None else (p[:, mixing], a[mixing])
                m = (some_p * some_a).sum(1)
                careful = bool(m.numel()) and not m.amin().item() > TINY
                log_m = m if careful else m.log()
            else:  # one copy, equal to the bit: nothing underflows where no logarithm is taken of a sum
                m, log_m = p[:, first], log_p[:, first].clone()
                careful = bool(m.numel()) and not log_m.amin().item() > -torch.inf
            ctx.save_for_backward(z, flat, bias, a, log_p, p, m)
        if careful:  # a copy or a feature may have failed, or a probability underflows
            log_p, log_m, alive, shares = _careful_layers(z, flat, bias, a)
            ctx.save_for_backward(z, flat, bias, a, log_p, alive, shares)
        ctx.careful, ctx.mixing = careful, mixing
        return log_m

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, flat, bias, a, log_p, *rest = ctx.saved_tensors
        _, copies, classes = log_p.shape
        g_of_all, careful, mixing = g.unsqueeze(1), ctx.careful, ctx.mixing
        total = g_of_all.sum(-1, keepdim=True)
        if not careful:
            p, m = rest
            own = _own_gradient(g_of_all, total, log_p, p)
            evidence, finite = reports.of_rows_on_host(log_p * g_of_all, g_of_all, total)
            if finite:
                # a_j p_jk (u_k - sum_i p_ji u_i) with u = g / m
                some_p, some_a, mixed = p, a, own
                if mixing is not None:
                    some_p, some_a, mixed = p[:, mixing], a[mixing], own[:, mixing]
                if mixed.shape[1] > 1:
                    mixed = _mixed_gradient((g / m).unsqueeze(1) * some_a, some_p)
            else:  # a copy gives an observation the probability 0: weights of -inf, for example
                careful = True
                log_p, _, *rest = _careful_layers(z, flat, bias, a)
        if careful:
            own, mixed, evidence = careful_gradients(g_of_all, total, log_p, *rest)
            healthy = usable(z)
            z = torch.where(healthy, z, 0)

        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            if careful:
                grad_z = torch.where(healthy, torch.mm(mixed.flatten(1).to(z.dtype), zero_nonfinite(flat)), 0)
            else:
                if mixing is not None:
                    flat = flat[mixing.start * classes : mixing.stop * classes]
                grad_z = torch.mm(mixed.flatten(1).to(z.dtype), flat)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.mm(own.flatten(1).to(z.dtype).t(), z).view(copies, classes, z.shape[1])
        if ctx.needs_input_grad[2]:
            grad_bias = own.sum(0)
        return grad_z, grad_weight, grad_bias, None, reports.count_once(ctx, evidence, total), None


apply_mixture = applied_as(LogProbs, _CategoricalMixture)


def _log_softmax_of_copies(z: Tensor, flat: Tensor, bias: Tensor | None, copies: int) -> Tensor:
    """Return log-probabilities ``(rows, copies, classes)``; ``flat`` has the weights of all copies."""
    classes, dtype = flat.shape[0] // copies, wide(z.dtype)
    if torch.compiler.is_compiling() and classes <= TRANSPOSED:  # it makes vectors of the axis next in memory
        logits = flat @ z.t() if bias is None else torch.addmm(bias.view(-1, 1), flat, z.t())
        logits = logits.view(copies, classes, -1).permute(2, 0, 1)
    else:
        logits = F.linear(z, flat, None if bias is None else bias.view(-1)).view(-1, copies, classes)
    if not _are_few(logits):
        return logits.log_softmax(-1, dtype=dtype)
    logits = logits.to(dtype)  # in several operations: less than half the time for ten classes
    logits = logits - logits.amax(-1, keepdim=True)
    return logits - logits.exp().sum(-1, keepdim=True).log()


def _are_few(of_copies: Tensor) -> bool:
    """Return whether the classes are so few that torch's kernel is slow, and it is no single copy's."""
    return of_copies.shape[-1] < FEW and of_copies.shape[1] > 1 and of_copies.is_cpu


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


def _careful_layers(z: Tensor, flat: Tensor, bias: Tensor | None, a: Tensor) -> tuple[Tensor, ...]:
    """Return :func:`careful_mixture` of linear layers; a copy with other than finite outputs has failed."""
    log_p = _log_softmax_of_copies(zero_unusable(z), flat, bias, a.shape[0])
    return careful_mixture(log_p, alive_rows(log_p), a)


def careful_mixture(log_p: Tensor, alive: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mixture of log-probabilities ``(rows, copies, classes)`` without failed copies.

    In a row in which a copy is not ``alive`` the others share its weight; without any, the row is uniform.
    Returned are ``log_p`` of the copies, ``log_m`` of the mixture, ``alive``, and the responsibilities.
    """
    log_p = fail(log_p, alive)
    a = share_among(alive, a, 1)
    joint = log_p + a.log()
    highest = joint.amax(1, keepdim=True).clamp(min=torch.finfo(log_p.dtype).min)
    shares = (joint - highest).exp()
    together = shares.sum(1, keepdim=True)
    log_m = (together.log() + highest).squeeze(1).clamp(min=-HUGE)
    log_m = torch.where(a.sum(1) > 0, log_m, -log(max(1, log_p.shape[-1])))
    return log_p, log_m, alive, shares / together.clamp(min=1)  # the highest is 1; without any, all are 0


def careful_gradients(
    g: Tensor, total: Tensor, log_p: Tensor, alive: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each copy's own gradient by its logits, the mixture's, and the evidence."""
    p = log_p.exp()
    mixed = own = torch.where(alive, _own_gradient(g, total, log_p, p), 0)
    if p.shape[1] > 1:
        mixed = shares * g
        mixed = mixed - p * mixed.sum(-1, keepdim=True)
    scores = (log_p * g).masked_fill(g == 0, 0)
    return own, mixed, reports.of_rows(scores, g, total)
