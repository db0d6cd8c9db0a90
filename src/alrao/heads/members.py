"""Mixtures whose likelihood needs the target: regression, labels, the adaptive softmax.

Their heads return the outputs of all copies twice: what flows back into the first reaches the copies, what
flows back into the second reaches the body. The loss, which has the target, makes the mixture of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import evidence as reports
from ..finite import HUGE, alive, zero_nonfinite, zero_unusable
from ..tensors import Members
from .mixture import refuse_second_derivative, wide

__all__ = ["mixture_nll", "shared_linear"]


def shared_linear(z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return every copy's linear output ``(copies, rows, outputs)``, twice: for the copies and for the body.

    The values are the same; what flows back into the first reaches only ``weight`` and ``bias``, what flows
    back into the second reaches only ``z``.
    """
    own, mixed = _SharedLinear.apply(zero_unusable(z), weight, bias)
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
        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            flat = zero_nonfinite(mixed).transpose(0, 1).flatten(1).to(z.dtype)
            grad_z = flat @ zero_nonfinite(weight.flatten(0, 1))
        own = zero_nonfinite(own)
        if ctx.needs_input_grad[1]:
            grad_weight = own.transpose(1, 2).to(z.dtype) @ z
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = own.sum(1).to(weight.dtype)
        return grad_z, grad_weight, grad_bias


def mixture_nll(
    own: Tensor, mixed: Tensor, members: Members, *, if_all_fail: Tensor | float, alternatives: bool = False
) -> Tensor:
    """Return the mixture's negative log-likelihood of each observation.

    A copy whose log-likelihood is not finite has no weight and no gradient in that observation.

    Args:
        own: log-likelihoods that each copy gives to the observations, copies first; reaches the copies.
        mixed: the same values; reaches the body.
        members: weights of the copies, and the leaf for the evidence.
        if_all_fail: the loss where no copy with any weight is left.
        alternatives: the axis behind the copies' holds the possible outcomes of one observation.
    """
    weights = members.weights.to(mixed.dtype).view([-1] + [1] * (mixed.ndim - 1))
    counts = alive(mixed.detach()) & (weights > 0)
    joint = torch.where(counts, mixed, 0) + torch.where(counts, weights, 0).log()
    joint = joint - torch.where(counts, weights, 0).sum(0).log()  # those left share the weight of the others
    someone = counts.any(0)
    losses = torch.where(someone, -torch.where(someone, joint, 0).logsumexp(0), if_all_fail).clamp(max=HUGE)
    return _Attached.apply(losses, own, members.evidence, alternatives)


class _Attached(torch.autograd.Function):
    """The identity on the losses; backward reaches the copies' own losses and the evidence too."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, own: Tensor, evidence: Tensor, alternatives: bool) -> Tensor:
        ctx.alternatives = alternatives
        ctx.save_for_backward(own)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (own,) = ctx.saved_tensors
        living = alive(own)
        grad_own = torch.where(living, -g, 0)
        scores = torch.where(living, own * -g, torch.inf).masked_fill(g == 0, 0).reshape(len(own), -1).sum(1)
        seen = g != 0
        rows = seen.any(0) if ctx.alternatives else seen
        evidence = reports.pack(scores, -g.sum(), (-g).relu().sum(), rows.sum())
        return g, grad_own, reports.count_once(ctx, evidence, rows), None
