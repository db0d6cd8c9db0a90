r"""Large outputs of a classifier: computed where they are read, rows in chunks, copies one by one.

:mod:`alrao.heads.softmax` has the mathematics. Its tensors of ``rows x copies x classes`` numbers are too
large for a vocabulary, so nothing here holds more than a few tensors of ``chunk x classes`` numbers.

For hard targets :math:`y` the gradient by the mixture's log-probabilities, :math:`g`, is zero but for
:math:`g_y = s`. The copy's own gradient by its logits is then :math:`s (\delta_{ky} - p_{jk})`, and the
mixture's is the same times one number per row and copy, the responsibility
:math:`r_j = a_j p_{jy} / m_y`. So one pass over the copies is enough: the products of
:math:`\delta - p_j` with the weights are scaled by :math:`r_j` once all copies are known.

The copies may be on several devices (:class:`alrao.heads.members.Exchange`): then a process works on its own
copies, and for hard targets exchanges ``rows x copies`` numbers and a gradient of the size of :math:`z`.
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
from ..tensors import LazyLogProbs, LogProbs
from ..watch import version_of
from .members import Exchange
from .softmax import refuse_second_derivative, wide, without_autocast

LARGE = 2**22  # how many numbers all copies' outputs have together from which on they are not held at once
CHUNK = 2**23  # the most numbers of one copy's output that are held at a time


def is_large(z: Tensor, weight: Tensor) -> bool:
    """Return whether the outputs for rows ``z`` are too large to be held for all copies at once."""
    copies, classes, inputs = weight.shape
    if z.numel() // inputs * copies * classes < LARGE:
        return False
    return not torch.compiler.is_compiling()


class Vocabulary:
    """This process's copies with the weights that they have now, for LazyLogProbs; ``a`` is that of all."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor,
        mixing: slice | None, exchange: Exchange,
    ) -> None:  # fmt: skip
        self.weight, self.bias, self.a, self.evidence, self.mixing = weight, bias, a, evidence, mixing
        self.exchange = exchange
        self.reads = reports.is_readable(evidence)
        self._versions: list[tuple[int, int]] | None = None

    def log_probs(self, z: Tensor) -> LogProbs:
        """Return the mixture's log-probabilities for rows ``z`` in the type of the matrix products."""
        trained = any(x is not None and x.requires_grad for x in (z, self.weight, self.bias))
        if not torch.is_grad_enabled() or not trained or self.weight.is_inference() or z.is_inference():
            return LogProbs.of(self.values(z), 1)
        self._versions = self._present()
        return self.output(z, 1)

    def _present(self) -> list[tuple[int, int]]:
        return [(version_of(x), x.data_ptr()) for x in (self.weight, self.bias) if x is not None]

    def _check(self) -> None:
        if self._versions is not None and self._present() != self._versions:
            raise RuntimeError(
                "the weights of the head have changed since this output was returned, and a large output is "
                "computed only when it is read: read it before the optimizer's step, take detach() of it, or "
                "call the model under torch.no_grad()"
            )

    def output(self, z: Tensor, axis: int) -> LogProbs:
        """Return the output for inputs whose features are on ``axis``."""
        self._check()
        lazy: LazyLogProbs = _Mixture.apply(z, self.weight, self.bias, self.evidence, self, axis)
        return lazy.attach(z, axis, self)

    def values(self, rows: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Return the log-probabilities of rows of inputs, without a graph; the rows are in a ``shape``."""
        self._check()
        with torch.no_grad(), without_autocast(rows):
            copies = _Copies(self, finite.zero_unusable(rows))
            shape = [len(rows)] if shape is None else shape
            out = torch.empty(*shape, copies.classes, dtype=wide(rows.dtype), device=rows.device)
            by_row = out.view(len(rows), copies.classes)
            for chunk in copies.chunks():
                copies.log_mixture(chunk, by_row[chunk])
            return out

    def nll(self, rows: Tensor, target: Tensor, share: Tensor, divisor: Tensor | None) -> Tensor:
        """Return the loss of each row for a hard target times its ``share``, or their sum by a divisor."""
        self._check()
        return _HardNLL.apply(rows, self.weight, self.bias, self.evidence, target, share, divisor, self)


class _Copies:
    """The copies' weights in the type of the products, their inputs, and room for the output of one copy."""

    def __init__(self, layer: Vocabulary, z: Tensor) -> None:
        self.z, self.reads, self.exchange = z, layer.reads, layer.exchange
        self.weight = layer.weight.to(z.dtype)
        self.bias = None if layer.bias is None else layer.bias.to(z.dtype)
        self.number, self.classes, _ = layer.weight.shape
        self.all_a, self.a = layer.a, layer.a[layer.exchange.own]
        self._room = torch.empty(0, dtype=wide(z.dtype), device=z.device)

    def chunks(self) -> Iterator[slice]:
        """Return slices of the rows of about equal length, so that one has at most ``CHUNK`` numbers."""
        rows = len(self.z)
        number = -(-rows // max(1, CHUNK // max(1, self.classes)))
        for i in range(number):
            yield slice(rows * i // number, rows * (i + 1) // number)

    def log_probs(self, j: int, rows: slice, *, careful: bool) -> Tensor:
        """Return a copy's log-probabilities; with care, ``-inf`` in each row in which one is not finite."""
        z, weight, bias = self.z[rows], self.weight[j], None if self.bias is None else self.bias[j]
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

    def log_mixture(self, rows: slice, out: Tensor) -> Tensor | None:
        """Fill in a chunk's log-probabilities; return the weight of copies left in each row, None: all."""
        if self.reads:
            out.zero_()
            for j in range(self.number):
                out.addcmul_(self.log_probs(j, rows, careful=False).exp_(), self.a[j])
            self.exchange.add(out)
            if out.numel() == 0 or out.amin().item() > finite.TINY:
                out.log_()
                return None
        out.fill_(-torch.inf)
        left = torch.zeros_like(out[:, :1])
        for j in range(self.number):
            log_p = self.log_probs(j, rows, careful=True)
            left += self.a[j] * (log_p[:, :1] > -torch.inf)
            torch.logaddexp(out, log_p.add_(self.a[j].log()), out=out)
        left = self.exchange.add(left)
        self.exchange.add_exponentials(out)
        out.sub_(left.log()).clamp_(min=-finite.HUGE)
        out.masked_fill_(left <= 0, -log(self.classes))
        return left


class _Gradients:
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


# Hard targets.


class _HardNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, evidence: Tensor,
        target: Tensor, share: Tensor, divisor: Tensor | None, layer: Vocabulary,
    ) -> Tensor:  # fmt: skip
        with without_autocast(z):
            scale = -share if divisor is None else torch.where(divisor == 0, 0, -share / divisor)
            # Half precision needs the factor of a gradient scaler before the products, not after them.
            early = divisor is not None and z.dtype is not torch.float16 and any(ctx.needs_input_grad)
            gradients = _Gradients(z, weight, bias, ctx.needs_input_grad) if early else None
            log_p, log_m = _hard_pass(layer, z, target, scale, gradients)
            ctx.layer, ctx.early = layer, None if gradients is None else (gradients, log_p)
            ctx.save_for_backward(z, weight, bias, target, scale)
            losses = share * -log_m
            return losses if divisor is None else losses.sum() / divisor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight, bias, target, scale = ctx.saved_tensors
        with without_autocast(z):
            scale = scale * g
            if ctx.early is None:
                gradients = _Gradients(z, weight, bias, ctx.needs_input_grad)
                log_p, _ = _hard_pass(ctx.layer, z, target, scale, gradients)
            else:
                (gradients, log_p), ctx.early = ctx.early, None  # the caller takes these tensors for its own
                gradients.scale_(g, reads=ctx.layer.reads)
            scores = (log_p * scale[:, None]).masked_fill(scale[:, None] == 0, 0).sum(0)
            evidence = reports.pack(scores, scale.sum(), scale.relu().sum(), scale.count_nonzero())
            evidence = reports.count_once(ctx, evidence, scale)
            return (*gradients.of(weight, bias), evidence, None, None, None, None)


def _hard_pass(
    layer: Vocabulary, z: Tensor, target: Tensor, scale: Tensor, gradients: _Gradients | None
) -> tuple[Tensor, Tensor]:
    """Return the target's log-probabilities under each copy and under the mixture; fill in the gradients."""
    healthy = finite.usable(z)
    z = torch.where(healthy, z, 0)
    copies, exchange = _Copies(layer, z), layer.exchange
    log_p = torch.empty(len(z), len(layer.a), dtype=wide(z.dtype), device=z.device)
    log_m = torch.empty_like(log_p[:, 0])
    low = z.dtype is not log_p.dtype
    mixed_copies = range(copies.number)[layer.mixing or slice(None)]
    suspects = [not copies.reads] * copies.number
    for rows in copies.chunks():
        x, y, s = z[rows], target[rows, None], scale[rows, None]
        scaled = x if low else x * s
        of_own = log_p.new_empty(len(x), copies.number)
        back = log_p.new_empty(len(mixed_copies), *x.shape)
        for j in range(copies.number):
            while True:
                careful = suspects[j]
                log_probs = copies.log_probs(j, rows, careful=careful)
                of_target = log_probs.gather(1, y)
                of_own[:, j] = of_target[:, 0]
                check = of_target
                if gradients is not None:
                    own = log_probs.exp_().scatter_add_(1, y, -(of_target > -torch.inf).to(log_p.dtype))
                    if low:
                        own.mul_(s)
                    own = own.to(z.dtype)
                    if j in mixed_copies:
                        w = copies.weight[j]
                        check = own @ (finite.zero_nonfinite(w) if careful else w)
                        back[j - mixed_copies.start] = check
                if careful or finite.all_finite((check.sum().item(), of_target.sum().item())):
                    break
                suspects[j] = True
            if gradients is not None:
                gradients.add(j, own, scaled, first=rows.start == 0, sign=-1)
                if gradients.bias is not None:
                    gradients.bias[j] -= own.sum(0) if low else s[:, 0] @ own
        log_p[rows] = exchange.gather(of_own)
        shares = finite.share_among(log_p[rows] > -torch.inf, copies.all_a.view(1, -1), 1)
        joint = log_p[rows] + shares.log()
        mixed = joint.logsumexp(1).clamp(min=-finite.HUGE)
        log_m[rows] = torch.where(shares.sum(1) > 0, mixed, -log(copies.classes))
        if gradients is not None and gradients.z is not None:
            responsibilities = (joint - log_m[rows, None]).exp()[:, layer.mixing or exchange.own]
            responsibilities *= -1 if low else -s
            of_rows = exchange.add(torch.einsum("rc,crd->rd", responsibilities, back))
            gradients.z[rows] = of_rows.where(healthy[rows], 0)
    return log_p, log_m


# Any gradient by the mixture's log-probabilities.


class _Mixture(torch.autograd.Function):
    """The whole output, without its numbers, for any loss that is linear in it."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, evidence: Tensor,
        layer: Vocabulary, axis: int,
    ) -> Tensor:  # fmt: skip
        ctx.layer, ctx.axis = layer, axis
        ctx.save_for_backward(z, weight, bias)
        return LazyLogProbs.empty(z, axis, weight.shape[1], wide(z.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight, bias = ctx.saved_tensors
        moved = z.movedim(ctx.axis, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        of_rows = g.movedim(ctx.axis, -1).reshape(len(rows), -1)
        with without_autocast(z):
            gradients = _Gradients(rows, weight, bias, ctx.needs_input_grad)
            evidence = _backward_pass(ctx.layer, rows, of_rows, gradients)
        evidence = reports.count_once(ctx, evidence, of_rows.sum(-1))
        grad_z, grad_weight, grad_bias = gradients.of(weight, bias)
        if grad_z is not None:
            grad_z = grad_z.view(moved.shape).movedim(-1, ctx.axis)
        return grad_z, grad_weight, grad_bias, evidence, None, None


def _backward_pass(layer: Vocabulary, z: Tensor, g: Tensor, gradients: _Gradients) -> Tensor:
    """Fill in the gradients for any gradient ``g`` by the log-probabilities; return the evidence."""
    healthy = finite.usable(z)
    z = torch.where(healthy, z, 0)
    copies = _Copies(layer, z)
    scores = torch.zeros(copies.number, dtype=wide(z.dtype), device=z.device)
    positive, seen = scores.new_zeros(()), scores.new_zeros(())
    for rows in copies.chunks():
        x, chunk = z[rows], _Chunk(copies, rows, g[rows])
        positive += chunk.g.relu().sum()
        seen += chunk.total.count_nonzero()
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
            gradients.z[rows] = layer.exchange.add(grad_z).where(healthy[rows], 0)
    return reports.pack(layer.exchange.gather(scores), g.sum(), positive, seen)


class _Chunk:
    """Rows whose gradient ``g`` by the mixture's log-probabilities is given."""

    def __init__(self, copies: _Copies, rows: slice, g: Tensor) -> None:
        self.copies, self.rows, self.g, self.total = copies, rows, g, g.sum(-1, keepdim=True)
        self._log_m = torch.empty_like(g, memory_format=torch.contiguous_format)
        self._left = copies.log_mixture(rows, self._log_m)
        if self._left is None:
            self._g_over_m, self._room = self._log_m.neg().exp_().mul_(g), torch.empty_like(g)

    def gradients_of(self, j: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return a copy's score, its own gradient by its logits, and its part of the gradient by ``z``."""
        if self._left is None:
            score, own, back = self._plainly(j)
            if finite.all_finite((score.item(), 0.0 if back is None else back.sum().item())):
                return score, own, back
        return self._carefully(j)

    def _plainly(self, j: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the same where everything is finite, with a third of the passes over the numbers."""
        copies, g, a = self.copies, self.g, self.copies.a[j].item()
        log_p = copies.log_probs(j, self.rows, careful=False)
        score = torch.bmm(log_p[:, None], g[:, :, None]).sum()
        p, back = log_p.exp_(), None
        if a > 0:  # a_j p_jk (u_k - sum_i p_ji u_i) with u = g / m
            mixed = torch.ops.aten._softmax_backward_data.out(
                self._g_over_m, p, -1, p.dtype, grad_input=self._room
            )
            back = (mixed.to(copies.weight.dtype) @ copies.weight[j]).to(p.dtype).mul_(a)
        return score, torch.addcmul(g, p, self.total, value=-1, out=p), back

    def _carefully(self, j: int) -> tuple[Tensor, Tensor, Tensor]:
        copies, g, log_m = self.copies, self.g, self._log_m
        left = self._left if self._left is not None else torch.ones_like(log_m[:, :1])
        log_p = copies.log_probs(j, self.rows, careful=True)
        alive = log_p[:, :1] > -torch.inf
        score = (log_p * g).masked_fill_(g == 0, 0).sum()
        share = copies.a[j] / left.clamp(min=torch.finfo(log_m.dtype).tiny)
        mixed = (log_p - log_m).add_(share.log()).exp_().mul_(g)
        p = log_p.exp_()
        mixed.addcmul_(p, mixed.sum(-1, keepdim=True), value=-1)
        back = mixed.masked_fill_(~alive, 0).to(copies.weight.dtype) @ finite.zero_nonfinite(copies.weight[j])
        return score, p.mul_(-self.total).add_(g).masked_fill_(~alive, 0), back
