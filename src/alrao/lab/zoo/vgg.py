"""VGG for small images."""

from __future__ import annotations

from torch import nn

from .blocks import convolution, scaled

__all__ = ["vgg19"]

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels, and how many convolutions have them; after each stage the image is halved."""


def vgg19(classes: int = 10, width: float = 1.0) -> nn.Module:
    """VGG19 with BatchNorm for images of 32×32, with a single Linear layer instead of three.

    Simonyan, Zisserman. *Very Deep Convolutional Networks for Large-Scale Image Recognition*. 2015.
    """
    layers: list[nn.Module] = []
    channels = 3
    for stage, depth in STAGES:
        for _ in range(depth):
            size = scaled(stage, width)
            layers.append(convolution(channels, size, 3))
            channels = size
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
