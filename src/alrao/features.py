"""The features of each layer type: which entries of its parameters share a learning rate.

A feature is one output unit of a layer together with all of its incoming parameters. A *rule* gives, for
each parameter of a layer, the axis along which the features lie or, where that is not enough, a tensor of
feature numbers that broadcasts to the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from .warn import warn

Rule = Callable[[nn.Module], Mapping[str, int | Tensor]]
RuleT = TypeVar("RuleT", bound=Callable[..., Mapping[str, int | Tensor]])

_RULES: dict[type[nn.Module], Rule] = {}


def register_features(*layer_types: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Register a rule for the features of a layer type. Subclasses inherit it; the last one wins.

    The decorated function takes a layer and returns, for each of its own parameters by name, the axis
    along which the features lie, or a tensor of feature numbers that broadcasts to the parameter. Equal
    numbers share a learning rate, across the parameters of the layer too.

    Args:
        *layer_types: subclasses of :class:`torch.nn.Module`.

    Example:
        >>> import torch, alrao
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...         self.scale = torch.nn.Parameter(torch.ones(1, channels))
        >>> @alrao.register_features(Scale)
        ... def scale_features(layer):
        ...     return {"scale": 1}
    """
    for layer_type in layer_types:
        if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
            raise TypeError(
                f"register_features takes layer types, such as torch.nn.Linear, got {layer_type!r}"
            )

    def register(rule: RuleT) -> RuleT:
        _RULES.update(dict.fromkeys(layer_types, rule))
        return rule

    return register


def features_of(model: nn.Module, *, say: bool = False) -> list[tuple[nn.Module, dict[str, Tensor]]]:
    """Return, for each module with its own parameters, the feature number of every entry, from 0 on."""
    seen: set[nn.Parameter] = set()
    found: list[tuple[nn.Module, dict[str, Tensor]]] = []
    for module in model.modules():
        own = {**dict(module.named_parameters(recurse=False)), **_parametrized(module)}
        own = {name: p for name, p in own.items() if p not in seen}
        if own:
            seen.update(own.values())
            with torch.device("cpu"):  # whatever the default device is
                found.append((module, _numbers_of(module, own)))
    # A module with children that owns a bare parameter (a class token, a scale) is common. A leaf with
    # parameters is a layer, and the first of several axes may be the wrong guess.
    leaves = {
        type(module).__name__
        for module, _ in found
        if _rule_for(module) is _guessed and not any(module.children())
        if any(sum(n > 1 for n in p.shape) > 1 for p in module.parameters(recurse=False))
    }
    if say and leaves:
        warn(
            f"no feature rule for layers of type {', '.join(sorted(leaves))}: the first long axis of their "
            "parameters is taken for the features. Register a rule with alrao.register_features if it is not"
        )
    return found


def _numbers_of(module: nn.Module, own: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    described = {**_rule_for(module)(module), **dict.fromkeys(_parametrized(module), 0)}
    numbers = {
        name: _numbers(module, name, own[name], where) for name, where in described.items() if name in own
    }
    free = 1 + max((int(n.max()) for n in numbers.values() if n.numel()), default=-1)
    for name, parameter in own.items():
        if name not in numbers:  # the rule leaves it out: separate features
            numbers[name] = free + _along(parameter, guess_axis(name, parameter))
            free += numbers[name].numel()
    return numbers


def _parametrized(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parametrized weights of a layer (weight normalisation) whose rows are those of its bias."""
    lists = getattr(module, "parametrizations", None)
    bias = getattr(module, "bias", None)
    if not (isinstance(lists, nn.ModuleDict) and isinstance(bias, nn.Parameter)):
        return {}
    if _rule_for(module) is not first_axis:
        return {}
    named = lists.named_parameters(prefix="parametrizations")
    return {name: p for name, p in named if p.ndim > 1 and len(p) == len(bias)}


def _along(parameter: Tensor, axis: int) -> Tensor:
    """Return 0, 1, 2, … along ``axis``, broadcastable to the parameter; a scalar is one feature."""
    if parameter.ndim == 0:
        return torch.zeros((), dtype=torch.int64)
    shape = [1] * parameter.ndim
    shape[axis] = parameter.shape[axis]
    return torch.arange(parameter.shape[axis]).view(shape)


def _numbers(module: nn.Module, name: str, parameter: Tensor, where: int | Tensor) -> Tensor:
    if not isinstance(where, Tensor):
        if parameter.ndim and not -parameter.ndim <= where < parameter.ndim:
            raise ValueError(
                f"the feature rule of {type(module).__name__} names axis {where} of {name!r}, which has "
                f"shape {tuple(parameter.shape)}: name one of its axes"
            )
        return _along(parameter, where)
    aligned = zip(reversed(where.shape), reversed(parameter.shape), strict=False)
    fits = where.ndim <= parameter.ndim and all(n in (1, m) for n, m in aligned)
    if not fits or where.is_floating_point():
        raise ValueError(
            f"the feature rule of {type(module).__name__} must give whole numbers that broadcast to "
            f"{name!r} of shape {tuple(parameter.shape)}, got {where.dtype} of shape {tuple(where.shape)}"
        )
    return where


def _rule_for(module: nn.Module) -> Rule:
    rules = (_RULES.get(kind) or _rule_by_name(kind) for kind in type(module).__mro__)
    return next((rule for rule in rules if rule is not None), _guessed)


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


def _guessed(layer: nn.Module) -> dict[str, int | Tensor]:
    return {name: guess_axis(name, p) for name, p in layer.named_parameters(recurse=False)}


register_features(nn.ParameterList, nn.ParameterDict)(lambda layer: _guessed(layer))  # without a warning


@register_features(
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear, nn.PReLU,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, ParametrizationList,
)  # fmt: skip
def first_axis(layer: nn.Module) -> dict[str, int | Tensor]:
    """Return the rule of layers whose features are the rows of all parameters."""
    return {name: 0 for name, _ in layer.named_parameters(recurse=False)}


@register_features(nn.Embedding, nn.EmbeddingBag)
def _columns(layer: nn.Module) -> dict[str, int | Tensor]:
    return {"weight": 1}


@register_features(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _transposed_convolution(layer: nn.ConvTranspose2d) -> dict[str, int | Tensor]:
    # The weight is (in, out / groups, …): the output channel of a column depends on the group of its row.
    numbers = torch.arange(layer.out_channels).view(layer.groups, -1)
    if layer.groups > 1:
        numbers = numbers.repeat_interleave(layer.in_channels // layer.groups, 0)
    return {"weight": numbers[(...,) + (None,) * (layer.weight.ndim - 2)], "bias": 0}


@register_features(nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)
def _recurrent(layer: nn.RNNBase | nn.RNNCellBase) -> dict[str, int | Tensor]:
    # The rows are gates times hidden units: a unit has one number in every gate, weight and bias of its
    # layer and direction. The outputs of a projection are separate features.
    described: dict[str, int | Tensor] = {}
    first_of: dict[str, int] = {}  # layer and direction -> the number of its first feature
    free = 0
    for name, parameter in layer.named_parameters(recurse=False):
        kind, _, place = name.partition("_l")
        units = parameter.shape[0] if kind == "weight_hr" else layer.hidden_size
        place = f"projection{place}" if kind == "weight_hr" else place
        if place not in first_of:
            first_of[place] = free
            free += units
        numbers = first_of[place] + torch.arange(units).repeat(parameter.shape[0] // units)
        described[name] = numbers if parameter.ndim == 1 else numbers[:, None]
    return described


@register_features(nn.MultiheadAttention)
def _attention(layer: nn.MultiheadAttention) -> dict[str, int | Tensor]:
    q, k, v = torch.arange(3 * layer.embed_dim).view(3, -1)
    return {
        "in_proj_weight": 0,
        "in_proj_bias": 0,
        "q_proj_weight": q[:, None],
        "k_proj_weight": k[:, None],
        "v_proj_weight": v[:, None],
        "bias_k": k.view(1, 1, -1),
        "bias_v": v.view(1, 1, -1),
    }


# Layers of transformers, which is not imported: by their names.


def _rule_by_name(kind: type[nn.Module]) -> Rule | None:
    """Return the rule for a layer type of transformers, or None."""
    if kind.__module__.partition(".")[0] != "transformers":
        return None
    if kind.__name__.endswith("Experts"):
        return _experts
    return (lambda layer: {"weight": 1, "bias": 0}) if kind.__name__ == "Conv1D" else None


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
