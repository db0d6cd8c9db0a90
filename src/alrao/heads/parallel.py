r"""Copies of a head on several devices: each process holds its own, and computes only those.

The copies are independent given the body's output :math:`z`, which every process has. For hard targets
:math:`y`, all that a mixture needs of a copy are the numbers :math:`\log p_j(y)`, one for each row; and the
body's gradient is a sum over the copies. So a step exchanges ``rows x copies`` numbers and a gradient of the
size of :math:`z`, nothing of the size of the classes. The whole output is exchanged only where it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from .. import evidence as reports
from .. import finite
from ..runtime.sharding import indices_of_copies
from ..tensors import LazyLogProbs, LogProbs
from .chunked import Copies, chunks
from .members import shared_linear
from .mixture import refuse_second_derivative, wide, without_autocast

__all__ = ["ParallelCopies"]


class ParallelCopies:
    """The copies of a head that this process holds, and those of the others.

    Args:
        group: the processes that hold copies.
        weight: the stacked weights, sharded over the copies.
    """

    def __init__(self, group: Any, weight: Tensor) -> None:
        self.group = group
        self.copies = len(weight)
        self.own = indices_of_copies(weight)
        """The numbers of the copies that this process holds."""
        self.places: list[int] = self.own.tolist()
        """The same, read once."""

    def linear(self, z: Tensor, weight: Any, bias: Any) -> tuple[Tensor, Tensor]:
        """Return every copy's linear output, gathered, as in :func:`shared_linear`."""
        z = _SumOfGradients.apply(z, self.group)
        own, mixed = shared_linear(z, weight.to_local(), None if bias is None else bias.to_local())
        gathered: tuple[Tensor, Tensor] = _Gathered.apply(own, self), _Gathered.apply(mixed, self)
        return gathered

    def leaf(self, evidence: Tensor) -> Tensor:
        """Return the leaf for the evidence: every process reports all of it, so that each counts in part."""
        part: Tensor = _Part.apply(evidence, dist.get_world_size(self.group))
        return part

    def mixture(self, z: Tensor, weight: Any, bias: Any, a: Tensor, evidence: Tensor) -> LogProbs:
        """Return the log-probabilities of the mixture of all copies, computed where they are read."""
        weight, bias = weight.to_local(), None if bias is None else bias.to_local()
        layer = _Layer(self, weight, bias, a, self.leaf(evidence), reports.is_readable(evidence))
        trained = any(x is not None and x.requires_grad for x in (z, weight, bias))
        if not torch.is_grad_enabled() or not trained:
            return LogProbs.of(layer.values(z), 1)
        return layer.output(z, 1)

    def gather(self, of_own: Tensor) -> Tensor:
        """Return what every process has for its copies, copies first."""
        whole = of_own.new_zeros(self.copies, *of_own.shape[1:])
        whole[self.own] = of_own
        dist.all_reduce(whole, group=self.group)
        return whole

    def add(self, x: Tensor) -> Tensor:
        """Return the sum over the processes."""
        x = x.contiguous()
        dist.all_reduce(x, group=self.group)
        return x


class _SumOfGradients(torch.autograd.Function):
    """The identity; what flows back are the parts of the processes, added up."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        g = g.contiguous().clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class _Gathered(torch.autograd.Function):
    """The outputs of all copies; each process goes back through its own."""

    @staticmethod
    def forward(ctx: Any, of_own: Tensor, parallel: ParallelCopies) -> Tensor:
        ctx.own = parallel.own
        return parallel.gather(of_own)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return g[ctx.own], None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, processes: int) -> Tensor:
        ctx.processes = processes
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return g / ctx.processes, None


class _Layer:
    """The copies with the weights that they have now; see :class:`alrao.tensors.lazy.Source`."""

    def __init__(
        self, parallel: ParallelCopies, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor,
        reads: bool,
    ) -> None:  # fmt: skip
        self.parallel, self.weight, self.bias, self.a, self.evidence = parallel, weight, bias, a, evidence
        self.reads = reads

    def output(self, z: Tensor, axis: int) -> LogProbs:
        lazy: LazyLogProbs = _Mixture.apply(z, self.weight, self.bias, self.evidence, self, axis)
        return lazy.attach(z, axis, self)

    def values(self, rows: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        with torch.no_grad():
            log_m, _ = self.log_mixture(rows)
        return log_m.view(*(rows.shape[:1] if shape is None else shape), log_m.shape[-1])

    def nll(self, rows: Tensor, target: Tensor, share: Tensor, divisor: Tensor | None) -> Tensor:
        if divisor is not None:
            share = torch.where(divisor == 0, 0, share / divisor)
        losses: Tensor = _HardNLL.apply(rows, self.weight, self.bias, self.evidence, target, share, self)
        return losses if divisor is None else torch.where(divisor == 0, torch.nan, losses.sum())

    def log_mixture(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixture's log-probabilities, and the weight of the copies that are left in each row."""
        z = finite.zero_unusable(z)
        copies = Copies(z, self.weight, self.bias)
        out = torch.zeros(len(z), copies.classes, dtype=wide(z.dtype), device=z.device).fill_(-torch.inf)
        left = torch.zeros_like(out[:, :1])
        for rows in chunks(len(z), copies.classes):
            for j, place in enumerate(self.parallel.places):
                log_p = copies.log_probs(j, z[rows], careful=True)
                left[rows] += self.a[place] * (log_p[:, :1] > -torch.inf)
                out[rows] = torch.logaddexp(out[rows], log_p + self.a[place].log())
        left = self.parallel.add(left)
        highest = out.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=self.parallel.group)
        highest = highest.clamp(min=torch.finfo(out.dtype).min)
        out = self.parallel.add((out - highest).exp()).log().add_(highest)
        out = out.sub_(left.log()).clamp_(min=-finite.HUGE)
        return out.masked_fill_(left <= 0, -log(copies.classes)), left


class _HardNLL(torch.autograd.Function):
    """The negative log-likelihood of hard targets, for each row."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, evidence: Tensor,
        target: Tensor, share: Tensor, layer: _Layer,
    ) -> Tensor:  # fmt: skip
        with without_autocast(z):
            x = finite.zero_unusable(z)
            copies = Copies(x, weight, bias)
            own = torch.empty(copies.number, len(x), dtype=wide(z.dtype), device=z.device)
            for rows in chunks(len(x), copies.classes):
                for j in range(copies.number):
                    log_p = copies.log_probs(j, x[rows], careful=True)
                    own[j, rows] = log_p.gather(1, target[rows, None])[:, 0]
            log_p = layer.parallel.gather(own)
            shares = finite.share_among(log_p > -torch.inf, layer.a.to(log_p.dtype), 0)
            log_m = (log_p + shares.log()).logsumexp(0).clamp(min=-finite.HUGE)
            log_m = torch.where(shares.sum(0) > 0, log_m, -log(copies.classes))
            ctx.layer = layer
            ctx.save_for_backward(z, weight, bias, target, share, log_p, shares, log_m)
            return -share * log_m

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight, bias, target, share, log_p, shares, log_m = ctx.saved_tensors
        parallel: ParallelCopies = ctx.layer.parallel
        with without_autocast(z):
            s = -share * g
            healthy = finite.usable(z)
            x = torch.where(healthy, z, 0)
            copies = Copies(x, weight, bias)
            responsibilities = finite.zero_nan((log_p + shares.log() - log_m).exp())
            sums = _Sums(x, weight, bias)
            for rows in chunks(len(x), copies.classes):
                y = target[rows, None]
                for j, place in enumerate(parallel.places):
                    log_probs = copies.log_probs(j, x[rows], careful=True)
                    alive = log_probs.gather(1, y) > -torch.inf
                    own = log_probs.exp_().neg_().scatter_add_(1, y, alive.to(log_probs.dtype))
                    own.mul_(s[rows, None])
                    sums.add(j, own, x[rows])
                    mixed = own * responsibilities[place, rows, None]
                    sums.z[rows] += mixed.to(z.dtype) @ copies.finite_weight(j)
            grad_z = torch.where(healthy, parallel.add(sums.z), 0) if ctx.needs_input_grad[0] else None
            scores = (log_p * s).masked_fill(s == 0, 0).sum(1)
            evidence = reports.pack(scores, s.sum(), s.relu().sum(), s.count_nonzero())
            evidence = reports.count_once(ctx, evidence, s)
            return (grad_z, *sums.of(weight, bias), evidence, None, None, None)


class _Sums:
    """The gradients by the inputs and by the copies that this process holds."""

    def __init__(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.z = torch.zeros_like(z)
        self.weight = torch.zeros_like(weight, dtype=wide(weight.dtype))
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=wide(bias.dtype))

    def add(self, j: int, own: Tensor, z: Tensor) -> None:
        """Add the gradient by a copy's logits."""
        self.weight[j] += own.t().to(z.dtype) @ z
        if self.bias is not None:
            self.bias[j] += own.sum(0)

    def of(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients by weight and bias, in their types."""
        grad_bias = None if self.bias is None or bias is None else self.bias.to(bias.dtype)
        return self.weight.to(weight.dtype), grad_bias


class _Mixture(torch.autograd.Function):
    """The whole output, for any loss that is linear in it: what is read of it is exchanged."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, evidence: Tensor, layer: _Layer, axis: int
    ) -> Tensor:
        ctx.layer, ctx.axis = layer, axis
        ctx.save_for_backward(z, weight, bias)
        return LazyLogProbs.empty(z, axis, weight.shape[1], wide(z.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight, bias = ctx.saved_tensors
        layer: _Layer = ctx.layer
        moved = z.movedim(ctx.axis, -1)
        flat = moved.reshape(-1, moved.shape[-1])
        g = g.movedim(ctx.axis, -1).reshape(len(flat), -1)
        with without_autocast(z):
            log_m, left = layer.log_mixture(flat)
            healthy = finite.usable(flat)
            x = torch.where(healthy, flat, 0)
            copies, sums = Copies(x, weight, bias), _Sums(x, weight, bias)
            scores = torch.zeros(copies.number, dtype=log_m.dtype, device=z.device)
            share = (1 / left).where(left > 0, 0)
            for rows in chunks(len(x), copies.classes):
                of_rows, total = g[rows], g[rows].sum(-1, keepdim=True)
                for j, place in enumerate(layer.parallel.places):
                    log_p = copies.log_probs(j, x[rows], careful=True)
                    alive = log_p[:, :1] > -torch.inf
                    scores[j] += (log_p * of_rows).masked_fill_(of_rows == 0, 0).sum()
                    mixed = (log_p - log_m[rows]).exp_().mul_(layer.a[place] * share[rows]).mul_(of_rows)
                    p = log_p.exp_()
                    mixed = mixed.addcmul_(p, mixed.sum(-1, keepdim=True), value=-1).masked_fill_(~alive, 0)
                    sums.z[rows] += mixed.to(z.dtype) @ copies.finite_weight(j)
                    sums.add(j, p.mul_(-total).add_(of_rows).masked_fill_(~alive, 0), x[rows])
            grad_z = torch.where(healthy, layer.parallel.add(sums.z), 0)
            totals = g.sum(-1)
            evidence = reports.pack(
                layer.parallel.gather(scores), g.sum(), g.relu().sum(), totals.count_nonzero()
            )
            evidence = reports.count_once(ctx, evidence, totals)
            grad_z = grad_z.view(moved.shape).movedim(-1, ctx.axis)
            return (grad_z, *sums.of(weight, bias), evidence, None, None)
