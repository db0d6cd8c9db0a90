"""The gradient by a head's inputs in a compiled graph, some of whose copies or inputs may have failed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..finite import alive, usable, zero_nonfinite

__all__ = ["gradient_by_inputs"]

LARGE = 2**17
"""Weights or inputs from which on a look at the numbers takes less time than masks."""


def gradient_by_inputs(x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    """Return ``x @ weight``, with 0 for weights that are not finite, and 0 where ``z`` is not usable.

    Args:
        x: gradient by the outputs, 0 for failed copies.
        weight: the weights of all copies.
        z: the inputs.
    """
    if z.is_cpu and (weight.numel() >= LARGE or z.numel() >= LARGE):
        return _looked_at(x, weight, z)
    return torch.where(usable(z), torch.mm(x, zero_nonfinite(weight)), 0)


@torch.library.custom_op("alrao::gradient_by_inputs", mutates_args=())
def _looked_at(x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    # Inside a compiled graph on the CPU, where a read costs nothing. Every weight reaches every row of the
    # product, so one that is not finite leaves a column that is not. A norm is not finite if a number is not
    # usable, and may overflow besides.
    product = torch.mm(x, weight)
    if not alive(torch.linalg.vector_norm(product)):
        product = torch.mm(x, zero_nonfinite(weight))
    if not alive(torch.linalg.vector_norm(z)):
        product = torch.where(usable(z), product, 0)
    return product


@_looked_at.register_fake
def _(x: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1])
