"""GoogLeNet for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import convolution, scaled

__all__ = ["googlenet"]

STAGES = (
    (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
    ),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    (
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ),
)
"""The paper's table: 1×1; 3×3, reduced and then; 5×5, reduced and then; after the pooling."""


class Inception(nn.Module):
    """Four branches side by side, their channels concatenated; the 5×5 branch is two 3×3 convolutions."""

    def __init__(self, inputs: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        one, three_reduced, three, five_reduced, five, pooled = sizes
        self.outputs = one + three + five + pooled
        self.one = convolution(inputs, one, 1)
        self.three = nn.Sequential(
            convolution(inputs, three_reduced, 1),
            convolution(three_reduced, three, 3),
        )
        self.five = nn.Sequential(
            convolution(inputs, five_reduced, 1),
            convolution(five_reduced, five, 3),
            convolution(five, five, 3),
        )
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), convolution(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Images of the same size, with ``outputs`` channels."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


def googlenet(classes: int = 10, width: float = 1.0) -> nn.Module:
    """GoogLeNet with BatchNorm for images of 32×32: it starts with one 3×3 convolution and no pooling.

    Szegedy et al. *Going Deeper with Convolutions*. 2015.
    """
    channels = scaled(192, width)
    layers: list[nn.Module] = [convolution(3, channels, 3)]
    for number, stage in enumerate(STAGES):
        if number > 0:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        for sizes in stage:
            block = Inception(channels, tuple(scaled(size, width) for size in sizes))
            layers.append(block)
            channels = block.outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
