"""The first forward pass of a converted network: is the output layer the one that was taken for it?

Outputs that the network returns as they are, or in another shape, are the mixture's. If more is done with
them, each copy goes through the rest of the network, where that can be followed; else an error says why not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from . import evidence as reports
from .finite import alive
from .heads.after_output import Spread
from .heads.head import Head
from .heads.linear import LinearHead
from .heads.members import shown_output
from .output_layer import HOW, candidates, listed, qualified
from .tensors import LazyLogProbs, LogProbs, Prediction, Randomness, members_of
from .warn import forget_places, places_lost, warn
from .watch import version_of

MOST_CHECKED = 2**22  # the largest output whose numbers are checked: those of a large head take much memory


class OutputChangedError(ValueError):
    """The network returns its output layer's outputs neither as they are nor in another shape only."""

    output: Any = None
    """What the network returned: torch's own results for one layer whose outputs are the mixture's."""


class FirstForward:
    """The first forward pass, which is repeated if something follows the output layer."""

    def __init__(
        self, net: nn.Module, head: Head, name: str, guessed: bool, args: Any, kwargs: dict[str, Any]
    ) -> None:
        self.net, self.head, self.name, self.guessed = net, head, name, guessed
        self.args, self.kwargs = args, kwargs
        self.others = {n: m for n, m in candidates(net).items() if m is not head}

    def run(self) -> Any:
        """Return the output of the network, checked."""
        head = self.head
        start = Snapshot(self.net, [*self.args, *self.kwargs.values()])
        try:
            return self._pass()
        except OutputChangedError as error:
            if not isinstance(head, LinearHead) or head.spread:
                raise
            refusal = error
        followed_by = next(iter(places_lost()), "an operation that selects or changes outputs")
        try:
            start.restore()
            head.spread = True
            with head.register_forward_hook(_alike, prepend=True):
                self._check_copies(self._pass(), refusal.output)
            start.restore()
            head.spread = True
            out = self._pass()
        except Exception as error:
            head.spread = False
            raise refusal if isinstance(error, OutputChangedError) else error from None
        warn(
            f"the output layer {self.name!r} is followed by {followed_by}: each of the {head.copies} "
            "copies goes through the rest of the network, which is exact but takes longer. The output is "
            "logits, not log-probabilities"
        )
        return out

    def _pass(self) -> Any:
        """Return the output of one pass, after a look at what the layers took and returned."""
        produced: list[tuple[nn.Module, Any]] = []  # what the candidates returned
        watched = {self.head, *self.others.values()}
        layers = {m for m in self.net.modules() if any(p.ndim > 1 for p in m.parameters(recurse=False))}
        layers.discard(self.head)

        def look(module: nn.Module, args: Any, out: Any) -> None:
            if self.guessed and module in layers and any(isinstance(arg, Spread) for arg in args):
                raise OutputChangedError(
                    f"another layer, {qualified(module)}, takes the outputs of {self.name!r}"
                )
            if module in watched:
                produced.append((module, _origin(out)))

        forget_places()
        handles = [
            m.register_forward_hook(look)
            for m in layers | watched
            if not isinstance(m, torch.jit.ScriptModule)  # which takes none
        ]
        try:
            out = self.net(*self.args, **self.kwargs)
        finally:
            for handle in handles:
                handle.remove()
        if not any(module is self.head for module, _ in produced):
            raise ValueError(
                f"{self.name!r}, taken for the output layer, was not used in this forward pass: {HOW}, one of"
                f"\n{listed(self.others)}"
            )
        try:
            if self.guessed or places_lost():
                self._check_output(out, produced)
            self._check_meaning(out)
        except OutputChangedError as error:
            error.output = out
            raise
        return out

    def _check_output(self, out: Any, produced: list[tuple[nn.Module, Any]]) -> None:
        """Check that the network returns the head's outputs or a likelihood of them, and no other layer's."""
        tensors = _tensors(out)
        ours = [tensor for tensor in tensors if isinstance(tensor, LogProbs | Prediction) and tensor.intact]
        losses = [tensor for tensor in tensors if tensor.ndim == 0 and tensor.is_floating_point()]
        changed = bool(places_lost()) and not all(_is_likelihood(loss, self.head) for loss in losses)
        if changed or not (ours or losses):
            raise OutputChangedError(
                f"{self.name!r} was taken for the output layer, as the last layer registered, but the "
                "network does not return its output. If a softmax, a sigmoid or another function follows "
                "it, remove that: the output is log-probabilities already. If another layer is the output, "
                f"{HOW}. The other candidates are\n{listed(self.others) or '  (none)'}"
            )
        if not self.guessed or isinstance(getattr(out, "logits", None), LogProbs | Prediction):
            return  # beside auxiliary classifiers
        returned = [_origin(tensor) for tensor in tensors]
        sources = {module for module, source in produced if any(source is tensor for tensor in returned)}
        rivals = [name for name, module in self.others.items() if module in sources]
        if rivals:
            raise ValueError(
                f"the network returns the outputs of several layers, {self.name!r} and {rivals}, and "
                f"only one can have copies: {HOW}"
            )

    def _check_meaning(self, out: Any) -> None:
        """Check that outputs that are marked still are what they were: a view may have been changed."""
        reads = reports.is_readable(self.head.evidence)
        for tensor in _tensors(out):
            if isinstance(tensor, LazyLogProbs | Spread):
                continue  # those of Spread are compared with the plain network's
            known = reads and tensor.numel() <= MOST_CHECKED and not isinstance(tensor, FakeTensor)
            members = members_of(tensor) if isinstance(tensor, Prediction) else None
            right = not isinstance(tensor, LogProbs) or not tensor.intact or _are_distributions(tensor, known)
            if members is not None and known:
                right = not _differ(tensor, shown_output(members))
            if not right:
                raise OutputChangedError(self._different)

    def _check_copies(self, out: Any, expected: Any) -> None:
        """Check that the network returns for copies that are alike what it returned for one layer."""
        ours, plain = _tensors(out), _tensors(expected)
        shapes = [tensor.shape for tensor in ours], [tensor.shape for tensor in plain]
        if shapes[0] != shapes[1] or any(_differ(*pair) for pair in zip(ours, plain, strict=True)):
            raise ValueError(self._different)

    @property
    def _different(self) -> str:
        return (
            f"the network does something with the outputs of {self.name!r} that cannot be followed for its "
            "copies: what it returns is not what the plain network returns. Change no view of the outputs in "
            "place, or train the plain network, alrao.Auto(net)"
        )


class Snapshot:
    """What a forward pass or a load may change, to undo it; ``given`` are inputs or parameters."""

    def __init__(self, net: nn.Module, given: Iterable[Any]) -> None:
        given = list(given)
        self._saved = [(buffer, buffer.detach().clone()) for buffer in net.buffers()]
        tensors = [x for x in pytree.tree_leaves(given) if isinstance(x, Tensor) and not x.is_inference()]
        self._tensors = [(tensor, version_of(tensor), tensor.detach().clone()) for tensor in tensors]
        own = [d for m in net.modules() for d in (vars(m), m._buffers, m._parameters)]
        self._attributes = [(each, dict(each)) for each in own]
        self._objects = []
        for x in given:
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
        for tensor, version, values in self._tensors:
            if version_of(tensor) != version:
                tensor.copy_(values)
        self._numbers.restore()


def _alike(module: nn.Module, args: Any, out: Any) -> Spread:
    """Return the spread outputs of a head with those of the mixture for every copy."""
    mixture = out.log_softmax(out.axis) if out.members.likelihood == "categorical" else out
    copies = mixture.as_subclass(Tensor).expand_as(out.members.own)
    return Spread.showing(out.members._replace(own=copies, mixed=copies), out.axis)


def _tensors(out: Any) -> list[Tensor]:
    """Return the tensors in what a network returned."""
    if hasattr(out, "items"):  # dictionaries, and the output objects of Hugging Face
        out = [value for _, value in out.items()]
    elif hasattr(out, "__dataclass_fields__"):
        out = [getattr(out, field) for field in out.__dataclass_fields__]
    return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]


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


def _are_distributions(tensor: LogProbs, known: bool) -> bool:
    """Return whether rows are distributions or constant, as padding is; by their shape if not ``known``."""
    plain = tensor.detach().as_subclass(Tensor)
    axes = [axis for axis, size in enumerate(plain.shape) if size == tensor.classes]
    if not known or not plain.numel():
        return bool(axes)
    tolerance = max(1e-3, 30 * torch.finfo(plain.dtype).eps)
    rows = ((plain.logsumexp(i).abs() <= tolerance) | (plain.amax(i) == plain.amin(i)) for i in axes)
    return any(bool(each.all()) for each in rows)


def _is_likelihood(loss: Tensor, head: nn.Module) -> bool:
    """Return whether a loss that the network computes is a likelihood of the head's outputs as they are."""
    if not isinstance(head, LinearHead) or head.spread:
        return True
    if not loss.requires_grad:
        return False  # not known; the slower way is right in any case
    (gradient,) = torch.autograd.grad(loss, head.evidence, retain_graph=True, allow_unused=True)
    return gradient is None or not reports.read(gradient, head.copies).refused(maximize=False)


def _origin(tensor: Any) -> Any:
    """Return the tensor that this one is a view of."""
    return tensor._base if isinstance(tensor, Tensor) and tensor._base is not None else tensor
