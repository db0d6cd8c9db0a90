r"""The mixture of softmax output layers as a compiled graph computes it.

The mathematics is that of :mod:`alrao.heads.mixture`, in logarithms and with masks, because a graph holds one
path only. Every pass over the outputs of all copies counts, so the responsibilities are not computed from the
mixture: they are a softmax over the copies, whose parts the forward pass has already.
"""

from __future__ import annotations

from math import log
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import evidence as reports
from ..finite import HUGE, alive, zero_unusable
from ..tensors import LogProbs
from .product import gradient_by_inputs

__all__ = ["compiled_mixture"]

FEW = 32
"""The largest number of classes for which the rows are the last axis."""


class _Axes(NamedTuple):
    """The axes of the outputs of all copies; compiled code makes vectors of the last one."""

    copies: int
    classes: int
    rows: int

    def outputs(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the outputs of all copies."""
        flat = weight.flatten(0, 1)
        if self.rows == 0:
            out = F.linear(z, flat, None if bias is None else bias.flatten())
            return out.view(-1, *weight.shape[:2])
        out = torch.mm(flat, z.t()) if bias is None else torch.addmm(bias.view(-1, 1), flat, z.t())
        return out.view(*weight.shape[:2], -1)

    def of_copies(self, column: Tensor) -> Tensor:
        """Return a number for each copy, ``(copies, 1)``, to broadcast to the outputs."""
        return column if self.rows == 0 else column.unsqueeze(-1)

    def of_mixture(self, x: Tensor) -> Tensor:
        """Return numbers of the mixture, ``(rows, classes)``, to broadcast to the outputs."""
        return x.unsqueeze(1) if self.rows == 0 else x.t().unsqueeze(0)

    def as_mixture(self, x: Tensor) -> Tensor:
        """Return the numbers of the mixture, without the axis of the copies, as ``(rows, classes)``."""
        return x if self.rows == 0 else x.t()

    def flat(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return numbers of all copies as ``(rows, copies x classes)``."""
        return (x.flatten(1) if self.rows == 0 else x.flatten(0, 1).t()).to(dtype)


def compiled_mixture(z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor) -> LogProbs:
    """Return the mixture's log-probabilities, as :func:`alrao.heads.mixture.categorical_mixture` does."""
    return LogProbs.of(_CompiledMixture.apply(z, weight, bias, a, evidence), 1)


class _CompiledMixture(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor
    ) -> Tensor:
        axes = _Axes(0, 1, 2) if weight.shape[1] <= FEW else _Axes(1, 2, 0)
        seen = zero_unusable(z)
        logits = axes.outputs(seen, weight, bias).to(a.dtype)
        top = logits.amax(axes.classes, keepdim=True)
        lives = alive(logits.sum(axes.classes, keepdim=True))  # a copy with another output fails in that row
        parts = (logits - top).exp()
        total = parts.sum(axes.classes, keepdim=True)
        log_p = torch.where(lives, logits - top - total.log(), -torch.inf)

        a = axes.of_copies(a)
        joint = log_p + a.log()
        highest = joint.amax(axes.copies, keepdim=True).clamp(min=torch.finfo(joint.dtype).min)
        shares = (joint - highest).exp()
        together = shares.sum(axes.copies, keepdim=True)
        left = (a * lives).sum(axes.copies, keepdim=True)  # those left share the weight of the failed
        log_m = (together.log() + highest - left.log()).clamp(min=-HUGE)
        log_m = torch.where(left > 0, log_m, -log(weight.shape[1])).squeeze(axes.copies)

        shares = shares / together.clamp(min=1)  # the highest is 1; without any, the shares are 0
        ctx.save_for_backward(z, seen, weight, lives, log_p, parts / total, shares)
        ctx.axes = axes
        return axes.as_mixture(log_m)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        z, seen, weight, lives, log_p, p, shares = ctx.saved_tensors
        axes, g = ctx.axes, ctx.axes.of_mixture(g)
        total = g.sum(axes.classes, keepdim=True)
        own = torch.where(lives, g - p * total, 0)
        mixed = own
        if len(weight) > 1:
            mixed = shares * g
            mixed = torch.where(lives, mixed - p * mixed.sum(axes.classes, keepdim=True), 0)
        scores = (log_p * g).masked_fill(g == 0, 0)
        scores = scores.sum(axes.classes, keepdim=True).sum((axes.classes, axes.rows))
        evidence = reports.pack(scores, total.sum(), g.relu().sum(), (total != 0).sum())

        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_z = gradient_by_inputs(axes.flat(mixed, z.dtype), weight.flatten(0, 1), z)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.mm(axes.flat(own, z.dtype).t(), seen).view(weight.shape)
        if ctx.needs_input_grad[2]:
            grad_bias = own.sum(axes.rows)
        return grad_z, grad_weight, grad_bias, None, evidence
