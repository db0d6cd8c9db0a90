"""Gradients of unit size, so that the rate is the size of a step: an experiment with SGD's steps."""

from __future__ import annotations

from typing import Any

import torch

from alrao.optim import AlraoOptimizer

__all__ = ["normalise"]

LEAST = 1e-12
"""A gradient smaller than this is not brought to unit size."""


def normalise(optimizer: AlraoOptimizer, unit: str) -> None:
    """Divide gradients by the root of their mean square, from now on, before each step.

    Args:
        optimizer: the optimizer whose gradients are scaled.
        unit: what is scaled to unit size: each ``"feature"``, or each ``"layer"``, that is, a whole tensor.
            Each copy of the head is always scaled separately.
    """
    copies = set(optimizer.model.head.parameters())
    along = {}
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        whole = unit == "layer" and p not in copies
        # A feature has one rate for all its weights: they lie along the dimensions of size 1.
        along[p] = [i for i, size in enumerate(optimizer.rates(p).shape) if whole or size == 1]

    @torch.no_grad()
    def before_step(*_: Any) -> None:
        for p, dimensions in along.items():
            if p.grad is not None:
                square = p.grad.square()
                size = (square.mean(dimensions, keepdim=True) if dimensions else square).sqrt()
                p.grad.div_(size.clamp_min(LEAST))

    optimizer.register_step_pre_hook(before_step)
