"""What the optimizers take: an Alrao model, a plain network or several, parameters or parameter groups."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .features import guess_axis, register_features
from .model import Alrao, converted
from .plain import Plain
from .runtime.sharding import refuse_flattened

Trainable = nn.Module | Iterable[nn.Module | Tensor | tuple[str, Tensor] | dict[str, Any]]
"""An Alrao model or a network, several networks, parameters, maybe with names, or groups of parameters."""

logger = logging.getLogger("alrao")


def find_alrao(model: Any) -> Alrao | None:
    """Return the Alrao model inside a wrapper (DDP, a compiled model, a weight average), if there is one."""
    inner: Any = model
    while isinstance(inner, nn.Module) and not isinstance(inner, Alrao):
        inner = getattr(inner, "_orig_mod", getattr(inner, "module", None))
    return inner if isinstance(inner, Alrao) else None


def unwrap(model: nn.Module) -> Alrao:
    """Return the Alrao model inside a wrapper: DDP, a compiled model, a weight average."""
    inner = find_alrao(model)
    if inner is None:
        raise TypeError(
            f"this needs a model made by alrao.Alrao, got {type(model).__name__}: write "
            "model = alrao.Alrao(net), then optimizer = alrao.Auto(model)"
        )
    return inner


UNSEEN = """. The mode of a network cannot be seen either: call optimizer.eval() before an evaluation or a \
checkpoint for inference, and optimizer.train() after it, or pass the network itself"""


def trained(
    model: Trainable | None, params: Iterable[Any] | None = None, *, switches: bool = False
) -> tuple[Alrao | Plain, Any]:
    """Return the model that an optimizer is to train, or a view of what is no Alrao model, and the groups.

    Args:
        model: a model, networks or parameters, as the optimizer was given them.
        params: parameters or groups, as the optimizer was given them.
        switches: whether the optimizer has other weights for evaluation mode.
    """
    if model is None:
        model, params = params, None
    if isinstance(model, nn.Module) and not _only_holds(model):
        refuse_flattened(model)
        inner = find_alrao(model)
        if inner is not None:
            return inner, params
        net = unwrapped(model)
        _check(net)
        return Plain(net, [net]), params
    parts = _parts(model)
    net, modules = joined(parts)
    refuse_flattened(net)
    if modules:
        return Plain(net, modules), params
    groups = parts if params is None else params
    found = _model_of(set(net.parameters()))
    if found is not None:
        return found, groups
    _check(net)
    logger.info(
        "%d parameters were given without their layers: names and shapes tell their features%s",
        sum(1 for _ in net.parameters()),
        UNSEEN if switches else "",
    )
    return Plain(net, []), groups


def _model_of(params: set[nn.Parameter]) -> Alrao | None:
    """Return the Alrao model that has some of the parameters, if there is one."""
    found = [model for model in converted if not params.isdisjoint(model.parameters())]
    found = [model for model in found if not params.isdisjoint(model.head.parameters())] or found
    if len(found) > 1:
        raise TypeError(
            f"an optimizer trains one Alrao model, got parameters of {len(found)}: convert all modules as "
            "one, Alrao(nn.ModuleList([encoder, decoder]), output=…), or give each its own optimizer"
        )
    return found[0] if found else None


def joined(model: Any) -> tuple[nn.ModuleList, list[nn.Module]]:
    """Return several plain networks, or parameters, as one module; and the networks."""
    parts = _parts(model)
    if isinstance(parts[0], nn.Module):
        modules = [unwrapped(part) for part in parts]
        together = nn.ModuleList(modules)
        for net in (together, *modules):
            _check(net)
        return together, modules
    params = [p for part in parts for p in (part["params"] if isinstance(part, dict) else [part])]
    named = all(isinstance(p, tuple) for p in params)
    layers = _named(params) if named else _unnamed([p[1] if isinstance(p, tuple) else p for p in params])
    return nn.ModuleList(layers), []


def _parts(model: Any) -> list[Any]:
    """Return networks, parameters, pairs of a name and a parameter, or groups of these, as lists."""
    one = isinstance(model, nn.Module)
    parts = (
        [model] if one else [] if isinstance(model, Tensor) or not isinstance(model, Iterable) else [*model]
    )
    while any(map(_only_holds, parts)):
        parts = [p for part in parts for p in (part.children() if _only_holds(part) else [part])]
    if parts and (all(isinstance(part, nn.Module) for part in parts) or all(map(_is_parameter, parts))):
        return parts
    groups = [{**part, "params": _listed(part.get("params"))} for part in parts if isinstance(part, dict)]
    if len(groups) != len(parts) or not all(_is_parameter(p) for group in groups for p in group["params"]):
        groups = []
    if any(group["params"] for group in groups):
        return groups
    found = type(parts[0] if parts else model).__name__
    raise TypeError(
        "alrao's optimizers take a model, several plain networks, parameters, pairs of a name and a "
        f"parameter, or parameter groups, got {found}: write alrao.Auto(net) or alrao.Auto(net.parameters())"
    )


def _only_holds(part: Any) -> bool:
    """Return whether this is a list of modules, which are called and evaluated without it."""
    if not isinstance(part, nn.ModuleList | nn.ModuleDict) or part._parameters:
        return False
    return not any(isinstance(child, Alrao) for child in part.children())


def _listed(params: Any) -> Any:
    """Return the parameters of a group, in a list; a set stays, for torch to refuse."""
    if isinstance(params, set):
        return params
    return [params] if isinstance(params, Tensor) or not isinstance(params, Iterable) else list(params)


def _is_parameter(part: Any) -> bool:
    named = isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)
    return isinstance(part[1] if named else part, Tensor)


def unwrapped(net: nn.Module) -> nn.Module:
    """Return the network inside DDP or a compiled module: the wrapper's mode is passed on to it."""
    while True:
        inner = getattr(net, "_orig_mod", None)
        if inner is None and isinstance(net, DataParallel | DistributedDataParallel):
            inner = net.module
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def _check(net: nn.Module) -> None:
    if isinstance(net, torch.jit.ScriptModule):
        raise TypeError(
            "the layers and the mode of a scripted or traced network cannot be seen: pass the original one, "
            "or its parameters, alrao.Auto(net.parameters()), and call optimizer.eval() before an evaluation"
        )
    for name, module in net.named_modules():
        if isinstance(module, Alrao):
            raise TypeError(
                f"an optimizer trains one Alrao model, got a {type(net).__name__} that contains "
                f"the Alrao model {name!r}: pass that one, alrao.Auto(model), or convert all modules as one, "
                "Alrao(nn.ModuleList([encoder, decoder]), output=…)"
            )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in net.parameters()):
        raise ValueError(
            "the network has lazy layers whose parameters do not exist yet: run one forward pass before you "
            "build the optimizer"
        )


class LooseParameters(nn.Module):
    """Parameters that share their features, without the layer that they belong to; any leaf tensors."""

    def __init__(self, own: dict[str, Tensor], axes: dict[str, int]) -> None:
        super().__init__()
        self._parameters.update(own)  # type: ignore[arg-type]
        self.axes = axes

    def get_parameter(self, target: str) -> Any:
        """Return a parameter, which torch insists on being an ``nn.Parameter``."""
        return self._parameters[target]


register_features(LooseParameters)(lambda layer: layer.axes)


def _unnamed(params: list[Tensor]) -> list[LooseParameters]:
    """Return layers of parameters, whose features are on axis 0."""
    layers: list[dict[str, Tensor]] = []
    before = None
    for p in params:
        if before is not None and p.ndim == 1 < before.ndim and len(p) == len(before):
            layers[-1]["bias"] = p
        else:
            layers.append({"weight": p})
        before = p
    return [LooseParameters(own, dict.fromkeys(own, 0)) for own in layers]


def _named(params: list[tuple[str, Tensor]]) -> list[LooseParameters]:
    """Return layers of named parameters; those of one layer, by their names, share their features."""
    layers: dict[str, dict[str, Tensor]] = {}
    for name, parameter in params:
        layer, _, last = name.rpartition(".")
        own = layers.setdefault(layer, {})
        if last in own or not last:
            raise ValueError(f"each parameter needs its own name, got {name!r} twice or an empty one")
        own[last] = parameter
    axes = [{name: guess_axis(name, p) for name, p in own.items()} for own in layers.values()]
    return list(map(LooseParameters, layers.values(), axes))
