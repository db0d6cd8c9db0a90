"""Find the output layer of a network, and verify that it is one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

from . import evidence as reports
from .contrib.adaptive import AdaptiveHead
from .finite import alive, finite_module
from .heads import LINEAR_HEADS, Head, LinearHead, Randomness, Spread, Window, mean_of_copies, mixture_logit
from .posterior import Posterior
from .runtime.sharding import plain_class
from .tensors import LazyLogProbs, LogProbs, Prediction, members_of, trail
from .warn import warn
from .watch import version_of

__all__ = [
    "OutputChangedError", "Snapshot", "alike", "candidates", "check_collapsed", "check_copies", "check_net",
    "choose", "declare_untied", "make_head", "names_of", "tied_elsewhere", "verify",
]  # fmt: skip

MOST_CHECKED = 2**22
"""The largest output whose numbers are checked: those of a large head take much memory."""

_HOW = 'name the output layer with Alrao(net, output="its.dotted.name") or output=its_module'

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
        return module.groups == 1 and (module.padding_mode == "zeros" or Window.of(module) is None)
    return True


def _computes_a_linear_layer(module: nn.Module) -> bool:
    """Return whether a layer of another package computes what :class:`torch.nn.Linear` does.

    Others keep a weight of that shape and normalise it, or add noise: copies of the weight would not.
    """
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
    """Return the layers that could be the output, by dotted name, in order of registration.

    A convolution that looks further than one place is one only in a network without linear layers.
    """
    found: dict[str, nn.Module] = {}
    inside_adaptive: set[nn.Module] = set()
    for name, module in net.named_modules():
        if isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            inside_adaptive.update(module.modules())
            found[name] = module
        elif module not in inside_adaptive and can_be_output(module):
            found[name] = module
    if any(not isinstance(module, _CONVOLUTIONS) for module in found.values()):
        found = {name: module for name, module in found.items() if Window.of(module) is None}
    return found


def listed(found: dict[str, nn.Module]) -> str:
    """Return the candidates as text, the last ones first."""
    rows = [f"  {name or '(the network itself)'}: {module}" for name, module in reversed(found.items())]
    more = f"\n  … and {len(rows) - 12} more" if len(rows) > 12 else ""
    return "\n".join(rows[:12]) + more


def _outside_base(net: nn.Module, found: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the candidates outside the base of a Hugging Face model, which may be registered last."""
    base = getattr(net, "base_model_prefix", None)
    if not base or not isinstance(base, str):
        return found
    return {name: module for name, module in found.items() if not name.startswith(f"{base}.")}


def choose(net: nn.Module, output: str | nn.Module | None) -> tuple[str, nn.Module]:
    """Return the output layer and its dotted name: the one asked for, or the last candidate."""
    found = candidates(net)
    if output is None:
        if not found:
            raise ValueError(
                f"{type(net).__name__} has no output layer to copy, neither a Linear layer nor a "
                "convolution nor an AdaptiveLogSoftmaxWithLoss: add one as its last layer"
            )
        return next(reversed((_outside_base(net, found) or found).items()))
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
            f"{name!r} is a {qualified(module)}, which computes something else than torch.nn.Linear, an "
            f"ungrouped convolution or torch.nn.AdaptiveLogSoftmaxWithLoss: choose among\n{listed(found)}"
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

    Its output layer may be ``untied`` from weights, and its copies have ``masked`` features that a plain
    layer would not.
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


class Snapshot:
    """What a forward pass may change, so that it can be repeated.

    Buffers, such as running statistics; attributes of modules, such as the state of a recurrent network; the
    arguments, such as a cache; and random numbers.
    """

    def __init__(self, net: nn.Module, inputs: list[Any]) -> None:
        self._saved = [(buffer, buffer.detach().clone()) for buffer in net.buffers()]
        tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor) and not x.is_inference()]
        self._inputs = [(tensor, version_of(tensor), tensor.detach().clone()) for tensor in tensors]
        self._attributes = [(vars(module), dict(vars(module))) for module in net.modules()]
        self._attributes += [(module._buffers, dict(module._buffers)) for module in net.modules()]
        self._objects = []
        for x in inputs:
            if hasattr(x, "__dict__") and not isinstance(x, Tensor | nn.Module):
                with suppress(Exception):  # some things cannot be copied: they are what they are then
                    self._objects.append((vars(x), copy.deepcopy(vars(x))))
        self._numbers = Randomness(net.parameters())

    @torch.no_grad()
    def restore(self) -> None:
        """Put it back."""
        objects = [(now, copy.deepcopy(before)) for now, before in self._objects]
        for now, before in (*self._attributes, *objects):
            now.clear()
            now.update(before)
        for buffer, values in self._saved:
            buffer.copy_(values)
        for tensor, version, values in self._inputs:
            if version_of(tensor) != version:
                tensor.copy_(values)
        self._numbers.restore()


class OutputChangedError(ValueError):
    """The network returns its output layer's outputs neither as they are nor in another shape only."""

    output: Any = None
    """What the network returned: torch's own results for one layer whose outputs are the mixture's."""


@contextmanager
def verify(net: nn.Module, head: Head, name: str, *, guessed: bool) -> Iterator[list[Any]]:
    """Watch one forward pass, and check the output that the caller appends to the list.

    The output layer was searched by the order of registration, which need not be the order of use.
    """
    called: list[nn.Module] = []
    others = {n: m for n, m in candidates(net).items() if m is not head}
    produced: list[tuple[Any, str]] = []  # what the other candidates returned, and which of them did
    handles = [head.register_forward_hook(lambda module, args, out: called.append(module))]

    def remember(other: str) -> Any:
        return lambda module, args, out: produced.append((_origin(out), other))

    def look_for_spread(module: nn.Module, args: Any) -> None:
        if guessed and any(isinstance(arg, Spread) for arg in args):
            raise OutputChangedError(f"another layer, {qualified(module)}, takes the outputs of {name!r}")

    weighty = [
        m for m in net.modules() if m is not head and any(p.ndim > 1 for p in m.parameters(recurse=False))
    ]
    handles += [module.register_forward_pre_hook(look_for_spread) for module in weighty]
    trail.clear()
    handles += [module.register_forward_hook(remember(n)) for n, module in others.items()]
    result: list[Any] = []
    try:
        yield result
        if not called:
            raise ValueError(
                f"{name!r}, taken for the output layer, was not used in this forward pass: {_HOW}, one of\n"
                f"{listed(others)}"
            )
        try:
            if guessed or trail.places():
                _check_output(result[0], head, name, produced, others, guessed=guessed)
            _check_meaning(result[0], name, reads=reports.is_readable(head.evidence))
        except OutputChangedError as error:
            error.output = result[0]
            raise
    finally:
        for handle in handles:
            handle.remove()


def _tensors(out: Any) -> list[Tensor]:
    """Return the tensors in what a network returned."""
    if hasattr(out, "items"):  # dictionaries, and the output objects of Hugging Face
        out = [value for _, value in out.items()]
    elif hasattr(out, "__dataclass_fields__"):
        out = [getattr(out, field) for field in out.__dataclass_fields__]
    return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


def _check_meaning(out: Any, name: str, *, reads: bool) -> None:
    """Check that outputs that are marked as such still are: a view of them may have been changed in place."""
    for tensor in _tensors(out) if reads else ():
        members = members_of(tensor) if isinstance(tensor, Prediction) else None
        if isinstance(tensor, LazyLogProbs | Spread | FakeTensor) or tensor.numel() > MOST_CHECKED:
            continue  # check_copies looks at those of Spread
        if members is not None:
            average = mean_of_copies if members.likelihood == "gaussian" else mixture_logit
            right = average(members.own.detach(), members.weights)
        elif isinstance(tensor, LogProbs) and tensor.axis is not None and not tensor.padded:
            right = tensor.detach().as_subclass(Tensor).log_softmax(tensor.axis)
        else:
            continue
        if _differ(tensor, right):
            raise OutputChangedError(_different(name))


@contextmanager
def alike(head: nn.Module) -> Iterator[None]:
    """Let all copies of a head whose outputs are spread return the outputs of their mixture."""

    def same(module: nn.Module, args: Any, out: Spread) -> Spread:
        members, axis = out.members, out.axis
        assert members is not None
        assert axis is not None
        mixture: Tensor = out.log_softmax(axis) if members.likelihood == "categorical" else out
        copies = mixture.as_subclass(Tensor).expand_as(members.own)
        return Spread.showing(members._replace(own=copies, mixed=copies), axis)

    handle = head.register_forward_hook(same, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def check_copies(out: Any, expected: Any, name: str) -> None:
    """Check that a network returns for copies that are alike what it returned for one layer."""
    ours, plain = _tensors(out), _tensors(expected)
    shapes = [tensor.shape for tensor in ours], [tensor.shape for tensor in plain]
    if shapes[0] != shapes[1] or any(_differ(*pair) for pair in zip(ours, plain, strict=True)):
        raise ValueError(_different(name))


def _different(name: str) -> str:
    return (
        f"the network does something with the outputs of {name!r} that cannot be followed for its copies: "
        "what it returns is not what the plain network returns. Change no view of the outputs in place, or "
        "train the plain network, alrao.Auto(net)"
    )


def _differ(ours: Tensor, plain: Tensor) -> bool:
    """Return whether two outputs differ by more than rounding."""
    ours, plain = (tensor.detach().as_subclass(Tensor) for tensor in (ours, plain))
    known = ours.device.type != "meta" and not isinstance(ours, FakeTensor)
    if not known or not ours.is_floating_point() or not ours.numel():
        return False
    eps = max(torch.finfo(ours.dtype).eps, torch.finfo(plain.dtype).eps)
    dtype = torch.promote_types(torch.promote_types(ours.dtype, plain.dtype), torch.float32)
    ours, plain = ours.to(dtype), plain.to(dtype)
    both = alive(ours) & alive(plain)
    scale = torch.where(both, plain.abs(), 0).amax() + 1
    apart = torch.where(both, ours - plain, 0).abs().amax()
    return bool(apart > max(1e-3, 30 * eps) * scale) or not torch.equal(alive(ours), alive(plain))


def _is_likelihood(loss: Tensor, head: nn.Module) -> bool:
    """Return whether a loss that the network computes is a likelihood of the head's outputs as they are."""
    if not isinstance(head, LinearHead) or head.spread:
        return True
    if not loss.requires_grad:
        return False  # not known; the slower way is right in any case
    (gradient,) = torch.autograd.grad(loss, head.evidence, retain_graph=True, allow_unused=True)
    return gradient is None or reports.read(gradient, head.copies).is_likelihood(maximize=False)


def _check_output(
    out: Any, head: nn.Module, name: str, produced: list[tuple[Any, str]], others: dict[str, nn.Module],
    *, guessed: bool,
) -> None:  # fmt: skip
    tensors = _tensors(out)
    ours = [tensor for tensor in tensors if isinstance(tensor, LogProbs | Prediction) and tensor.intact]
    losses = [tensor for tensor in tensors if tensor.ndim == 0 and tensor.is_floating_point()]
    changed = bool(trail.places()) and not all(_is_likelihood(loss, head) for loss in losses)
    if changed or not (ours or losses):
        raise OutputChangedError(
            f"{name!r} was taken for the output layer, as the last layer registered, but the network does "
            "not return its output. If a softmax, a sigmoid or another function follows it, remove that: the "
            f"output is log-probabilities already. If another layer is the output, {_HOW}. The other "
            f"candidates are\n{listed(others) or '  (none)'}"
        )
    named = isinstance(getattr(out, "logits", None), LogProbs | Prediction)  # beside auxiliary classifiers
    if not guessed or named:
        return
    returned = [_origin(tensor) for tensor in tensors]
    rivals = {other for source, other in produced if any(source is tensor for tensor in returned)}
    if rivals:
        raise ValueError(
            f"the network returns the outputs of several layers, {name!r} and {sorted(rivals)}, and only one "
            f"can have copies: {_HOW}"
        )


def _origin(tensor: Any) -> Any:
    """Return the tensor that this one is a view of."""
    return tensor._base if isinstance(tensor, Tensor) and tensor._base is not None else tensor
