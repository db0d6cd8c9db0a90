r"""The mixture of softmax output layers in little memory: rows in chunks, copies one by one.

:mod:`alrao.heads.softmax` has the mathematics. Its tensors of ``rows x copies x classes`` numbers are too
large for a vocabulary, so nothing here holds more than a few tensors of ``chunk x classes`` numbers.

For hard targets :math:`y` the gradient by the mixture's log-probabilities, :math:`g`, is zero but for
:math:`g_y = s`. The copy's own gradient by its logits is then :math:`s (\delta_{ky} - p_{jk})`, and the
mixture's is the same times one number per row and copy, the responsibility
:math:`r_j = a_j p_{jy} / m_y`. So one pass over the copies is enough: the products of
:math:`\delta - p_j` with the weights are scaled by :math:`r_j` once all copies are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import evidence as reports
from .. import finite
from .softmax import refuse_second_derivative, wide, without_autocast

__all__ = ["Copies", "Gradients", "backward_of_mixture", "chunks", "hard_nll", "log_mixture"]

CHUNK = 2**23
"""The most numbers of one copy's output that are held at a time."""


def hard_nll(
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor,
    evidence: Tensor,
    target: Tensor,
    share: Tensor,
    divisor: Tensor | None,
    mixing: slice | None = None,
    *,
    reads: bool,
) -> Tensor:
    """Return the mixture's negative log-likelihood of hard targets.

    Where the sum over the rows is asked for, its gradients are known up to a factor. They are computed in the
    forward pass then, which saves the logits' second computation.

    Args:
        z: inputs of the output layer, ``(rows, d)``, in the type of the matrix products.
        weight: stacked weights, ``(copies, classes, d)``.
        bias: stacked biases, ``(copies, classes)``, or None.
        a: weights of the copies in the mixture, ``(copies, 1)``.
        evidence: leaf whose gradient receives the evidence.
        target: the classes, ``(rows,)``.
        share: how much each row counts.
        divisor: return the sum over the rows divided by this; None: return each row's loss.
        mixing: the copies whose weight is not 0, to save work for the others; None: all.
        reads: whether a read on the host costs nothing.
    """
    return _HardNLL.apply(z, weight, bias, a, evidence, target, share, divisor, mixing, reads)


class Gradients:
    """The sums that a pass over the chunks gathers, for those inputs that need them."""

    def __init__(self, z: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, ...]) -> None:
        make = torch.empty_like if len(z) else torch.zeros_like
        self.z = make(z) if needs[0] else None
        self.weight = make(weight, dtype=wide(weight.dtype)) if needs[1] else None
        self.bias = None if bias is None or not needs[2] else torch.zeros_like(bias, dtype=wide(bias.dtype))

    def add(self, j: int, own: Tensor, z: Tensor, *, first: bool, sign: int = 1) -> None:
        """Add ``sign`` times the product of a copy's gradient by its logits with its inputs."""
        if self.weight is None:
            return
        total = self.weight[j]
        if total.dtype is own.dtype:
            torch.addmm(total, own.t(), z, beta=0 if first else 1, alpha=sign, out=total)
        elif first:
            total.copy_(own.t() @ z).mul_(sign)
        else:
            total.add_(own.t() @ z, alpha=sign)

    def scale_(self, factor: Tensor, *, reads: bool) -> None:
        """Multiply all of them by a number."""
        if reads and factor.item() == 1:
            return
        for total in (self.z, self.weight, self.bias):
            if total is not None:
                total.mul_(factor)

    def of(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients in the types of their inputs."""
        return (
            self.z,
            None if self.weight is None else self.weight.to(weight.dtype),
            None if self.bias is None or bias is None else self.bias.to(bias.dtype),
        )


def chunks(rows: int, classes: int) -> Iterator[slice]:
    """Return slices of about equal length, so that one has at most ``CHUNK`` numbers."""
    number = -(-rows // max(1, CHUNK // max(1, classes)))
    for i in range(number):
        yield slice(rows * i // number, rows * (i + 1) // number)


class Copies:
    """The copies' weights in the type of the products, and room for the output of one of them."""

    def __init__(self, z: Tensor, weight: Tensor, bias: Tensor | None, *, reads: bool = False) -> None:
        self.weight = weight.to(z.dtype)
        self.bias = None if bias is None else bias.to(z.dtype)
        self.number, self.classes, _ = weight.shape
        self.reads = reads  # a host read would stall another device
        self._room = torch.empty(0, dtype=wide(z.dtype), device=z.device)

    def log_probs(self, j: int, z: Tensor, *, careful: bool) -> Tensor:
        """Return a copy's log-probabilities; with care, ``-inf`` in each row in which one is not finite."""
        weight, bias = self.weight[j], None if self.bias is None else self.bias[j]
        if z.dtype is self._room.dtype:
            if self._room.numel() < len(z) * self.classes:
                self._room = self._room.new_empty(len(z) * self.classes)
            out = self._room[: len(z) * self.classes].view(len(z), self.classes)
            if bias is None:
                torch.mm(z, weight.t(), out=out)
            else:
                torch.addmm(bias, z, weight.t(), out=out)
            torch.log_softmax(out, -1, out=out)
        else:
            out = F.linear(z, weight, bias).log_softmax(-1, dtype=self._room.dtype)
        return finite.fail(out, finite.alive_rows(out)) if careful else out

    def finite_weight(self, j: int) -> Tensor:
        """Return a copy's weights with 0 where they are not finite."""
        return finite.zero_nonfinite(self.weight[j])


# Hard targets.


class _HardNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor,
        target: Tensor, share: Tensor, divisor: Tensor | None, mixing: slice | None, reads: bool,
    ) -> Tensor:  # fmt: skip
        with without_autocast(z):
            scale = -share if divisor is None else torch.where(divisor == 0, 0, -share / divisor)
            # Half precision needs the factor of a gradient scaler before the products, not after them.
            early = divisor is not None and z.dtype is not torch.float16 and any(ctx.needs_input_grad)
            gradients = Gradients(z, weight, bias, ctx.needs_input_grad) if early else None
            log_p, log_m = _hard_pass(z, weight, bias, a, target, scale, gradients, mixing, reads)
            ctx.mixing, ctx.reads = mixing, reads
            ctx.early = None if gradients is None else (gradients, log_p)
            ctx.save_for_backward(z, weight, bias, a, target, scale)
            losses = share * -log_m
            return losses if divisor is None else losses.sum() / divisor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight, bias, a, target, scale = ctx.saved_tensors
        with without_autocast(z):
            scale = scale * g
            if ctx.early is None:
                gradients = Gradients(z, weight, bias, ctx.needs_input_grad)
                log_p, _ = _hard_pass(z, weight, bias, a, target, scale, gradients, ctx.mixing, ctx.reads)
            else:
                (gradients, log_p), ctx.early = ctx.early, None  # the caller takes these tensors for its own
                gradients.scale_(g, reads=ctx.reads)
            evidence = reports.count_once(ctx, _evidence(log_p, scale), scale)
            return (*gradients.of(weight, bias), None, evidence, None, None, None, None, None)


def _hard_pass(
    z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, target: Tensor, scale: Tensor,
    gradients: Gradients | None, mixing: slice | None, reads: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the target's log-probabilities under each copy and under the mixture; fill in the gradients."""
    healthy = finite.usable(z)
    z = torch.where(healthy, z, 0)
    copies = Copies(z, weight, bias, reads=reads)
    log_p = torch.empty(len(z), copies.number, dtype=wide(z.dtype), device=z.device)
    log_m = torch.empty_like(log_p[:, 0])
    low = z.dtype is not log_p.dtype
    mixed_copies = range(copies.number)[mixing or slice(None)]
    suspects = [not copies.reads] * copies.number
    for rows in chunks(len(z), copies.classes):
        x, y, s = z[rows], target[rows, None], scale[rows, None]
        scaled = x if low else x * s
        back = log_p.new_empty(len(mixed_copies), *x.shape)
        for j in range(copies.number):
            while True:
                careful = suspects[j]
                log_probs = copies.log_probs(j, x, careful=careful)
                of_target = log_probs.gather(1, y)
                log_p[rows, j] = of_target[:, 0]
                check = of_target
                if gradients is not None:
                    own = log_probs.exp_().scatter_add_(1, y, -(of_target > -torch.inf).to(log_p.dtype))
                    if low:
                        own.mul_(s)
                    own = own.to(z.dtype)
                    if j in mixed_copies:
                        check = own @ (copies.finite_weight(j) if careful else copies.weight[j])
                        back[j - mixed_copies.start] = check
                if careful or finite.all_finite((check.sum().item(), of_target.sum().item())):
                    break
                suspects[j] = True
            if gradients is not None:
                gradients.add(j, own, scaled, first=rows.start == 0, sign=-1)
                if gradients.bias is not None:
                    gradients.bias[j] -= own.sum(0) if low else s[:, 0] @ own
        alive = log_p[rows] > -torch.inf
        shares = finite.share_among(alive, a.view(1, -1), 1)
        joint = log_p[rows] + shares.log()
        mixed = joint.logsumexp(1).clamp(min=-finite.HUGE)
        log_m[rows] = torch.where(shares.sum(1) > 0, mixed, -log(copies.classes))
        if gradients is not None and gradients.z is not None:
            responsibilities = (joint - log_m[rows, None]).exp()[:, mixing or slice(None)]
            responsibilities *= -1 if low else -s
            gradients.z[rows] = torch.einsum("rc,crd->rd", responsibilities, back).where(healthy[rows], 0)
    return log_p, log_m


def _evidence(log_p: Tensor, scale: Tensor) -> Tensor:
    scores = (log_p * scale[:, None]).masked_fill(scale[:, None] == 0, 0).sum(0)
    return reports.pack(scores, scale.sum(), scale.relu().sum(), scale.count_nonzero())


# Any gradient by the mixture's log-probabilities.


def log_mixture(
    z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, shape: Sequence[int] | None = None,
    *, reads: bool,
) -> Tensor:  # fmt: skip
    """Return the mixture's log-probabilities of rows, which are in a ``shape``: ``(*shape, classes)``."""
    with torch.no_grad(), without_autocast(z):
        z = finite.zero_unusable(z)
        copies = Copies(z, weight, bias, reads=reads)
        shape = [len(z)] if shape is None else shape
        out = torch.empty(*shape, copies.classes, dtype=wide(z.dtype), device=z.device)
        by_row = out.view(len(z), copies.classes)
        for rows in chunks(len(z), copies.classes):
            _log_mixture_of(copies, z[rows], a, by_row[rows])
        return out


def _log_mixture_of(copies: Copies, z: Tensor, a: Tensor, out: Tensor) -> Tensor | None:
    """Fill in the log-probabilities of a chunk; return the weight of the copies left in each row.

    None: all are left, and no probability is below :data:`alrao.finite.TINY`.
    """
    if copies.reads:
        out.zero_()
        for j in range(copies.number):
            out.addcmul_(copies.log_probs(j, z, careful=False).exp_(), a[j])
        if out.numel() == 0 or out.amin().item() > finite.TINY:
            out.log_()
            return None
    out.fill_(-torch.inf)
    left = torch.zeros_like(out[:, :1])
    for j in range(copies.number):
        log_p = copies.log_probs(j, z, careful=True)
        left += a[j] * (log_p[:, :1] > -torch.inf)
        torch.logaddexp(out, log_p.add_(a[j].log()), out=out)
    out.sub_(left.log()).clamp_(min=-finite.HUGE)
    out.masked_fill_(left <= 0, -log(copies.classes))
    return left


def backward_of_mixture(
    g: Tensor, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, needs: tuple[bool, ...],
    *, reads: bool,
) -> tuple[Gradients, Tensor]:  # fmt: skip
    """Return the gradients, and the evidence, for any gradient ``g`` by the mixture's log-probabilities."""
    with without_autocast(z):
        healthy = finite.usable(z)
        z = torch.where(healthy, z, 0)
        copies = Copies(z, weight, bias, reads=reads)
        gradients = Gradients(z, weight, bias, needs)
        scores = torch.zeros(copies.number, dtype=wide(z.dtype), device=z.device)
        positive, seen = scores.new_zeros(()), scores.new_zeros(())
        for rows in chunks(len(z), copies.classes):
            x, of_rows = z[rows], g[rows]
            total = of_rows.sum(-1, keepdim=True)
            positive += of_rows.relu().sum()
            seen += total.count_nonzero()
            chunk = _Chunk(copies, x, of_rows, total, a)
            grad_z = torch.zeros_like(x, dtype=scores.dtype)
            for j in range(copies.number):
                score, own, back = chunk.gradients_of(j)
                scores[j] += score
                if back is not None:
                    grad_z += back
                gradients.add(j, own.to(z.dtype), x, first=rows.start == 0)
                if gradients.bias is not None:
                    gradients.bias[j] += own.sum(0)
            if gradients.z is not None:
                gradients.z[rows] = grad_z.where(healthy[rows], 0)
        return gradients, reports.pack(scores, g.sum(), positive, seen)


class _Chunk:
    """Rows whose gradient ``g`` by the mixture's log-probabilities is given."""

    def __init__(self, copies: Copies, z: Tensor, g: Tensor, total: Tensor, a: Tensor) -> None:
        self.copies, self.z, self.g, self.total, self.a = copies, z, g, total, a
        self._log_m = torch.empty_like(g)
        self._left = _log_mixture_of(copies, z, a, self._log_m)
        self._g_over_m = None if self._left is not None else self._log_m.neg().exp_().mul_(g)
        self._room = torch.empty_like(g) if self._left is None else None

    def gradients_of(self, j: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return a copy's score, its own gradient by its logits, and its part of the gradient by ``z``."""
        if self._g_over_m is not None:
            score, own, back = self._plainly(j)
            if finite.all_finite((score.item(), 0.0 if back is None else back.sum().item())):
                return score, own, back
        return self._carefully(j)

    def _plainly(self, j: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the same where everything is finite, with a third of the passes over the numbers."""
        copies, g, a = self.copies, self.g, self.a[j].item()
        log_p = copies.log_probs(j, self.z, careful=False)
        score = torch.bmm(log_p[:, None], g[:, :, None]).sum()
        p, back = log_p.exp_(), None
        if a > 0:  # a_j p_jk (u_k - sum_i p_ji u_i) with u = g / m
            mixed = torch.ops.aten._softmax_backward_data.out(
                self._g_over_m, p, -1, p.dtype, grad_input=self._room
            )
            back = (mixed.to(self.z.dtype) @ copies.weight[j]).to(p.dtype).mul_(a)
        return score, torch.addcmul(g, p, self.total, value=-1, out=p), back

    def _carefully(self, j: int) -> tuple[Tensor, Tensor, Tensor]:
        copies, g, log_m = self.copies, self.g, self._log_m
        left = self._left if self._left is not None else torch.ones_like(log_m[:, :1])
        log_p = copies.log_probs(j, self.z, careful=True)
        alive = log_p[:, :1] > -torch.inf
        score = (log_p * g).masked_fill_(g == 0, 0).sum()
        share = self.a[j] / left.clamp(min=torch.finfo(log_m.dtype).tiny)
        mixed = (log_p - log_m).add_(share.log()).exp_().mul_(g)
        p = log_p.exp_()
        mixed.addcmul_(p, mixed.sum(-1, keepdim=True), value=-1)
        back = mixed.masked_fill_(~alive, 0).to(self.z.dtype) @ copies.finite_weight(j)
        return score, p.mul_(-self.total).add_(g).masked_fill_(~alive, 0), back
