"""Steps of hidden matrices: orthogonal ones, as in Muon, at every fifth step, each shape at its turn."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ..finite import MAX_NORM
from ..runtime.sharding import gathered, local, part_of, sharded_as
from ..trainable import LooseParameters

__all__ = ["MOMENTUM", "PERIOD", "matrices_of", "orthogonal_steps"]

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)

PERIOD = 5
"""Steps from one move of a matrix to the next, which is as large as all of them: five products of matrices
are most of the cost, and with a momentum of 0.95 the direction hardly changes in between."""

MOMENTUM = 0.95

COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5
"""Of Newton and Schulz's iterations, as Jordan chose them: they lift small singular values fast."""

NARROW = 128
"""Smaller side from which products in bfloat16 save time where there are units for them."""

SIZE = 0.2
"""Root mean square of a square matrix's step of rate 1, which is about that of Adam's."""


def matrices_of(net: nn.Module, of_head: set[Tensor]) -> tuple[dict[Tensor, int], set[Tensor]]:
    """Return the hidden matrices of a network, and the others: of its output layer and of unknown layers.

    Hidden ones are the weights of linear, convolutional, attention and recurrent layers. Those of embeddings,
    tied ones too, are tables of vectors; of parameters without their layers, those with eight times as many
    rows as columns. Without copies the last layer is taken for the output layer.

    Returns:
        The turn of each hidden matrix in the period, that of its shape: moves of shapes are spread over it.
        The other matrices.
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
    matrices = [p for p in found if p not in tables and p not in of_head and 1 < p.shape[0] < p.numel()]
    shapes = sorted({_sides(p) for p in matrices})
    hidden: dict[Tensor, int] = {p: shapes.index(_sides(p)) % PERIOD for p in matrices}
    others: set[Tensor] = {
        p for p in net.parameters() if p.ndim > (2 if p in of_head else 1) and p.numel() > max(p.shape)
    }
    return hidden, others - tables - hidden.keys()


def orthogonal_steps(g: list[Tensor], exp_avg: list[Tensor], whole: list[Any], length: int) -> list[Tensor]:
    """Return about the nearest orthogonal matrices to the gradients with momentum, in a unit of Adam's steps.

    Args:
        g: gradients; kernels are matrices of output channels by the rest.
        exp_avg: their running averages.
        whole: the sharded parameter, for each of them that is this process's part of one.
        length: factor on all of them.
    """
    found = list(torch._foreach_lerp(g, exp_avg, MOMENTUM))
    for i, p in enumerate(whole):
        if p is not None:
            found[i] = gathered(part_of(found[i], p.shape, p))
    batches: dict[Any, list[int]] = {}
    for i, each in enumerate(found):
        batches.setdefault((_sides(each)[0], each.dtype, each.device), []).append(i)
    for at in batches.values():
        for i, x in zip(at, _orthogonal([found[i] for i in at], length), strict=True):
            found[i] = x
    return [x if p is None else local(sharded_as(x, p)) for x, p in zip(found, whole, strict=True)]


def _sides(p: Tensor) -> tuple[int, int]:
    """Return the sides of a parameter as a matrix, the smaller one first."""
    rows, columns = p.shape[0], p.numel() // p.shape[0]
    return min(rows, columns), max(rows, columns)


def _product_dtype(side: int, x: Tensor) -> torch.dtype:
    """Return the type of the products, bfloat16 where that is fast, as in Muon."""
    fast = side >= NARROW and x.dtype == torch.float32 and _has_bfloat16_units(x.device.type)
    return torch.bfloat16 if fast else x.dtype


@lru_cache
def _has_bfloat16_units(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return False
    has = torch.cpu.get_capabilities()
    return any(has.get(unit, False) for unit in ("amx_bf16", "avx512_bf16"))


def _orthogonal(matrices: list[Tensor], length: int) -> list[Tensor]:
    """Return the steps of matrices with the same smaller side, which are iterated together.

    Columns of zeros, by which short ones are made as long as the others, stay zeros.
    """
    flat = [x.flatten(1) for x in matrices]
    lying = [x if x.shape[0] <= x.shape[1] else x.mT for x in flat]
    side, longest = lying[0].shape[0], max(x.shape[1] for x in lying)
    short = [i for i, x in enumerate(lying) if x.shape[1] < longest]
    blank = lying[0].new_zeros(side, longest) if short else lying[0]
    pieces = [[x, blank[:, x.shape[1] :]] if x.shape[1] < longest else [x] for x in lying]
    joined = lying[0] if len(lying) == 1 else torch.cat([piece for each in pieces for piece in each], 1)
    x = joined.view(side, -1, longest).transpose(0, 1) if len(lying) > 1 else joined[None]
    # Smaller gradients count less: squares of their entries may underflow, and with them the norm.
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1 / MAX_NORM)
    x = x.to(_product_dtype(side, x))
    size = length * SIZE * longest**0.5
    for i, (a, b, c) in enumerate(COEFFICIENTS, 1):
        gram = torch.bmm(x, x.mT)
        by = 1.0 if i < len(COEFFICIENTS) else size
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a * by, alpha=by)
    x = x.to(matrices[0].dtype)
    found = [
        (each[:, : y.shape[1]] if y.shape == z.shape else each[:, : y.shape[1]].mT).view(before.shape)
        for each, y, z, before in zip(x, lying, flat, matrices, strict=True)
    ]
    if short:
        shares = [(lying[i].shape[1] / longest) ** 0.5 for i in short]
        torch._foreach_mul_([found[i] for i in short], shares)
    strange = [i for i, each in enumerate(found) if each.stride() != matrices[i].stride()]
    if strange:  # foreach is one launch only for tensors that are laid out alike
        torch._foreach_copy_([matrices[i] for i in strange], [found[i] for i in strange])
    return [matrices[i] if i in strange else each for i, each in enumerate(found)]
