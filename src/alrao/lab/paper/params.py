"""The paper's table of parameter counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import alrao

from ..render.reported import PARAMETERS
from ..zoo import RecurrentLM, googlenet, mobilenet_v2, vgg19

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "GoogLeNet": (googlenet, 10),
    "VGG19": (vgg19, 10),
    "MobileNet": (mobilenet_v2, 10),
    "LSTM, characters": (lambda: RecurrentLM(50), 6),
    "LSTM, words": (lambda: RecurrentLM(9999), 6),
}
"""Each network of the paper's table, and its copies."""


def count(name: str) -> tuple[int, int]:
    """Count the parameters of a network of the table, plain and with Alrao."""
    build, copies = NETWORKS[name]
    with torch.device("meta"):  # shapes are enough
        net = build()
        plain = sum(p.numel() for p in net.parameters())
        return plain, sum(p.numel() for p in alrao.Alrao(net, copies).parameters())


def counts() -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the table: our counts beside the paper's, in millions."""
    heads = ["network", "plain", "with Alrao", "copies", "paper: plain", "paper: with Alrao"]
    rows = []
    for name, (_, copies) in NETWORKS.items():
        ours = [f"{number / 1e6:.3f}" for number in count(name)]
        rows.append([name, *ours, str(copies), *(f"{millions:.3f}" for millions in PARAMETERS[name])])
    return heads, rows
