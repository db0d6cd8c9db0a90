"""The product of a matrix with the weights of all copies, some of which may have failed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..finite import alive, zero_nonfinite

__all__ = ["mm_finite"]

LARGE = 2**17
"""Weights from which on a look at the product takes less time than a masked copy of them."""


def mm_finite(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x @ weight`` with 0 for weights that are not finite; ``x`` is 0 for failed copies."""
    if torch.compiler.is_compiling() and weight.is_cpu and weight.numel() >= LARGE:
        return _looked_at(x, weight)
    return torch.mm(x, zero_nonfinite(weight))


@torch.library.custom_op("alrao::mm_finite", mutates_args=())
def _looked_at(x: Tensor, weight: Tensor) -> Tensor:
    # Inside a compiled graph on the CPU, where a read costs nothing. Every weight reaches every row of the
    # product, so one that is not finite leaves a column that is not.
    product = torch.mm(x, weight)
    if not alive(product).all():
        product = torch.mm(x, zero_nonfinite(weight))
    return product


@_looked_at.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1])
