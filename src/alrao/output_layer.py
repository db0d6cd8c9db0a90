"""Find the output layer of a network, and verify that it is one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .finite import finite_module
from .tensors import LogProbs, Prediction
from .warn import warn

__all__ = [
    "candidates",
    "check_collapsed",
    "choose",
    "declare_untied",
    "names_of",
    "tied_elsewhere",
    "verify",
]

_HOW = 'name the output layer with Alrao(net, output="its.dotted.name") or output=its_module'


_KINDS = (nn.Linear, nn.AdaptiveLogSoftmaxWithLoss, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def can_be_output(module: nn.Module) -> bool:
    """Return whether copies can take the place of this layer."""
    kind = next((kind for kind in _KINDS if isinstance(module, kind)), None)
    if kind is None or type(module).forward is not kind.forward:
        return kind in (None, nn.Linear) and _computes_a_linear_layer(module)
    # An attention's output projection is used through its weight, not called.
    if type(module) is nn.modules.linear.NonDynamicallyQuantizableLinear:
        return False
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        ones = (1,) * len(module.kernel_size)
        return (
            module.kernel_size == ones
            and module.stride == ones
            and module.groups == 1
            and module.padding in ("valid", "same", (0,) * len(ones))
        )
    return True


def _computes_a_linear_layer(module: nn.Module) -> bool:
    """Return whether a layer of another package computes what :class:`torch.nn.Linear` does.

    Others keep a weight of that shape and normalise it, or add noise: copies of the weight would not.
    """
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    if type(module).__module__.startswith("torch.nn.") or weight is None or weight.ndim != 2:
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
    kind = type(module)
    return (
        kind.__name__ if kind.__module__.startswith("torch.nn.") else f"{kind.__module__}.{kind.__qualname__}"
    )


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
                "convolution nor an AdaptiveLogSoftmaxWithLoss: add one as its last layer"
            )
        return next(reversed(found.items()))
    if isinstance(output, nn.Module):
        names = {module: name for name, module in net.named_modules()}
        if output not in names:
            raise ValueError(
                f"output={type(output).__name__}(…) is not a module of {type(net).__name__}: pass one that is"
            )
        name, module = names[output], output
    elif isinstance(output, str):
        name = output
        modules = dict(net.named_modules(remove_duplicate=False))
        if name not in modules:
            raise ValueError(f"the network has no module {name!r}: choose among\n{listed(found)}")
        module = modules[name]
    else:
        raise TypeError(
            f"output takes one layer, by dotted name or as a module, got {output!r}: choose the one whose "
            "loss trains the network"
        )
    if not can_be_output(module):
        raise ValueError(
            f"{name!r} is a {qualified(module)}, which computes something else than torch.nn.Linear, a 1x1 "
            f"convolution or torch.nn.AdaptiveLogSoftmaxWithLoss: choose among\n{listed(found)}"
        )
    return name, module


def names_of(net: nn.Module, layer: nn.Module) -> list[str]:
    """Return all dotted names under which a layer is registered."""
    return [name for name, module in net.named_modules(remove_duplicate=False) if module is layer]


def tied_elsewhere(net: nn.Module, layer: nn.Module) -> list[str]:
    """Return the names of parameters of other modules that are also the layer's (tied weights)."""
    own = set(layer.parameters())
    inside = set(layer.modules())
    return [
        f"{name}.{parameter_name}" if name else parameter_name
        for name, module in net.named_modules()
        if module not in inside
        for parameter_name, parameter in module.named_parameters(recurse=False)
        if parameter in own
    ]


def declare_untied(net: nn.Module, output: str) -> bool:
    """Set the configuration of a Hugging Face model to untied; return whether there is one.

    Otherwise the embedding's weights would replace those of the output layer when the model is loaded.
    """
    found = False
    parts = output.split(".")
    for depth in range(len(parts)):
        config: Any = getattr(net.get_submodule(".".join(parts[:depth])), "config", None)
        nested: Any = getattr(config, "get_text_config", lambda: None)()  # of a multimodal model
        for each in (config, nested):
            if getattr(each, "tie_word_embeddings", None) is True:
                each.tie_word_embeddings = False
                found = True
    return found


def check_collapsed(plain: nn.Module, name: str, *, untied: bool, masked: bool) -> None:
    """Warn of a collapsed network that would be wrong without an error.

    Args:
        plain: the network.
        name: its output layer.
        untied: whether that was tied to other weights before the conversion.
        masked: whether the copies ignored features in the last evaluation.
    """
    if untied and not declare_untied(plain, name):
        warn(
            f"the output layer {name!r} of the collapsed network has its own weights, and that of the "
            "original network was tied: loading this state there raises no error, and the outputs are "
            f"wrong. Untie it first: net.{name}.weight = nn.Parameter(net.{name}.weight.detach().clone())"
        )
    if masked or not finite_module(plain):
        warn(
            "the collapsed network returns numbers that are not finite where the mixture does not: in "
            "the last evaluation the output layer got features that are not finite or too large, which "
            "the copies ignore and a plain layer does not. Train longer, or lower the upper end of the "
            "interval"
        )


@contextmanager
def verify(net: nn.Module, head: nn.Module, name: str, *, guessed: bool) -> Iterator[list[Any]]:
    """Watch one forward pass, and check the output that the caller appends to the list.

    The output layer was searched by the order of registration, which need not be the order of use.
    """
    called: list[nn.Module] = []
    others = {n: m for n, m in candidates(net).items() if m is not head}
    produced: list[tuple[Any, str]] = []  # what the other candidates returned, and which of them did
    handles = [head.register_forward_hook(lambda module, args, out: called.append(module))]

    def remember(other: str) -> Any:
        return lambda module, args, out: produced.append((_origin(out), other))

    handles += [module.register_forward_hook(remember(n)) for n, module in others.items()]
    result: list[Any] = []
    try:
        yield result
        if not called:
            raise ValueError(
                f"{name!r}, taken for the output layer, was not used in this forward pass: {_HOW}, one of\n"
                f"{listed(others)}"
            )
        if guessed:
            _check_output(result[0], name, produced, others)
    finally:
        for handle in handles:
            handle.remove()


def _check_output(out: Any, name: str, produced: list[tuple[Any, str]], others: dict[str, nn.Module]) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(_as_tree(out)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, LogProbs | Prediction) and tensor.intact]
    if not ours and not any(tensor.ndim == 0 for tensor in tensors):
        raise ValueError(
            f"{name!r} was taken for the output layer, as the last layer registered, but the network does "
            "not return its output. If a softmax, a sigmoid or another function follows it, remove that: the "
            f"output is log-probabilities already. If another layer is the output, {_HOW}. The other "
            f"candidates are\n{listed(others) or '  (none)'}"
        )
    if _says_which(out):
        return
    returned = [_origin(tensor) for tensor in tensors]
    rivals = {other for source, other in produced if any(source is tensor for tensor in returned)}
    if rivals:
        raise ValueError(
            f"the network returns the outputs of several layers, {name!r} and {sorted(rivals)}, and only one "
            f"can have copies: {_HOW}"
        )


def _as_tree(out: Any) -> Any:
    if hasattr(out, "items"):  # dictionaries, and the output objects of Hugging Face
        return [value for _, value in out.items()]
    if hasattr(out, "__dataclass_fields__"):
        return [getattr(out, field) for field in out.__dataclass_fields__]
    return out


def _says_which(out: Any) -> bool:
    """Return whether the output object names one part of it the logits (auxiliary classifiers)."""
    return isinstance(getattr(out, "logits", None), LogProbs)


def _origin(tensor: Any) -> Any:
    """Return the tensor that this one is a view of."""
    return tensor._base if isinstance(tensor, Tensor) and tensor._base is not None else tensor
