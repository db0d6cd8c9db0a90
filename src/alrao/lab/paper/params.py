"""The paper's table of parameter counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import alrao

from ..zoo.paper import RecurrentLM, googlenet, mobilenet_v2, vgg19

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float, float]] = {
    "GoogLeNet": (googlenet, 10, 6.166, 6.258),
    "VGG19": (vgg19, 10, 20.041, 20.087),
    "MobileNet": (mobilenet_v2, 10, 2.297, 2.412),
    "LSTM, characters": (lambda: RecurrentLM(50), 6, 0.172, 0.197),
    "LSTM, words": (lambda: RecurrentLM(9999), 6, 2.171, 7.221),
}
"""Each network of the paper's table, its copies, and the paper's counts in millions, plain and with Alrao."""


def count(name: str) -> tuple[int, int]:
    """Count the parameters of a network of the table, plain and with Alrao."""
    build, copies, *_ = NETWORKS[name]
    with torch.device("meta"):  # shapes are enough
        net = build()
        plain = sum(p.numel() for p in net.parameters())
        return plain, sum(p.numel() for p in alrao.Alrao(net, copies).parameters())


def counts() -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the table: our counts beside the paper's, in millions."""
    heads = ["network", "plain", "with Alrao", "copies", "paper: plain", "paper: with Alrao"]
    rows = []
    for name, (_, copies, *paper) in NETWORKS.items():
        ours = [f"{number / 1e6:.3f}" for number in count(name)]
        rows.append([name, *ours, str(copies), *(f"{millions:.3f}" for millions in paper)])
    return heads, rows
