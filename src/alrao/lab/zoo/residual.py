"""A residual network without batch statistics."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import scaled

__all__ = ["residual_groupnorm"]

GROUP = 8
"""Channels that are normalised together."""


class _Block(nn.Module):
    """Two 3×3 convolutions, each after GroupNorm and ReLU, added to the input, or a projection of it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = _norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        shortcut: Tensor = self.shortcut(x)
        return shortcut + y


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(max(1, channels // GROUP), channels)


def residual_groupnorm(classes: int, width: float = 1.0) -> nn.Module:
    """Three residual blocks of 16, 32 and 64 channels with GroupNorm, for images of 3×32×32."""
    sizes = [GROUP * max(1, scaled(size, width) // GROUP) for size in (16, 32, 64)]
    blocks, inputs = [], sizes[0]
    for size in sizes:
        blocks.append(_Block(inputs, size, stride=2))
        inputs = size
    return nn.Sequential(
        nn.Conv2d(3, sizes[0], 3, padding=1, bias=False),
        *blocks,
        _norm(inputs),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, classes),
    )
