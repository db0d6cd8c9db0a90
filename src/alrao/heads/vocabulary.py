r"""Large outputs of a classifier: computed where they are read, rows in chunks.

:mod:`alrao.heads.softmax` has the mathematics. Its tensors of ``rows x copies x classes`` numbers are too
large for a vocabulary, so nothing here holds more than a few tensors of ``CHUNK`` numbers: the outputs of all
copies for a few rows, which that module computes, or of one copy for more rows.

The second is for hard targets. For those, :math:`y`, the gradient by the mixture's log-probabilities,
:math:`g`, is zero but for :math:`g_y = s`. The copy's own gradient by its logits is then
:math:`s (\delta_{ky} - p_{jk})`, and the mixture's is the same times one number per row and copy, the
responsibility :math:`r_j = a_j p_{jy} / m_y`. So one pass over the copies is enough: the products of
:math:`\delta - p_j` with the weights are scaled by :math:`r_j` once all copies are known.

The copies may be on several devices (:class:`alrao.heads.members.Exchange`): then a process works on its own
copies, and for hard targets exchanges ``rows x copies`` numbers and a gradient of the size of :math:`z`; else
the outputs of its copies.
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
from ..tensors import LazyLogProbs, LogProbs, Members
from ..watch import version_of
from .after_output import mixture_of_softmaxes
from .members import Exchange
from .softmax import cast, categorical_mixture, refuse_second_derivative, wide, without_autocast

LARGE = 2**22  # how many numbers all copies' outputs have together from which on they are not held at once
CHUNK = 2**23  # the most numbers of outputs that a tensor holds, but for a row of all copies


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
        self.exchange, self.reads = exchange, reports.is_readable(evidence)
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
        copies, classes = len(self.a), self.weight.shape[1]
        with torch.no_grad(), without_autocast(rows):
            given = cast(rows, self.weight, self.bias)
            shape = [len(rows)] if shape is None else shape
            out = torch.empty(*shape, classes, dtype=wide(rows.dtype), device=rows.device)
            for chunk in chunks(len(rows), copies * classes):
                out.view(len(rows), classes)[chunk] = self.mixture(rows[chunk], *given, self.evidence)
        return out

    def mixture(self, z: Tensor, weight: Tensor, bias: Tensor | None, evidence: Tensor) -> Tensor:
        """Return the log-probabilities of a chunk of rows, from the outputs of all copies at once."""
        if self.exchange.alone:
            return categorical_mixture(z, weight, bias, self.a, evidence, self.mixing)
        own, mixed = self.exchange.linear(z, weight, bias)
        return mixture_of_softmaxes(Members(own, mixed, self.a[:, 0], evidence, "categorical"), 1)

    def nll(self, rows: Tensor, target: Tensor, share: Tensor, divisor: Tensor | None) -> Tensor:
        """Return the loss of each row for a hard target times its ``share``, or their sum by a divisor."""
        self._check()
        return _HardNLL.apply(rows, self.weight, self.bias, self.evidence, target, share, divisor, self)


def chunks(rows: int, numbers: int) -> Iterator[slice]:
    """Return slices of rows of about equal length, of at most ``CHUNK`` numbers; a row has ``numbers``."""
    number = -(-rows // max(1, CHUNK // max(1, numbers)))
    for i in range(number):
        yield slice(rows * i // number, rows * (i + 1) // number)


def _zeros(given: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
    """Return a sum for the gradient of each of the tensors that need one."""
    pairs = zip(given, needed, strict=False)
    return [torch.zeros_like(x, dtype=wide(x.dtype)) if need else None for x, need in pairs]


def _gradients(sums: list[Any], given: Sequence[Any]) -> list[Any]:
    """Return the sums in the types of the tensors whose gradients they are."""
    return [x if x is None else x.to(like.dtype) for x, like in zip(sums, given, strict=True)]


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
            sums = _zeros((z, weight, bias), ctx.needs_input_grad) if early else None
            log_p, log_m = _hard_pass(layer, z, target, scale, sums)
            ctx.layer, ctx.early = layer, None if sums is None else (sums, log_p)
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
                sums = _zeros((z, weight, bias), ctx.needs_input_grad)
                log_p, _ = _hard_pass(ctx.layer, z, target, scale, sums)
            else:
                (sums, log_p), ctx.early = ctx.early, None  # the caller takes these tensors for its own
                if not ctx.layer.reads or g.item() != 1:
                    sums = [x if x is None else x.mul_(g) for x in sums]
            scores = (log_p * scale[:, None]).masked_fill(scale[:, None] == 0, 0).sum(0)
            evidence = reports.pack(scores, scale.sum(), scale.relu().sum(), scale.count_nonzero())
            evidence = reports.count_once(ctx, evidence, scale)
            return (*_gradients(sums, (z, weight, bias)), evidence, None, None, None, None)


def _hard_pass(
    layer: Vocabulary, z: Tensor, target: Tensor, scale: Tensor, sums: list[Any] | None
) -> tuple[Tensor, Tensor]:
    """Return the target's log-probabilities under each copy and under the mixture; add up the gradients."""
    healthy = finite.usable(z)
    z = torch.where(healthy, z, 0)
    weight, bias = cast(z, layer.weight, layer.bias)
    exchange, (number, classes, _) = layer.exchange, weight.shape
    log_p = torch.empty(len(z), len(layer.a), dtype=wide(z.dtype), device=z.device)
    log_m = torch.empty_like(log_p[:, 0])
    room = log_p.new_empty(0)  # for the outputs of one copy
    low = z.dtype is not log_p.dtype
    mixed_copies = range(number)[layer.mixing or slice(None)]
    suspects = [not layer.reads] * number
    of_z, of_weight, of_bias = sums or (None, None, None)
    for rows in chunks(len(z), classes):
        x, y, s = z[rows], target[rows, None], scale[rows, None]
        scaled = x if low else x * s
        of_own = log_p.new_empty(len(x), number)
        back = log_p.new_empty(len(mixed_copies), *x.shape)
        for j in range(number):
            w, its_bias = weight[j], None if bias is None else bias[j]
            while True:
                careful = suspects[j]
                if low:
                    log_probs = F.linear(x, w, its_bias).log_softmax(-1, dtype=log_p.dtype)
                else:
                    room.resize_(len(x), classes)
                    torch.mm(x, w.t(), out=room) if its_bias is None else torch.addmm(
                        its_bias, x, w.t(), out=room
                    )
                    log_probs = torch.log_softmax(room, -1, out=room)
                if careful:  # -inf in each row in which an output is not finite
                    log_probs = finite.fail(log_probs, finite.alive_rows(log_probs))
                check = of_target = log_probs.gather(1, y)
                of_own[:, j] = of_target[:, 0]
                if sums is not None:
                    own = log_probs.exp_().scatter_add_(1, y, -(of_target > -torch.inf).to(log_p.dtype))
                    if low:
                        own.mul_(s)
                    own = own.to(z.dtype)
                    if j in mixed_copies:
                        check = own @ (finite.zero_nonfinite(w) if careful else w)
                        back[j - mixed_copies.start] = check
                if careful or finite.all_finite((check.sum().item(), of_target.sum().item())):
                    break
                suspects[j] = True
            if of_weight is not None:
                if low:
                    of_weight[j] -= own.t() @ scaled
                else:
                    torch.addmm(of_weight[j], own.t(), scaled, alpha=-1, out=of_weight[j])
            if of_bias is not None:
                of_bias[j] -= own.sum(0) if low else s[:, 0] @ own
        log_p[rows] = exchange.gather(of_own)
        shares = finite.share_among(log_p[rows] > -torch.inf, layer.a.view(1, -1), 1)
        joint = log_p[rows] + shares.log()
        mixed = joint.logsumexp(1).clamp(min=-finite.HUGE)
        log_m[rows] = torch.where(shares.sum(1) > 0, mixed, -log(classes))
        if of_z is not None:
            responsibilities = (joint - log_m[rows, None]).exp()[:, layer.mixing or exchange.own]
            responsibilities *= -1 if low else -s
            of_rows = exchange.add(torch.einsum("rc,crd->rd", responsibilities, back))
            of_z[rows] = of_rows.where(healthy[rows], 0)
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
        ctx.save_for_backward(z, weight, bias, evidence)
        return LazyLogProbs.empty(z, axis, weight.shape[1], wide(z.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, *saved = ctx.saved_tensors
        moved = z.movedim(ctx.axis, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        of_rows = g.movedim(ctx.axis, -1).reshape(len(rows), -1)
        with without_autocast(z):
            given = [*cast(rows, *saved[:2]), saved[2]]
            sums = _zeros((rows, *given), ctx.needs_input_grad)
            needed = [i for i, total in enumerate(sums) if total is not None]
            for chunk in chunks(len(rows), len(ctx.layer.a) * of_rows.shape[1]):
                leaves: list[Any] = [x if x is None else reports.detached(x) for x in (rows[chunk], *given)]
                inputs = [leaves[i].requires_grad_() for i in needed]
                with torch.enable_grad():
                    found = torch.autograd.grad(ctx.layer.mixture(*leaves), inputs, of_rows[chunk])
                for i, part in zip(needed, found, strict=True):
                    (sums[i] if i else sums[0][chunk]).add_(part)
        grad_z, grad_weight, grad_bias, evidence = _gradients(sums, (rows, *saved))
        if grad_z is not None:
            grad_z = grad_z.view(moved.shape).movedim(-1, ctx.axis)
        if evidence is not None:
            evidence = reports.count_once(ctx, evidence, of_rows.sum(-1))
        return grad_z, grad_weight, grad_bias, evidence, None, None
