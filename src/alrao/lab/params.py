"""The paper's table of parameter counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.table import Table
from torch import nn

import alrao

from .paper import PARAMETERS
from .zoo import RecurrentLM, googlenet, mobilenet_v2, vgg19

__all__ = ["count", "table"]

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "GoogLeNet": (googlenet, 10),
    "VGG19": (vgg19, 10),
    "MobileNet": (mobilenet_v2, 10),
    "LSTM, characters": (lambda: RecurrentLM(50), 6),
    "LSTM, words": (lambda: RecurrentLM(9999), 6),
}
"""Each network of the paper's table, and its copies."""


def count(name: str) -> tuple[int, int]:
    """Parameters of a network of the table, plain and with Alrao."""
    build, copies = NETWORKS[name]
    with torch.device("meta"):  # shapes are enough
        net = build()
        plain = sum(p.numel() for p in net.parameters())
        return plain, sum(p.numel() for p in alrao.Alrao(net, copies).parameters())


def table() -> Table:
    """Our counts beside the paper's."""
    shown = Table(title="Parameters, in millions")
    for column in ("network", "plain", "with Alrao", "copies", "paper: plain", "paper: with Alrao"):
        shown.add_column(column, justify="left" if column == "network" else "right")
    for name, (_, copies) in NETWORKS.items():
        plain, with_alrao = count(name)
        theirs = [f"{millions:.3f}" for millions in PARAMETERS[name]]
        shown.add_row(name, f"{plain / 1e6:.3f}", f"{with_alrao / 1e6:.3f}", str(copies), *theirs)
    return shown
