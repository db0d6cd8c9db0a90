"""Steps of hidden matrices: orthogonal ones, as in Muon, at every fifth step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..runtime.sharding import gathered, local, part_of, sharded_as
from ..trainable import LooseParameters

__all__ = ["PERIOD", "hidden_matrices", "orthogonal_steps"]

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)

PERIOD = 5
"""Steps from one move of a matrix to the next, which is as large as all of them: five products of matrices
are most of the cost, and with a momentum of 0.95 the direction hardly changes in between."""

MOMENTUM = 0.95

ITERATIONS = 5

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of Newton and Schulz's iteration, as Jordan chose them: they lift small singular values fast."""

SIZE = 0.2
"""Root mean square of a square matrix's step of rate 1, which is about that of Adam's."""


def hidden_matrices(net: nn.Module, of_head: set[Tensor]) -> set[Tensor]:
    """Return the weights of linear, convolutional, attention and recurrent layers, but for the output's.

    Those of embeddings, tied ones too, are tables of vectors; of parameters without their layers, those with
    eight times as many rows as columns. Without copies the last layer is taken for the output layer.
    """
    tables = {m.weight for m in net.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    found = []
    for m in net.modules():
        if isinstance(m, LAYERS) or type(m).__name__ == "Conv1D":  # of transformers
            found += [p for p in m.parameters(recurse=False) if p.ndim > 1]
        elif isinstance(m, LooseParameters):
            own = [p for p in m.parameters(recurse=False) if p.ndim > 1]
            tables |= {p for p in own if p.ndim == 2 and p.shape[0] > 8 * p.shape[1]}
            found += own
    if found and not of_head and found[-1] not in tables:
        found.pop()
    matrices = {p for p in found if p not in tables and p not in of_head}
    return {p for p in matrices if 1 < p.shape[0] < p.numel()}


def orthogonal_steps(g: list[Tensor], exp_avg: list[Tensor], whole: list[Any]) -> list[Tensor]:
    """Return about the nearest orthogonal matrices to the gradients with momentum, in a unit of Adam's steps.

    Args:
        g: gradients; kernels are matrices of output channels by the rest.
        exp_avg: their running averages.
        whole: the sharded parameter, for each of them that is this process's part of one.
    """
    found = list(torch._foreach_lerp(g, exp_avg, MOMENTUM))
    for i, p in enumerate(whole):
        if p is not None:
            found[i] = gathered(part_of(found[i], p.shape, p))
    shapes: dict[Any, list[int]] = {}
    for i, each in enumerate(found):
        shapes.setdefault((each.shape[0], each.numel() // each.shape[0], each.dtype, each.device), []).append(
            i
        )
    for (rows, columns, *_), at in shapes.items():
        batch = _orthogonal(torch.stack([found[i].flatten(1) for i in at]))
        batch *= SIZE * max(rows, columns) ** 0.5
        for i, each in zip(at, batch, strict=True):
            found[i] = each.view(found[i].shape)
    return [x if p is None else local(sharded_as(x, p)) for x, p in zip(found, whole, strict=True)]


def _orthogonal(x: Tensor) -> Tensor:
    """Return about the nearest orthogonal matrix to each of a batch."""
    if x.shape[1] > x.shape[2]:
        return _orthogonal(x.mT).mT
    a, b, c = COEFFICIENTS
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + torch.finfo(x.dtype).tiny)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
