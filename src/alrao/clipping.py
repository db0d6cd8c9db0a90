"""Gradient clipping, for the body as a whole and for each copy separately."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .finite import alive, zero_nonfinite_

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
