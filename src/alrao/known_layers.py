"""Features of layers from other packages (transformers, timm, torchvision), and of bare parameters.

Nothing is imported from these packages: their layers are recognised by the package and the class's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

__all__ = ["Rule", "guess_axis", "rule_by_name"]

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
    """Return the rule for a layer type of another package, or None."""
    package = kind.__module__.partition(".")[0]
    if package == "transformers" and kind.__name__.endswith("Experts"):
        return _experts
    return _RULES.get(f"{package}.{kind.__name__}")


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


def _conditional_convolution(layer: nn.Module) -> dict[str, int | Tensor]:
    """Number the filters of every expert; the weight is ``(experts, entries of all filters)``."""
    weight, filters = layer.get_parameter("weight"), int(getattr(layer, "out_channels"))  # noqa: B009
    numbers = torch.arange(len(weight) * filters).view(len(weight), filters)
    return {"weight": numbers.repeat_interleave(weight.shape[1] // filters, 1), "bias": numbers}


def _multi_query_attention(layer: nn.Module) -> dict[str, int | Tensor]:
    """Number the units: queries ``(heads, units, in)``, keys and values ``(in, units)``."""
    heads, units, _ = layer.get_parameter("query_proj").shape
    queries = torch.arange(heads * units).view(heads, units, 1)
    # The parameters below share no features with these: a rule's numbers are the layer's.
    free = heads * units
    described: dict[str, int | Tensor] = {"query_proj": queries}
    for name, axis in (("key_proj", 1), ("value_proj", 1), ("out_proj", 0)):
        shape = layer.get_parameter(name).shape
        numbers = free + torch.arange(shape[axis])
        described[name] = numbers.view([-1 if i == axis else 1 for i in range(len(shape))])
        free += shape[axis]
    return described


_RULES: dict[str, Rule] = {
    "transformers.Conv1D": _transposed_linear,
    "timm.CondConv2d": _conditional_convolution,
    "timm.MultiQueryAttentionV2": _multi_query_attention,
}
