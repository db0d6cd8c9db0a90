"""Large outputs of a classifier: computed where they are read, in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import evidence as reports
from ..tensors import LazyLogProbs, LogProbs
from ..watch import version_of
from .chunked import backward_of_mixture, hard_nll, log_mixture
from .softmax import categorical_mixture, refuse_second_derivative, wide, without_autocast

__all__ = ["LARGE", "is_large", "large_mixture"]

LARGE = 2**22
"""How many numbers all copies' outputs have together from which on they are not held at once."""


def is_large(z: Tensor, weight: Tensor) -> bool:
    """Return whether the outputs for rows ``z`` are too large to be held for all copies at once."""
    copies, classes, inputs = weight.shape
    if z.numel() // inputs * copies * classes < LARGE:
        return False
    return not torch.compiler.is_compiling()


def large_mixture(
    z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor, mixing: slice | None = None,
    *, at_once: bool = False,
) -> LogProbs:  # fmt: skip
    """Return the mixture's log-probabilities for rows ``z``, as in :func:`categorical_mixture`.

    They are computed at once where nothing is to be differentiated, and where they are read otherwise. ``z``
    has the type of the matrix products.

    Args:
        z: inputs of the output layer.
        weight: stacked weights.
        bias: stacked biases, or None.
        a: weights of the copies in the mixture.
        evidence: leaf whose gradient receives the evidence.
        mixing: the copies whose weight is not 0, to save work for the others; None: all.
        at_once: compute them now in any case: the weights are shards, which are gathered only for a while.
    """
    trained = any(x is not None and x.requires_grad for x in (z, weight, bias))
    if not torch.is_grad_enabled() or not trained or weight.is_inference() or z.is_inference():
        return LogProbs.of(log_mixture(z, weight, bias, a, reads=reports.is_readable(evidence)), 1)
    out = _Layer(weight, bias, a, evidence, mixing).output(z, 1)
    return out.computed() if at_once and isinstance(out, LazyLogProbs) else out


class _Layer:
    """The copies with the weights that they have now; see :class:`alrao.tensors.lazy.Source`."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor, mixing: slice | None
    ) -> None:
        self.weight, self.bias, self.a, self.evidence, self.mixing = weight, bias, a, evidence, mixing
        self.reads = reports.is_readable(evidence)
        self._versions = self._present()

    def _present(self) -> list[tuple[int, int]]:
        tensors = [self.weight] if self.bias is None else [self.weight, self.bias]
        return [(version_of(tensor), tensor.data_ptr()) for tensor in tensors]

    def _check(self) -> None:
        if self._present() != self._versions:
            raise RuntimeError(
                "the weights of the head have changed since this output was returned, and a large output is "
                "computed only when it is read: read it before the optimizer's step, take detach() of it, or "
                "call the model under torch.no_grad()"
            )

    def output(self, z: Tensor, axis: int) -> LogProbs:
        self._check()
        if is_large(z, self.weight):
            lazy: LazyLogProbs = _Mixture.apply(
                z, self.weight, self.bias, self.a, self.evidence, axis, self.reads
            )
            return lazy.attach(z, axis, self)
        rows = z.movedim(axis, -1)
        weight = self.weight.to(z.dtype)
        bias = None if self.bias is None else self.bias.to(z.dtype)
        with without_autocast(z):
            z = rows.reshape(-1, z.shape[axis])
            out = categorical_mixture(z, weight, bias, self.a, self.evidence, self.mixing)
        return out.view(*rows.shape[:-1], -1).movedim(-1, axis)  # type: ignore[return-value]

    def values(self, rows: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        self._check()
        return log_mixture(rows, self.weight, self.bias, self.a, shape, reads=self.reads)

    def nll(self, rows: Tensor, target: Tensor, share: Tensor, divisor: Tensor | None) -> Tensor:
        self._check()
        a, leaf, mixing = self.a, self.evidence, self.mixing
        return hard_nll(
            rows, self.weight, self.bias, a, leaf, target, share, divisor, mixing, reads=self.reads
        )


class _Mixture(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, evidence: Tensor,
        axis: int, reads: bool,
    ) -> Tensor:  # fmt: skip
        ctx.axis, ctx.reads = axis, reads
        ctx.save_for_backward(z, weight, bias, a)
        return LazyLogProbs.empty(z, axis, weight.shape[1], wide(z.dtype))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight, bias, a = ctx.saved_tensors
        moved = z.movedim(ctx.axis, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        of_rows = g.movedim(ctx.axis, -1).reshape(len(rows), -1)
        gradients, evidence = backward_of_mixture(
            of_rows, rows, weight, bias, a, ctx.needs_input_grad, reads=ctx.reads
        )
        evidence = reports.count_once(ctx, evidence, of_rows.sum(-1))
        grad_z, grad_weight, grad_bias = gradients.of(weight, bias)
        if grad_z is not None:
            grad_z = grad_z.view(moved.shape).movedim(-1, ctx.axis)
        return grad_z, grad_weight, grad_bias, None, evidence, None, None
