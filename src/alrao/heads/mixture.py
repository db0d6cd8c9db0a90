r"""The mixture of softmax output layers in one forward and one backward.

With copies :math:`p_j = \mathrm{softmax}(W_j z + b_j)`, weights :math:`a_j` and the mixture
:math:`m = \sum_j a_j p_j`, the loss is :math:`L = \sum_k g_k \log m_k + \text{const}`, linear in
:math:`\log m` with :math:`g \le 0` (any negative log-likelihood: hard or soft targets, class weights,
ignored rows, any reduction). Then, for the logits of copy :math:`j`,

* the gradient of the copy's *own* loss :math:`\sum_k g_k \log p_{jk}` is :math:`g_k - p_{jk} \sum_i g_i`;
  it goes to :math:`W_j, b_j`;
* the gradient of the *mixture's* loss is :math:`g_k r_{jk} - p_{jk} \sum_i g_i r_{ji}` with the
  responsibilities :math:`r_{jk} = a_j p_{jk} / m_k`; it goes to :math:`z`, hence to the body.

The evidence of copy :math:`j`, its weighted mean log-likelihood, is :math:`\sum g \log p_j / \sum g`,
whatever factor was put on the loss. Both sums leave backward as the gradient of a small leaf tensor, so that
backward has no side effect and several of them add up.
"""

from __future__ import annotations

from math import isfinite, log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..averaging import Averaging
from ..tensors import LogProbs, Members

__all__ = [
    "EVIDENCE_EXTRA",
    "HUGE",
    "categorical_mixture",
    "finite_gradient",
    "mixture_nll",
    "refuse_second_derivative",
    "sane",
    "shared_linear",
    "watched",
    "wide",
]

EVIDENCE_EXTRA = 2
"""Numbers in the evidence behind the copies' own: sum(g) and sum(relu(g))."""

HUGE = 1e30
"""The largest loss of an observation: such that a batch of them still has a finite sum."""

TINY = 1e-30
"""Below this, a mixture probability in float32 is computed in logarithms instead."""


def categorical_mixture(
    z: Tensor, weight: Tensor, bias: Tensor | None, averaging: Averaging, evidence: Tensor
) -> LogProbs:
    """Log-probabilities ``(rows, classes)`` of the mixture; see the module for what flows back.

    Args:
        z: inputs of the output layer, ``(rows, d)``.
        weight: stacked weights, ``(copies, classes, d)``.
        bias: stacked biases, ``(copies, classes)``, or None.
        averaging: gives the copies' weights in the mixture.
        evidence: leaf of ``copies + EVIDENCE_EXTRA`` numbers whose gradient receives the evidence; with one
            more, that receives the number of rows with ``g != 0``.
    """
    a = averaging.column(wide(z.dtype))
    if torch.compiler.is_compiling():
        return LogProbs.of(_CategoricalMixture.apply(z, weight, bias, a, evidence), 1)
    out: LogProbs = _apply_at_once(z, weight, bias, a, evidence)
    out.__class__ = LogProbs  # the tensor is new: unlike as_subclass, this needs no other one, nor a node
    out.axis = 1
    return out


def sane(z: Tensor) -> Tensor:
    """Where ``z`` is a number with which one can still compute: finite, and its square too."""
    info = torch.finfo(z.dtype)
    return z.abs() <= (info.max**0.5 if info.max > 1e5 else info.max)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which probabilities are computed: float32, or float64 for float64."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _log_softmax_of_copies(z: Tensor, flat: Tensor, bias: Tensor | None, copies: int) -> Tensor:
    """Log-probabilities ``(rows, copies, classes)``; ``flat`` has the weights of all copies, in turn."""
    logits = F.linear(z, flat, None if bias is None else bias.view(-1))
    return logits.view(-1, copies, flat.shape[0] // copies).log_softmax(-1, dtype=wide(z.dtype))


class _CategoricalMixture(torch.autograd.Function):
    # On a small network the time of a step is the number of operations, so they are few here.

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor
    ) -> Tensor:
        copies, _, d = weight.shape
        flat = weight.view(-1, d)
        log_p = _log_softmax_of_copies(z, flat, bias, copies)
        p = log_p.exp()
        m = (p * a).sum(1)
        compiling = torch.compiler.is_compiling()
        # Asking for a value would split a compiled graph, or stop a GPU's queue: be careful there always.
        careful = compiling or not z.is_cpu or not (m.amin().item() > TINY if m.numel() else True)
        if careful:  # a copy or a feature is wrecked, or a probability underflows
            log_p, m, a = _careful_mixture(z, flat, bias, a)
            p = log_p.exp()
            log_m = m.clone()
        else:
            log_m = m.log() if copies > 1 else log_p[:, 0].clone()  # a single copy: to the bit
        ctx.careful, ctx.evidence_size = careful, evidence.shape[0]
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
            evidence = torch.cat([log_p * g_of_all, g_of_all, g_of_all.relu()], 1).sum((0, 2))
            if isfinite(sum(evidence.tolist())):
                # a_j p_jk (u_k - sum_i p_ji u_i) with u = g / m
                mixed = own
                if copies > 1:
                    mixed = torch._softmax_backward_data((g / m).unsqueeze(1) * a, p, -1, p.dtype)
            else:  # a copy gives the probability 0: weights of -inf, say
                log_p, m, a = _careful_mixture(z, flat, bias, a)
                p, careful = log_p.exp(), True
        if careful:
            # What is wrecked takes no part: exact zeros, where 0 times nan would be nan.
            flat, healthy = flat.nan_to_num(0, 0, 0), sane(z)
            z = torch.where(healthy, z, 0)
            own = _own_gradient(g_of_all, total, log_p, p)
            own = torch.where(log_p[..., :1] > -torch.inf, own, 0)
            mixed = own
            if copies > 1:
                mixed = (log_p + a.log() - m.unsqueeze(1)).exp() * g_of_all
                mixed = mixed - p * mixed.sum(-1, keepdim=True)
            scores = (log_p * g_of_all).masked_fill(g_of_all == 0, 0)
            evidence = torch.cat([scores, g_of_all, g_of_all.relu()], 1).sum((0, 2))

        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_z = torch.mm(_flat(mixed, z.dtype), flat)
            if careful:
                grad_z = torch.where(healthy, grad_z, 0)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.mm(_flat(own, z.dtype).t(), z).view(copies, classes, -1)
        if ctx.needs_input_grad[2]:
            grad_bias = own.sum(0)
        if ctx.evidence_size > copies + EVIDENCE_EXTRA:
            evidence = torch.cat([evidence, (total != 0).sum().view(1)])
        return grad_z, grad_weight, grad_bias, None, evidence


# What Function.apply comes to without torch.func's transforms, which a head refuses before.
_apply_at_once = super(torch.autograd.Function, _CategoricalMixture).apply


def _own_gradient(g: Tensor, total: Tensor, log_p: Tensor, p: Tensor) -> Tensor:
    """The gradient of each copy's own loss by its logits."""
    if p.shape[1] == 1:  # by torch's own function: a single copy is a plain network, to the bit
        return torch._log_softmax_backward_data(g, log_p, -1, log_p.dtype)
    return torch.addcmul(g, p, total, value=-1)


def _flat(of_copies: Tensor, dtype: torch.dtype) -> Tensor:
    flat = of_copies.view(of_copies.shape[0], of_copies.shape[1] * of_copies.shape[2])
    return flat if flat.dtype is dtype else flat.to(dtype)


def refuse_second_derivative() -> None:
    """Raise in a backward pass that is being recorded."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the gradient of an Alrao output layer cannot be differentiated again (create_graph=True): "
            "what flows back is not the derivative of one function"
        )


def _careful_mixture(
    z: Tensor, flat: Tensor, bias: Tensor | None, a: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in logarithms throughout, without wrecked features and, row by row, without wrecked copies.

    A copy that gives anything but finite log-probabilities has ``log_p = -inf`` in that row, and the others
    share its weight; a row in which all copies do is uniform.

    Returns:
        ``log_p`` of the copies, ``log_m`` of the mixture, and the weights ``a`` in each row.
    """
    log_p = _log_softmax_of_copies(torch.where(sane(z), z, 0), flat, bias, a.shape[-2])
    alive = log_p.amin(-1, keepdim=True).isfinite()
    log_p = torch.where(alive, log_p, -torch.inf)
    a = a * alive
    a = a / a.sum(1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
    joint = log_p + a.log()
    highest = joint.amax(1).clamp(min=torch.finfo(log_p.dtype).min)
    log_m = (joint - highest.unsqueeze(1)).exp().sum(1).log() + highest
    log_m = log_m.clamp(min=-HUGE)
    return log_p, torch.where(a.sum(1) > 0, log_m, -log(log_p.shape[-1])), a


def shared_linear(z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every copy's linear output ``(copies, rows, outputs)``, twice: for the copies and for the body.

    The values are the same; what flows back into the first reaches ``weight`` and ``bias`` alone, what flows
    back into the second reaches ``z`` alone.
    """
    own, mixed = _SharedLinear.apply(torch.where(sane(z), z, 0), weight, bias)
    return own, mixed


class _SharedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        copies, outputs, _ = weight.shape
        flat = F.linear(z, weight.flatten(0, 1), None if bias is None else bias.flatten())
        out = flat.view(-1, copies, outputs).transpose(0, 1).to(wide(z.dtype)).contiguous()
        ctx.save_for_backward(z, weight)
        ctx.has_bias = bias is not None
        return out, out.clone()

    @staticmethod
    def backward(ctx: Any, own: Tensor, mixed: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight = ctx.saved_tensors
        # What comes back from a copy that failed is not finite, and takes no part: exact zeros.
        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            flat = mixed.nan_to_num(0, 0, 0).transpose(0, 1).flatten(1).to(z.dtype)
            grad_z = flat @ weight.flatten(0, 1).nan_to_num(0, 0, 0)
        own = own.nan_to_num(0, 0, 0)
        if ctx.needs_input_grad[1]:
            grad_weight = own.transpose(1, 2).to(z.dtype) @ z
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = own.sum(1).to(weight.dtype)
        return grad_z, grad_weight, grad_bias


def finite_gradient(x: Tensor) -> Tensor:
    """The identity; what flows back is 0 where it is not finite."""
    return _FiniteGradient.apply(x)


class _FiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.nan_to_num(0, 0, 0)


def watched(prediction: Tensor, copies: int, evidence: Tensor) -> Tensor:
    """A prediction for looking at: a loss that is computed from it, past the criterion, is reported.

    Such a loss would train nothing; what flows back counts as positive parts in the evidence, which the
    optimizer refuses.
    """
    return _Watched.apply(prediction, copies, evidence)


class _Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, copies: int, evidence: Tensor) -> Tensor:
        ctx.copies, ctx.shape = copies, evidence.shape
        return prediction.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, Tensor]:
        report = g.new_zeros(ctx.shape)
        report[ctx.copies + 1] = g.abs().sum()
        return None, None, report


def mixture_nll(
    own: Tensor, mixed: Tensor, members: Members, *, if_all_fail: Tensor | float, alternatives: bool = False
) -> Tensor:
    """The mixture's negative log-likelihood of each observation.

    A copy whose log-likelihood is not finite is out of that observation: no weight, no gradient.

    Args:
        own: log-likelihoods that each copy gives to the observations, copies first; reaches the copies.
        mixed: the same values; reaches the body.
        members: weights of the copies, and the leaf for the evidence.
        if_all_fail: the loss where no copy with any weight is left: that of the prediction made then.
        alternatives: the axis behind the copies' holds the possible outcomes of one observation.
    """
    weights = members.weights.to(mixed.dtype).view([-1] + [1] * (mixed.ndim - 1))
    alive = mixed.detach().isfinite() & (weights > 0)
    joint = torch.where(alive, mixed, 0) + torch.where(alive, weights, 0).log()
    joint = joint - torch.where(alive, weights, 0).sum(0).log()  # those left share the weight of the others
    someone = alive.any(0)
    losses = torch.where(someone, -torch.where(someone, joint, 0).logsumexp(0), if_all_fail).clamp(max=HUGE)
    return _Attached.apply(losses, own, members.evidence, alternatives)


class _Attached(torch.autograd.Function):
    """The identity on the losses, with the copies' own losses and the evidence hung on behind."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, own: Tensor, evidence: Tensor, alternatives: bool) -> Tensor:
        ctx.counts_rows = len(evidence) > len(own) + EVIDENCE_EXTRA
        ctx.alternatives = alternatives
        ctx.save_for_backward(own)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (own,) = ctx.saved_tensors
        alive = own.isfinite()
        grad_own = torch.where(alive, -g, 0)
        scores = torch.where(alive, own * -g, torch.inf).masked_fill(g == 0, 0).reshape(len(own), -1).sum(1)
        sums = [-g.sum(), (-g).relu().sum()]
        if ctx.counts_rows:
            seen = g != 0
            sums.append((seen.any(0) if ctx.alternatives else seen).sum().to(g.dtype))
        return g, grad_own, torch.cat([scores, torch.stack(sums)]), None
