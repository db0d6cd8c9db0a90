"""The networks of the paper: VGG19, GoogLeNet and MobileNetV2 for images of 32×32, and the LSTM for text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .small import pooled, scaled


def _convolution(
    inputs: int, outputs: int, kernel: int, *, relu: bool = True, **options: Any
) -> nn.Sequential:
    """A convolution that keeps the image's size (except for the stride), BatchNorm, and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **options)
    rectified = [nn.ReLU(inplace=True)] if relu else []
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *rectified)


VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels, and the number of convolutions with them; each stage halves the image."""


def vgg19(classes: int = 10, width: float = 1.0) -> nn.Module:
    """VGG19 with BatchNorm and a single Linear layer.

    Simonyan, Zisserman. *Very Deep Convolutional Networks for Large-Scale Image Recognition*. 2015.
    """
    layers: list[nn.Module] = []
    channels = 3
    for stage, depth in VGG19:
        for _ in range(depth):
            size = scaled(stage, width)
            layers.append(_convolution(channels, size, 3))
            channels = size
        layers.append(nn.MaxPool2d(2))
    return pooled(layers, channels, classes)


GOOGLENET = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Channels of the branches: 1×1; 3×3, reduced and full; 5×5, reduced and full; after the pooling."""


class Inception(nn.Module):
    """Four parallel branches with concatenated channels; the 5×5 branch is two 3×3 convolutions."""

    def __init__(self, inputs: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        one, three_reduced, three, five_reduced, five, pooled = sizes
        self.outputs = one + three + five + pooled
        self.one = _convolution(inputs, one, 1)
        self.three = nn.Sequential(
            _convolution(inputs, three_reduced, 1), _convolution(three_reduced, three, 3)
        )
        self.five = nn.Sequential(
            _convolution(inputs, five_reduced, 1),
            _convolution(five_reduced, five, 3),
            _convolution(five, five, 3),
        )
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolution(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


def googlenet(classes: int = 10, width: float = 1.0) -> nn.Module:
    """GoogLeNet with BatchNorm; it starts with one 3×3 convolution and no pooling.

    Szegedy et al. *Going Deeper with Convolutions*. 2015.
    """
    channels = scaled(192, width)
    layers: list[nn.Module] = [_convolution(3, channels, 3)]
    for number, stage in enumerate(GOOGLENET):
        if number > 0:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        for sizes in stage:
            block = Inception(channels, tuple(scaled(size, width) for size in sizes))
            layers.append(block)
            channels = block.outputs
    return pooled(layers, channels, classes)


MOBILENET = (
    (1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
)  # fmt: skip
"""Expansion, channels, number of blocks, stride of the first: MobileNetV2's table except for one stride."""


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; a shortcut where the image keeps its size."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        inside = inputs * expansion
        self.block = nn.Sequential(
            _convolution(inputs, inside, 1, bias=False),
            _convolution(inside, inside, 3, stride=stride, groups=inside, bias=False),
            _convolution(inside, outputs, 1, bias=False, relu=False),
        )
        self.shortcut: nn.Module | None = None
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif stride == 1:
            self.shortcut = _convolution(inputs, outputs, 1, bias=False, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        return out if self.shortcut is None else out + self.shortcut(x)


def mobilenet_v2(classes: int = 10, width: float = 1.0) -> nn.Module:
    """MobileNetV2 with two strides less than for large images.

    A shortcut is a 1×1 convolution where the number of channels changes.

    Sandler et al. *MobileNetV2: Inverted Residuals and Linear Bottlenecks*. 2018.
    """
    channels = scaled(32, width)
    layers: list[nn.Module] = [_convolution(3, channels, 3, bias=False)]
    for expansion, stage, depth, first in MOBILENET:
        for number in range(depth):
            outputs = scaled(stage, width)
            layers.append(InvertedResidual(channels, outputs, expansion, first if number == 0 else 1))
            channels = outputs
    last = scaled(1280, width)
    layers.append(_convolution(channels, last, 1, bias=False))
    return pooled(layers, last, classes)


class RecurrentLM(nn.Module):
    """Embedding, two recurrent layers, and a decoder that predicts the next symbol at every position.

    ``dropout`` is before the decoder, as the paper says; with ``dropout_everywhere`` also after the embedding
    and between the layers, as in its authors' code. The paper's ``cell`` is ``nn.LSTM``.
    """

    def __init__(
        self,
        symbols: int,
        dropout: float = 0.2,
        dropout_everywhere: bool = False,
        *,
        width: float = 1.0,
        cell: Callable[..., nn.RNNBase] = nn.LSTM,
    ) -> None:
        super().__init__()
        size, inside = scaled(100, width), dropout if dropout_everywhere else 0.0
        self.embedding = nn.Embedding(symbols, size)
        self.embedding_dropout = nn.Dropout(inside)
        self.lstm = cell(size, size, 2, batch_first=True, dropout=inside)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(size, symbols)

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Map tokens (batch, time) to scores of the next symbols (batch, time, symbols) and a new state."""
        x = self.embedding_dropout(self.embedding(tokens))
        x, after = self.lstm(x, state[0] if state is not None and len(state) == 1 else state)
        return self.decoder(self.dropout(x)), after if isinstance(after, tuple) else (after,)
