"""What the networks share: channel counts times a width, and a convolution with its BatchNorm."""

from __future__ import annotations

import math

from torch import nn

from ..errors import LabError

__all__ = ["convolution", "scaled"]


def scaled(channels: int, width: float) -> int:
    """A channel count times the width multiplier, rounded, and at least 1.

    Raises:
        LabError: the width is not a positive number.
    """
    if not 0 < width < math.inf:
        raise LabError(f"a width multiplies every channel count and must be positive, got {width}")
    return max(1, round(channels * width))


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    bias: bool = True,
    relu: bool = True,
) -> nn.Sequential:
    """A convolution that keeps the image's size (but for the stride), BatchNorm, and ReLU."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if relu else nn.Sequential(*layers)
