"""What the optimizers take: an Alrao model, a plain network or several, or named parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .features import register_features
from .known_layers import guess_axis
from .model import Alrao
from .plain import Plain

__all__ = ["Trainable", "find_alrao", "joined", "trained", "unwrap", "unwrapped"]

Trainable = nn.Module | Iterable[nn.Module] | Iterable[tuple[str, nn.Parameter]]
"""An Alrao model or a network, several networks, or pairs of a name and a parameter."""


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


def trained(model: Trainable) -> Alrao | Plain:
    """Return the Alrao model that an optimizer is to train, or a view of plain modules or named parameters.

    Args:
        model: an Alrao model or a network, possibly wrapped by DDP or ``torch.compile``; several networks; or
            pairs of a name and a parameter.
    """
    if isinstance(model, nn.Module):
        inner = find_alrao(model)
        if inner is not None:
            return inner
        net = unwrapped(model)
        _check(net)
        return Plain(net, [net])
    return Plain(*joined(model))


def joined(model: Any) -> tuple[nn.Module, list[nn.Module]]:
    """Return several plain networks, or named parameters, as one module; and the networks."""
    parts: list[Any] = list(model) if isinstance(model, Iterable) else []
    if parts and all(isinstance(part, nn.Module) for part in parts):
        modules = [unwrapped(part) for part in parts]
        for part, net in zip(parts, modules, strict=True):
            if find_alrao(part) is not None:
                raise TypeError(
                    "an optimizer trains one Alrao model, or several plain networks, got a list with an "
                    "Alrao model: convert all modules as one, Alrao(nn.ModuleList([encoder, decoder]), "
                    "output=…), or give each its own optimizer"
                )
            _check(net)
        return nn.ModuleList(modules), modules
    if parts and all(
        isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str) for part in parts
    ):
        return _module_of(parts), []
    found = type(parts[0] if parts else model).__name__
    raise TypeError(
        "alrao's optimizers take the model itself, not its parameters, several plain networks, or pairs of a "
        f"name and a parameter, got {found}: write alrao.Auto(net) or alrao.Auto(net.named_parameters()); "
        "parameter groups go into params="
    )


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
    for name, module in net.named_modules():
        if isinstance(module, Alrao):
            raise TypeError(
                f"{type(net).__name__} contains the Alrao model {name!r}, whose copies must be trained as "
                f"such: pass that one to the optimizer, alrao.Auto(net.{name})"
            )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in net.parameters()):
        raise ValueError(
            "the network has lazy layers whose parameters do not exist yet: run one forward pass before you "
            "build the optimizer"
        )


class _Named(nn.Module):
    """Parameters whose names start alike, without the layer that they belong to."""


@register_features(_Named)
def _named_features(layer: nn.Module) -> dict[str, int | Tensor]:
    return {name: guess_axis(name, p) for name, p in layer.named_parameters(recurse=False)}


def _module_of(named: list[tuple[str, Any]]) -> nn.Module:
    """Return a module with named parameters; those of one layer, by their names, share their features."""
    layers: dict[str, _Named] = {}
    seen: set[str] = set()
    for name, parameter in named:
        if not isinstance(parameter, nn.Parameter):
            raise TypeError(
                "named parameters are pairs of a name and an nn.Parameter, got "
                f"{type(parameter).__name__} for {name!r}: pass net.named_parameters(), or "
                "nn.Parameter(tensor)"
            )
        if name in seen or not name:
            raise ValueError(f"each parameter needs its own name, got {name!r} twice or an empty one")
        seen.add(name)
        layer, _, last = name.rpartition(".")
        layers.setdefault(layer, _Named()).register_parameter(last or name, parameter)
    return nn.ModuleList(layers.values())
