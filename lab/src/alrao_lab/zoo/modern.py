"""Networks of other kinds than those of ``small``: what the suite's held-out workloads train."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .small import pooled, scaled

FREQUENCY = 30.0
"""Factor of the inputs of sine units."""


class _ChannelNorm(nn.Module):
    """LayerNorm over the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return normalised.permute(0, 3, 1, 2)


class _DepthwiseBlock(nn.Module):
    """A 7×7 convolution of each channel, LayerNorm, and a hidden layer of GELU, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.spatial(x).permute(0, 2, 3, 1))
        mixed: Tensor = self.project(F.gelu(self.expand(y)))
        return x + mixed.permute(0, 3, 1, 2)


def convnext(classes: int, width: float = 1.0) -> nn.Sequential:
    """Depthwise blocks of 32 and 64 channels on patches of 4×4 pixels, for images of 3×32×32.

    After Liu et al. *A ConvNet for the 2020s*. 2022.
    """
    few, many = scaled(32, width), scaled(64, width)
    first = [nn.Conv2d(3, few, 4, stride=4), _ChannelNorm(few)]
    between = [_ChannelNorm(few), nn.Conv2d(few, many, 2, stride=2)]
    blocks = [[_DepthwiseBlock(size) for _ in range(2)] for size in (few, many)]
    return pooled([*first, *blocks[0], *between, *blocks[1]], many, classes)


class _DenseLayer(nn.Module):
    """BatchNorm, ReLU and a 3×3 convolution, whose channels are appended to the input's."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.convolution = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.convolution(F.relu(self.norm(x)))], 1)


def densenet(classes: int, width: float = 1.0, *, depths: Sequence[int] = (4, 4, 4)) -> nn.Sequential:
    """Stages of densely connected layers with growth 12, for images of 3×32×32, halved at the start.

    After Huang et al. *Densely Connected Convolutional Networks*. 2017.
    """
    growth = scaled(12, width)
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)]
    for stage, depth in enumerate(depths):
        if stage:
            narrow = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), narrow, nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(depth):
            layers.append(_DenseLayer(channels, growth))
            channels += growth
    return pooled([*layers, nn.BatchNorm2d(channels), nn.ReLU()], channels, classes)


class _RotaryBlock(nn.Module):
    """Causal attention with rotary positions, and a gated hidden layer, each after RMSNorm; no biases."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, inside, half = heads, 8 * size // 3, size // heads // 2
        self.norm1, self.norm2 = nn.RMSNorm(size), nn.RMSNorm(size)
        self.qkv, self.mix = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.gate, self.up = (nn.Linear(size, inside, bias=False) for _ in range(2))
        self.down = nn.Linear(inside, size, bias=False)
        angles = torch.outer(torch.arange(window), 10_000 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _rotated(self, x: Tensor) -> Tensor:
        time = x.shape[-2]
        first, second = x.chunk(2, -1)
        cos, sin = self.cos[:time], self.sin[:time]
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        gated: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + gated


class RotaryLM(nn.Module):
    """A language model of the kind of Llama: rotary positions, RMSNorm, gated layers, no biases."""

    def __init__(self, symbols: int, window: int, *, size: int = 144, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, size)
        self.blocks = nn.Sequential(*(_RotaryBlock(size, 4, window) for _ in range(layers)))
        self.norm = nn.RMSNorm(size)
        self.decoder = nn.Linear(size, symbols, bias=False)

    def forward(self, tokens: Tensor, state: tuple[()] | None = None) -> tuple[Tensor, tuple[()]]:
        return self.decoder(self.norm(self.blocks(self.embedding(tokens)))), ()


class NGramLM(nn.Module):
    """A hidden layer of tanh on the embeddings of the last symbols.

    Bengio et al. *A Neural Probabilistic Language Model*. 2003.
    """

    def __init__(self, symbols: int, *, context: int = 8, size: int = 24, hidden: int = 200) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(symbols, size)
        self.hidden = nn.Linear(context * size, hidden)
        self.decoder = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor, state: tuple[()] | None = None) -> tuple[Tensor, tuple[()]]:
        known = F.pad(self.embedding(tokens), (0, 0, self.context - 1, 0))
        return self.decoder(self.hidden(known.unfold(1, self.context, 1).flatten(2)).tanh()), ()


class Sine(nn.Module):
    """The sine of a multiple of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(FREQUENCY * x)


def siren(inputs: int, outputs: int, width: float = 1.0) -> nn.Sequential:
    """Three layers of sine units with their initialisation.

    Sitzmann et al. *Implicit Neural Representations with Periodic Activation Functions*. 2020.
    """
    sizes, layers = [inputs, *[scaled(64, width)] * 3], list[nn.Module]()
    for number, (fan_in, units) in enumerate(pairwise(sizes)):
        layer = nn.Linear(fan_in, units)
        bound = (6 / fan_in) ** 0.5 / FREQUENCY if number else 1 / fan_in
        nn.init.uniform_(layer.weight, -bound, bound)
        layers += [layer, Sine()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class _Causal(nn.Module):
    """A dilated convolution over the past, added to its input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.convolution = nn.Conv1d(channels, channels, 3, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.convolution(F.pad(x, (self.past, 0))))


class TemporalConvolutions(nn.Module):
    """Dilated causal convolutions over a series (batch, time), and a Linear layer on the last time.

    After Bai, Kolter, Koltun. *An Empirical Evaluation of Generic Convolutional and Recurrent Networks for
    Sequence Modeling*. 2018.
    """

    def __init__(self, inputs: int, outputs: int, width: float = 1.0) -> None:
        super().__init__()
        channels = scaled(32, width)
        self.first = nn.Conv1d(1, channels, 3)
        self.blocks = nn.Sequential(*(_Causal(channels, dilation) for dilation in (1, 2, 4, 8)))
        self.output = nn.Linear(channels, outputs)

    def forward(self, series: Tensor) -> Tensor:
        predicted: Tensor = self.output(self.blocks(self.first(series[:, None]))[:, :, -1])
        return predicted


class _RowBlock(nn.Module):
    """BatchNorm and a hidden layer of ReLU, added to the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.expand = nn.BatchNorm1d(size), nn.Linear(size, 2 * size)
        self.project = nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.project(F.relu(self.expand(self.norm(x))))
        return x + added


def residual_rows(inputs: int, outputs: int, width: float = 1.0) -> nn.Sequential:
    """Residual blocks with BatchNorm for rows of numbers.

    After Gorishniy et al. *Revisiting Deep Learning Models for Tabular Data*. 2021.
    """
    size = scaled(64, width)
    blocks = [nn.Linear(inputs, size), _RowBlock(size), _RowBlock(size), nn.BatchNorm1d(size), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Linear(size, outputs))


def self_normalising(inputs: int, outputs: int, width: float = 1.0) -> nn.Sequential:
    """Eight layers of SELU units with the initialisation of LeCun.

    Klambauer et al. *Self-Normalizing Neural Networks*. 2017.
    """
    sizes = [inputs, *[scaled(64, width)] * 8]
    layers = list[nn.Module]()
    for fan_in, units in pairwise(sizes):
        layer = nn.Linear(fan_in, units)
        nn.init.normal_(layer.weight, std=fan_in**-0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.SELU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class GraphConvolutions(nn.Module):
    """Two graph convolutions with dropout before each; maps indices of nodes to the scores of their classes.

    Kipf, Welling. *Semi-Supervised Classification with Graph Convolutional Networks*. 2017.

    Args:
        features: of the nodes, sparse (nodes, features).
        graph: the normalised adjacency with loops, sparse (nodes, nodes).
    """

    features: Tensor
    graph: Tensor

    def __init__(self, features: Tensor, graph: Tensor, classes: int, width: float = 1.0) -> None:
        super().__init__()
        hidden = scaled(16, width)
        self.register_buffer("features", features.coalesce(), persistent=False)
        self.register_buffer("graph", graph.coalesce(), persistent=False)
        self.hidden = nn.Linear(features.shape[1], hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, nodes: Tensor) -> Tensor:
        kept = F.dropout(self.features.values(), 0.5, self.training)
        x = torch.sparse_coo_tensor(
            self.features.indices(), kept, self.features.shape, is_coalesced=True, check_invariants=False
        )
        x = torch.sparse.mm(x, self.hidden.weight.T) + self.hidden.bias
        x = F.dropout(F.relu(torch.sparse.mm(self.graph, x)), 0.5, self.training)
        # The second convolution stands before the output layer, with which it commutes.
        scores: Tensor = self.output(torch.sparse.mm(self.graph, x)[nodes])
        return scores
