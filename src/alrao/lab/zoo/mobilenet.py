"""MobileNetV2 for small images."""

from __future__ import annotations

from torch import Tensor, nn

from .blocks import convolution, scaled

__all__ = ["mobilenet_v2"]

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, number of blocks, stride of the first: the paper's table but for one stride."""


class InvertedResidual(nn.Module):
    """Expand, convolve every channel by itself, project; a shortcut around it where the size is kept."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        inside = inputs * expansion
        self.block = nn.Sequential(
            convolution(inputs, inside, 1, bias=False),
            convolution(inside, inside, 3, stride=stride, groups=inside, bias=False),
            convolution(inside, outputs, 1, bias=False, relu=False),
        )
        self.shortcut: nn.Module | None = None
        if stride == 1:
            same = inputs == outputs
            self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, bias=False, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images with the block's number of channels, smaller by the stride."""
        out = self.block(x)
        return out if self.shortcut is None else out + self.shortcut(x)


def mobilenet_v2(classes: int = 10, width: float = 1.0) -> nn.Module:
    """MobileNetV2 for images of 32×32, with two strides less than for large ones.

    Wherever a block keeps the image's size there is a shortcut: a 1×1 convolution where the number of
    channels changes.

    Sandler et al. *MobileNetV2: Inverted Residuals and Linear Bottlenecks*. 2018.
    """
    channels = scaled(32, width)
    layers: list[nn.Module] = [convolution(3, channels, 3, bias=False)]
    for expansion, stage, depth, first in STAGES:
        for number in range(depth):
            outputs = scaled(stage, width)
            layers.append(InvertedResidual(channels, outputs, expansion, first if number == 0 else 1))
            channels = outputs
    last = scaled(1280, width)
    layers.append(convolution(channels, last, 1, bias=False))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))
