"""Find the output layer of a network, and make the head that takes its place."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from .contrib.adaptive import AdaptiveHead
from .heads.head import Head
from .heads.linear import LINEAR_HEADS
from .posterior import Posterior
from .runtime.sharding import plain_class
from .warn import warn

HOW = 'name the output layer with Alrao(net, output="its.dotted.name") or output=its_module'
"""What to do if the wrong layer was taken."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KINDS = (nn.Linear, nn.AdaptiveLogSoftmaxWithLoss, *_CONVOLUTIONS)


def can_be_output(module: nn.Module) -> bool:
    """Return whether copies can take the place of this layer."""
    kind = next((kind for kind in _KINDS if isinstance(module, kind)), None)
    if kind is None or type(module).forward is not kind.forward:
        return kind in (None, nn.Linear) and _computes_a_linear_layer(module)
    # An attention's output projection is used through its weight, not called.
    if plain_class(module) is nn.modules.linear.NonDynamicallyQuantizableLinear:
        return False
    if isinstance(module, _CONVOLUTIONS):
        ones = (1,) * len(module.kernel_size)
        unpadded = module.padding in ("valid", "same", (0,) * len(ones))
        return module.kernel_size == module.stride == ones and module.groups == 1 and unpadded
    return True


def _computes_a_linear_layer(module: nn.Module) -> bool:
    """Return whether a layer of another package computes what :class:`torch.nn.Linear` does."""
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    if plain_class(module).__module__.startswith("torch.nn.") or weight is None or weight.ndim != 2:
        return False
    if not weight.is_floating_point() or not parameters.keys() <= {"weight", "bias"}:
        return False
    # With other weights than its own, which may be 0 or on another device; rows alike take no memory.
    outputs, inputs = weight.shape
    tried: dict[str, Tensor | None] = {"weight": torch.arange(inputs).cos().expand(outputs, inputs)}
    tried["bias"] = torch.linspace(1, 2, outputs) if "bias" in parameters else None
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = tried
    z = torch.linspace(-1, 2, inputs)[None]
    try:
        with torch.no_grad(), torch.device("cpu"):
            out = twin.forward(z)
    except Exception:
        return False  # it takes something else
    expected = F.linear(z, *tried.values())  # type: ignore[arg-type]
    return isinstance(out, Tensor) and out.shape == expected.shape and torch.allclose(out, expected)


def qualified(module: nn.Module) -> str:
    """Return the full name of a layer's class; torch's own are known without their module."""
    kind = plain_class(module)
    known = kind.__module__.startswith("torch.nn.")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"


def candidates(net: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that could be the output, by dotted name, in order of registration."""
    found: dict[str, nn.Module] = {}
    inside_adaptive: set[nn.Module] = set()
    for name, module in net.named_modules():
        if isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            inside_adaptive.update(module.modules())
            found[name] = module
        elif module not in inside_adaptive and can_be_output(module):
            found[name] = module
    return found


def listed(found: dict[str, nn.Module]) -> str:
    """Return the candidates as text, the last ones first."""
    rows = [f"  {name or '(the network itself)'}: {module}" for name, module in reversed(found.items())]
    more = f"\n  … and {len(rows) - 12} more" if len(rows) > 12 else ""
    return "\n".join(rows[:12]) + more


def choose(net: nn.Module, output: str | nn.Module | None) -> tuple[str, nn.Module]:
    """Return the output layer and its dotted name: the one asked for, or the last candidate."""
    found = candidates(net)
    if output is None:
        if not found:
            raise ValueError(
                f"{type(net).__name__} has no output layer to copy, neither a Linear layer nor a 1x1 "
                "convolution nor an AdaptiveLogSoftmaxWithLoss: add one as its last layer, or train the "
                "plain network, alrao.Auto(net)"
            )
        # The base of a Hugging Face model may be registered last.
        base = getattr(net, "base_model_prefix", None)
        outside = {n: m for n, m in found.items() if not (base and n.startswith(f"{base}."))}
        return next(reversed((outside or found).items()))
    named = net.named_modules(remove_duplicate=False)
    name, module = next((each for each in named if output in each), (None, None))
    if name is None or module is None:
        got = f"a {type(output).__name__}" if isinstance(output, nn.Module) else repr(output)
        raise ValueError(
            f"output takes one layer of the network, by dotted name or as a module, got {got}: choose among\n"
            f"{listed(found)}"
        )
    if not can_be_output(module):
        raise ValueError(
            f"{name!r} is a {qualified(module)}, which computes something else than torch.nn.Linear, an "
            f"ungrouped 1x1 convolution or torch.nn.AdaptiveLogSoftmaxWithLoss: choose among\n{listed(found)}"
        )
    return name, module


def names_of(net: nn.Module, layer: nn.Module) -> list[str]:
    """Return all dotted names under which a layer is registered."""
    return [name for name, module in net.named_modules(remove_duplicate=False) if module is layer]


def tied_elsewhere(net: nn.Module, layer: nn.Module) -> list[str]:
    """Return the names of parameters of other modules that are also the layer's (tied weights)."""
    own = set(layer.parameters())
    inside = tuple(f"{name}." if name else "" for name in names_of(net, layer))
    named = net.named_parameters(remove_duplicate=False)
    return [name for name, parameter in named if parameter in own and not name.startswith(inside)]


def declare_untied(plain: nn.Module, name: str) -> None:
    """Set the configuration of a Hugging Face model to untied; warn if there is none.

    The state of a network that was tied raises no error where it is loaded, and is wrong there.
    """
    parts = name.split(".")
    parents = [plain.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    configs: list[Any] = [getattr(module, "config", None) for module in parents]
    configs += [getattr(config, "get_text_config", lambda: None)() for config in configs]  # multimodal models
    tied = [config for config in configs if getattr(config, "tie_word_embeddings", None) is True]
    for config in tied:
        config.tie_word_embeddings = False  # or a load would tie them again
    if not tied:
        warn(
            f"the output layer {name!r} of the collapsed network has its own weights, and that of the "
            "original network was tied: loading this state there raises no error, and the outputs are "
            f"wrong. Untie it first: net.{name}.weight = nn.Parameter(net.{name}.weight.detach().clone())"
        )


def check_net(net: nn.Module) -> None:
    """Raise for a network that cannot be converted."""
    if isinstance(net, torch.jit.ScriptModule):
        raise TypeError("Alrao cannot convert a scripted or traced network: pass the original one")
    if not isinstance(net, nn.Module):
        raise TypeError(f"Alrao takes a network, a torch.nn.Module, got {type(net).__name__}")
    if any(isinstance(module, Head) for module in net.modules()):
        raise ValueError("this network has been converted already: use the Alrao model made of it")
    if any(isinstance(parameter, UninitializedParameter) for parameter in net.parameters()):
        raise ValueError("the network has lazy layers of unknown size: run a batch through it first")


def make_head(layer: nn.Module, name: str, likelihood: str | None, averaging: Posterior, keep: bool) -> Head:
    """Return the head that takes the place of an output layer; ``keep``: its copies start as the layer is."""
    if isinstance(layer, nn.AdaptiveLogSoftmaxWithLoss):
        if likelihood not in (None, "categorical"):
            raise ValueError(
                f"an adaptive softmax is categorical, got likelihood={likelihood!r}: leave likelihood out"
            )
        return AdaptiveHead(layer, averaging, keep=keep)
    likelihood = likelihood or "categorical"
    if likelihood not in LINEAR_HEADS:
        known = ", ".join(map(repr, LINEAR_HEADS))
        raise ValueError(f"likelihood must be one of {known}, got {likelihood!r}")
    if likelihood == "categorical" and next(layer.parameters()).shape[0] == 1:
        raise ValueError(
            f"the output layer {name!r} has a single output, and a softmax over one class is always 1: pass "
            "likelihood='bernoulli' for a binary target, 'gaussian' for regression"
        )
    return LINEAR_HEADS[likelihood](layer, averaging, keep=keep)
