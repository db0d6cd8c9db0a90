"""Features of layers of transformers, which is not imported: by their names. And of bare parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Rule = Callable[[nn.Module], Mapping[str, int | Tensor]]

_TABLE = re.compile(
    r"(?:^|_)(?:pos|position\w*|relative_position\w*|tokens?|emb|embed\w*|latents?|quer(?:y|ies)|rel)\d*(?:_|$)"
)
"""Names of tables of vectors: positions, class tokens, learnt queries. Their columns are features."""


def guess_axis(name: str, parameter: Tensor) -> int:
    """Return the axis along which the features of a bare parameter lie, from its shape and name.

    Axes of length 1 hold no features. A leading one is the batch's, and channels come last, or first if the
    other two axes are an image's, of equal lengths. A table of vectors has its components on the last axis.
    """
    shape = tuple(parameter.shape)
    long = [axis for axis, length in enumerate(shape) if length > 1]
    if len(long) < 2:
        return long[0] if long else 0
    if len(shape) == 4 and shape[0] == 1 and shape[2] == shape[3] != shape[1]:
        return 1
    table = _TABLE.search(name) is not None and not re.search("proj|weight", name)
    return long[-1] if shape[0] == 1 or table else long[0]


def rule_by_name(kind: type[nn.Module]) -> Rule | None:
    """Return the rule for a layer type of transformers, or None."""
    if kind.__module__.partition(".")[0] != "transformers":
        return None
    if kind.__name__.endswith("Experts"):
        return _experts
    return _transposed_linear if kind.__name__ == "Conv1D" else None


def _transposed_linear(layer: nn.Module) -> dict[str, int | Tensor]:
    return {"weight": 1, "bias": 0}


def _experts(layer: nn.Module) -> dict[str, int | Tensor]:
    """Number the output units of every expert: weights ``(experts, out, in)``, or ``(experts, in, out)``."""
    weights = {n: p for n, p in layer.named_parameters(recurse=False) if p.ndim == 3}
    transposed = getattr(layer, "is_transposed", None)
    if transposed is None and {"gate_up_proj", "down_proj"} <= weights.keys():
        transposed = weights["gate_up_proj"].shape[1] == weights["down_proj"].shape[2]
        transposed &= weights["gate_up_proj"].shape[2] != weights["down_proj"].shape[1]
    described: dict[str, int | Tensor] = {}
    free = 0
    for name, weight in weights.items():
        experts, units = weight.shape[0], weight.shape[2 if transposed else 1]
        numbers = free + torch.arange(experts * units).view(experts, units)
        described[name] = numbers[:, None] if transposed else numbers[:, :, None]
        described[f"{name}_bias"] = numbers
        free += experts * units
    return described
