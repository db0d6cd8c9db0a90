"""Gradient clipping, for the body as a whole and for each copy separately."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from .finite import alive, zero_nonfinite_
from .runtime.sharding import is_shard, local, over_shards, places_along


@torch.no_grad()
def clip_grads_(
    body: Sequence[Tensor], of_copies: Sequence[Tensor], max_norm: float, norm_type: float, *, reads: bool
) -> Tensor:
    """Clip the gradients of the body together, and those of each copy together; return the body's norm."""
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm!r}")
    body, of_copies = ([p for p in params if p.grad is not None] for params in (body, of_copies))
    grads: list[Tensor] = [local(p.grad) for p in body]
    norm = _total_norm(body, grads, norm_type) if reads else None
    if norm is None or not bool(alive(norm)):
        for grad in grads:
            zero_nonfinite_(grad)
        norm = _total_norm(body, grads, norm_type)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.device))

    if of_copies:
        norms = [_norms_of_copies(p, zero_nonfinite_(local(p.grad)), norm_type) for p in of_copies]
        of_all = torch.linalg.vector_norm(torch.stack(norms), norm_type, 0)
        factors = (max_norm / (of_all + 1e-6)).clamp(max=1.0)
        for p in of_copies:
            grad = local(p.grad)
            here = factors[places_along(0, p)] if is_shard(p) else factors
            grad.mul_(here.to(grad.dtype).view([-1] + [1] * (grad.ndim - 1)))
    return norm


def _total_norm(params: Sequence[Tensor], grads: list[Tensor], norm_type: float) -> Tensor:
    if not any(map(is_shard, params)):
        return torch.nn.utils.get_total_norm(grads, norm_type)
    pairs = zip(params, grads, strict=True)
    whole = [_over_shards(torch.linalg.vector_norm(grad, norm_type), p, norm_type) for p, grad in pairs]
    return torch.linalg.vector_norm(torch.stack(whole), norm_type).to(grads[0].dtype)


def _norms_of_copies(p: Tensor, grad: Tensor, norm_type: float) -> Tensor:
    norms = torch.linalg.vector_norm(grad.flatten(1), norm_type, 1) if grad.numel() else grad.new_zeros(0)
    if not is_shard(p):
        return norms
    of_all = norms.new_zeros(len(p))
    if grad.numel():
        of_all[places_along(0, p)] = norms
    return _over_shards(of_all, p, norm_type)


def _over_shards(norm: Tensor, parameter: Tensor, norm_type: float) -> Tensor:
    """Return the norm of the whole of a parameter from that of this process's part."""
    norm = norm.double()
    if norm_type == inf:
        return over_shards(norm, parameter, highest=True)
    return over_shards(norm**norm_type, parameter) ** (1 / norm_type)
