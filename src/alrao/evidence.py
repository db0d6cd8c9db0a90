r"""The evidence: what a backward pass reports to the optimizer's step.

A loss that is a negative log-likelihood is :math:`L = \sum g \log m + \text{const}` with :math:`g \le 0`,
where :math:`m` are the mixture's probabilities of the observations. The evidence for copy :math:`j` is its
weighted mean log-likelihood :math:`\sum g \log p_j / \sum g`, whatever factor stands before the loss.

The sums leave backward as the gradient of a small leaf tensor, so that backward has no side effect and
several of them add up. This module is the only one that knows what its ``copies + 3`` numbers mean:

========================  ==================================================================
``[0:copies]``            :math:`\sum g \log p_j`, for each copy
``[copies]``              :math:`\sum g`
``[copies + 1]``          :math:`\sum \max(g, 0)`, 0 for a negative log-likelihood
``[copies + 2]``          the number of observations with :math:`g \ne 0`
========================  ==================================================================
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .finite import all_finite

CHOICES = ("mean", "sum")
"""What one batch counts for: the mean log-likelihood of its observations, or their sum."""

EXTRA = 3  # numbers behind the copies' own
ROUNDING = 1e-5  # the largest part of a loss's weight on log-probabilities that may be positive


def new_leaf(copies: int, like: Tensor, before: Tensor | None = None) -> Tensor:
    """Return a leaf on the device of ``like``, at least in float32, with the mark of the one ``before``."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    leaf = torch.zeros(copies + EXTRA, dtype=dtype, device=like.device, requires_grad=True)
    return leaf if before is None else marked_as(before, leaf)


def stay_on_device(leaf: Tensor) -> None:
    """Mark a leaf, so that no path that reads numbers on the host is taken, not even on the CPU."""
    leaf.stays_on_device = True  # type: ignore[attr-defined]


def marked_as(before: Tensor, leaf: Tensor) -> Tensor:
    """Return a leaf with the mark of another one."""
    if hasattr(before, "stays_on_device"):
        stay_on_device(leaf)
    return leaf


def is_readable(leaf: Tensor) -> bool:
    """Return whether a read of numbers costs nothing: elsewhere it stalls a device, or splits a graph."""
    return leaf.is_cpu and not torch.compiler.is_compiling() and not hasattr(leaf, "stays_on_device")


def detached(leaf: Tensor) -> Tensor:
    """Return a leaf without its place in the graph, with its mark."""
    return marked_as(leaf, leaf.detach())


def rows_of(leaf: Tensor, copies: int, rows: slice) -> Tensor:
    """Return the leaf as some of the copies fill it in, with its mark; the others report 0."""
    return marked_as(leaf, torch.cat([leaf[rows], leaf[copies:]]))


# What backward fills in.


def pack(scores: Tensor, weight: Tensor, positive: Tensor, rows: Tensor) -> Tensor:
    """Return the leaf's gradient from its parts: ``scores`` of the copies, then three scalars."""
    return torch.cat([scores, torch.stack([weight, positive, rows.to(scores.dtype)])])


def of_rows(scores: Tensor, g: Tensor, totals: Tensor) -> Tensor:
    """Return the leaf's gradient for a softmax over classes."""
    sums = torch.cat([scores, g, g.relu()], 1).sum((0, 2))
    rows = torch.linalg.vector_norm(totals, 0, (0, 1))  # count_nonzero, in the type and shape for cat
    return torch.cat([sums, rows])


def of_rows_on_host(scores: Tensor, g: Tensor, totals: Tensor) -> tuple[Tensor, bool]:
    """Return :func:`of_rows`, and whether it is finite: in fewer operations, with a read on the host."""
    shares = g / totals  # their sum over an observation is 1; where nothing was observed they are nan
    sums = torch.cat([scores, g, g.relu(), shares], 1).sum((0, 2))
    *numbers, rows = sums.tolist()
    if rows != g.shape[0]:
        sums = of_rows(scores, g, totals)
    return sums, all_finite(numbers)


def count_once(ctx: Any, evidence: Tensor, weights: Tensor) -> Tensor:
    """Return the leaf's gradient without observations that an earlier pass back through the graph counted."""
    if torch.compiler.is_compiling():
        return evidence
    before = getattr(ctx, "counted", None)
    ctx.counted = weights
    if before is not None:
        evidence[-1] -= ((before != 0) & (weights != 0)).sum()
        ctx.counted = (before != 0) | (weights != 0)
    return evidence


def no_likelihood(copies: int, amount: Tensor) -> Tensor:
    """Return the leaf's gradient for a loss that must not train: all of its weight is positive."""
    gradient = amount.new_zeros(copies + EXTRA)
    gradient[copies + 1] = amount
    return gradient


# What the optimizer reads.


class Evidence(NamedTuple):
    """The evidence since the last step: numbers and a list on the host, tensors on a device."""

    scores: Any
    weight: Any
    positive: Any
    rows: Any

    def refused(self, *, maximize: bool) -> Any:
        """Return whether the loss was no negative log-likelihood, or no log-likelihood to maximize."""
        # At most ROUNDING of both parts' sizes, which add up to 2 * positive - weight, may be wrong.
        tolerated = (ROUNDING - maximize) / (1 - 2 * ROUNDING)
        return self.positive > -tolerated * self.weight

    def log_likelihood(self, of: str) -> Any:
        """Return the mean or the sum of the observations' log-likelihoods, for each copy."""
        if isinstance(self.scores, Tensor):
            return self.scores * (self.rows / self.weight) if of == "sum" else self.scores / self.weight
        factor = (self.rows if of == "sum" else 1.0) / self.weight
        return [score * factor for score in self.scores]


def read(gradient: Tensor, copies: int, *, on_device: bool = False) -> Evidence:
    """Return the evidence that the leaf's gradient holds: on the host, or in tensors."""
    numbers: Any = gradient if on_device else gradient.tolist()
    return Evidence(numbers[:copies], *numbers[copies:])
