"""Gradient clipping, for the body as a whole and for each copy separately."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from .finite import alive, zero_nonfinite_
from .runtime.sharding import highest_of_shards, indices_of_copies, is_shard, local, sum_over_shards

__all__ = ["clip_grads_"]


@torch.no_grad()
def clip_grads_(
    body: Sequence[Tensor], of_copies: Sequence[Tensor], max_norm: float, norm_type: float, *, reads: bool
) -> Tensor:
    """Clip the gradients of the body together, and those of each copy together; return the body's norm.

    Args:
        body: parameters of the body.
        of_copies: parameters of the head, copies first.
        max_norm: the largest norm that is left unchanged.
        norm_type: which norm.
        reads: look first, on the host, whether there is anything that is not finite.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm!r}")
    if any(is_shard(parameter) for parameter in (*body, *of_copies)):
        return _clip_shards_(body, of_copies, max_norm, norm_type)
    grads = [parameter.grad for parameter in body if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads, norm_type) if reads else None
    if norm is None or not bool(alive(norm)):
        for grad in grads:
            zero_nonfinite_(grad)
        norm = torch.nn.utils.get_total_norm(grads, norm_type)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.device))

    stacked = [parameter.grad for parameter in of_copies if parameter.grad is not None]
    if stacked:
        for grad in stacked:
            zero_nonfinite_(grad)
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), norm_type, 1) for g in stacked])
        factors = (max_norm / (torch.linalg.vector_norm(norms, norm_type, 0) + 1e-6)).clamp(max=1.0)
        for grad in stacked:
            grad.mul_(factors.to(grad.dtype).view([-1] + [1] * (grad.ndim - 1)))
    return norm


def _clip_shards_(
    body: Sequence[Tensor], of_copies: Sequence[Tensor], max_norm: float, norm_type: float
) -> Tensor:
    """Clip gradients of which each process has a part; the norms are those of the whole."""
    body = [p for p in body if p.grad is not None]
    of_copies = [p for p in of_copies if p.grad is not None]
    for p in (*body, *of_copies):
        zero_nonfinite_(local(p.grad))
    norm = torch.zeros(())
    for p in body:
        part = torch.linalg.vector_norm(local(p.grad), norm_type).to(torch.float64)
        norm = _joined(norm.to(part), _over_shards(part, p, norm_type), norm_type)
    norm = norm if norm_type == inf else norm ** (1 / norm_type)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in body:
        local(p.grad).mul_(factor)

    if of_copies:
        norms = torch.zeros(len(of_copies[0]), dtype=torch.float64, device=norm.device)
        for p in of_copies:
            grad, own = local(p.grad), torch.zeros_like(norms)
            if grad.numel():
                own[indices_of_copies(p)] = torch.linalg.vector_norm(grad.flatten(1), norm_type, 1).to(own)
            norms = _joined(norms, _over_shards(own, p, norm_type), norm_type)
        norms = norms if norm_type == inf else norms ** (1 / norm_type)
        factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        for p in of_copies:
            grad = local(p.grad)
            grad.mul_(factors[indices_of_copies(p)].to(grad).view([-1] + [1] * (grad.ndim - 1)))
    return norm.to(torch.get_default_dtype()) if not body else norm.to(local(body[0].grad).dtype)


def _over_shards(norm: Tensor, parameter: Tensor, norm_type: float) -> Tensor:
    """Return the norm of the whole, or its power, from that of this process's part."""
    if norm_type == inf:
        return highest_of_shards(norm, parameter)
    return sum_over_shards(norm**norm_type, parameter)


def _joined(one: Tensor, other: Tensor, norm_type: float) -> Tensor:
    return torch.maximum(one, other) if norm_type == inf else one + other
