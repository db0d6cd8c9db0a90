"""Networks that train in minutes on two cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 8
"""Channels that GroupNorm normalises together."""
HEADS = 4
"""Attention heads."""


def scaled(channels: int, width: float, multiple: int = 1) -> int:
    """Return a number of channels times a width multiplier, rounded to a positive multiple of a number."""
    return multiple * max(1, round(channels * width) // multiple)


def pooled(layers: Iterable[nn.Module], channels: int, classes: int) -> nn.Sequential:
    """Return layers, the mean over the image that is left, and a Linear layer."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def mlp(
    inputs: int,
    classes: int,
    width: float = 1.0,
    *,
    hidden: Sequence[int] = (128, 128),
) -> nn.Module:
    """Fully connected layers; an example of any shape is flattened to ``inputs`` numbers."""
    sizes = [inputs, *(scaled(units, width) for units in hidden)]
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))


def cnn(
    classes: int,
    width: float = 1.0,
    *,
    channels: int = 3,
    sizes: Sequence[int] = (16, 32, 64, 64),
) -> nn.Sequential:
    """3×3 convolutions with the image halved between them, the mean over its rest, and a Linear layer."""
    layers: list[nn.Module] = []
    for size in (scaled(size, width) for size in sizes):
        layers += [nn.MaxPool2d(2)] if layers else []
        layers += [nn.Conv2d(channels, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU()]
        channels = size
    return pooled(layers, channels, classes)


def separable(classes: int, width: float = 1.0) -> nn.Sequential:
    """A 3×3 convolution, then three of one channel each and 1×1, all with BatchNorm; images of 3×32×32."""
    sizes = [scaled(size, width) for size in (16, 32, 64, 64)]
    layers: list[nn.Module] = [nn.Conv2d(3, sizes[0], 3, stride=2, padding=1), nn.ReLU()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Conv2d(inputs, inputs, 3, stride=2, padding=1, groups=inputs), nn.BatchNorm2d(inputs)]
        layers += [nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return pooled(layers, sizes[-1], classes)


class _Block(nn.Module):
    """Two 3×3 convolutions, each after a norm and ReLU, added to the input or a projection of it."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y)))
        shortcut: Tensor = self.shortcut(x)
        return shortcut + y


def residual(classes: int, width: float = 1.0, *, batch_norm: bool = False) -> nn.Sequential:
    """Three residual blocks of 16, 32 and 64 channels with GroupNorm or BatchNorm, for images of 3×32×32."""

    def norm(channels: int) -> nn.Module:
        groups = max(1, channels // GROUP)
        return nn.BatchNorm2d(channels) if batch_norm else nn.GroupNorm(groups, channels)

    sizes = [scaled(size, width, GROUP) for size in (16, 32, 64)]
    blocks = [_Block(*pair, 2, norm) for pair in pairwise([sizes[0], *sizes])]
    first = nn.Conv2d(3, sizes[0], 3, padding=1, bias=False)
    return pooled([first, *blocks, norm(sizes[-1]), nn.ReLU()], sizes[-1], classes)


def _encoder(size: int, layers: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        size, HEADS, 2 * size, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(size), enable_nested_tensor=False)
    for parameter in encoder.parameters():  # the layers start as copies of one
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return encoder


class VisionTransformer(nn.Module):
    """Patches of 4×4 pixels of 3×32×32 as tokens, attention layers, and the mean over the tokens."""

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        size = scaled(48, width, HEADS)
        self.patches = nn.Conv2d(3, size, 4, 4)
        self.positions = nn.Embedding(64, size)
        self.encoder = _encoder(size, 3)
        self.output = nn.Linear(size, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions.weight
        scores: Tensor = self.output(self.encoder(x).mean(1))
        return scores


class TransformerLM(nn.Module):
    """Embedding, causal attention layers, and a decoder that predicts the next symbol at every position.

    It reads at most ``window`` symbols at once and has no state.
    """

    def __init__(self, symbols: int, layers: int = 2, window: int = 70, *, width: float = 1.0) -> None:
        super().__init__()
        size = scaled(64, width, HEADS)
        self.embedding = nn.Embedding(symbols, size)
        self.positions = nn.Embedding(window, size)
        self.encoder = _encoder(size, layers)
        self.decoder = nn.Linear(size, symbols)

    def forward(self, tokens: Tensor, state: tuple[()] | None = None) -> tuple[Tensor, tuple[()]]:
        time = tokens.shape[1]
        x = self.embedding(tokens) + self.positions.weight[:time]
        mask = torch.full((time, time), -torch.inf, device=tokens.device).triu(1)
        return self.decoder(self.encoder(x, mask, is_causal=True)), ()
