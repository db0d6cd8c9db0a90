r"""Which weights are in the parameters: training weights to train, averaged weights to evaluate.

Auto works with three sets of weights (:mod:`alrao.auto.step`). A parameter holds :math:`y` in training mode
and :math:`x` in evaluation mode; ``state[p]["z"]`` is :math:`z`. In evaluation mode ``state[p]["y"]`` is a
copy of :math:`y`, because arithmetic would not bring back the same bits. During the search
``state[p]["x"]`` is :math:`x`, and ``state[p]["start"]`` the first weights. With ``swap=False`` parameters
hold :math:`y` in both modes.

**Weights that something else has changed**, since the optimizer wrote them: masked, clamped, renormalised,
loaded. An entry that has changed is taken for the new value of all three sets, so that what is evaluated is
what the program has written. A change of all entries of a parameter restarts its average. In evaluation mode
a change is found by computing :math:`x` again. In training mode it is found by a checksum; the second time a
parameter is changed, a copy of what was written tells which entries.

**A loaded state** holds a fingerprint of the weights that it belongs to, so that they are recognised whether
the model or the optimizer is loaded first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..runtime.sharding import fingerprint, local, resharded
from ..statistics import AveragedStatistics
from ..warn import warn
from .step import average_of

__all__ = ["Averages", "Written", "training_weights", "wide_dtype"]

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

KEPT = "start", "x", "z"
"""Sets of weights in the state of a parameter."""


def wide_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type in which averages of a parameter are kept: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


class Averages:
    """The averaged weights of a model, and which weights its parameters hold.

    The model keeps this object, not the optimizer, so that a model whose optimizer has been dropped can
    still be evaluated at its averaged weights.

    Args:
        optimizer: the one that averages; its state and its groups are shared, no reference to it is held.
        swap: whether to put averaged weights into the parameters in evaluation mode.
    """

    def __init__(self, optimizer: Any, swap: bool) -> None:
        self.swap = swap
        self.evaluating = False
        """Whether the parameters hold averaged weights."""
        self.retired = False
        """Whether another optimizer has taken over the parameters."""
        self._expected: dict[Tensor, int] = {}  # fingerprints of the weights that belong to a loaded state
        self._looked_at: list[int] = []
        self.statistics: AveragedStatistics | None = None
        """BatchNorm's statistics at the averaged weights, if they are computed."""
        self.head = optimizer.model.head
        self.renormed = _renormed(optimizer.model)
        self.written = Written()
        self.follow(optimizer)

    def follow(self, optimizer: Any) -> None:
        """Share the state and the groups of the optimizer, after it has replaced them."""
        self.state, self.groups = optimizer.state, optimizer.param_groups
        self.sharded_modules = optimizer.sharded_modules

    def take_over(self, model: Any) -> None:
        """Average the weights of a model, in place of any other that has some of the same parameters."""
        own = {p for group in self.groups for p in group["params"]}
        for other in list(_averaging):
            if other is not self and any(not own.isdisjoint(group["params"]) for group in other.groups):
                other.retired, other.state, other.groups = True, {}, []
                other.written.forget()
                if other.statistics is not None:
                    other.statistics.stop()
        _averaging.add(self)
        model.averaged_by(self)

    # The modes.

    def place(self, training: bool) -> None:
        """Put the weights for a mode into the parameters, where they are not there yet."""
        training = training or not self.swap
        if self.retired or (self.evaluating != training and not self._expected):
            return
        with torch.inference_mode(False), torch.no_grad():
            if self._expected and not self.recognise():
                return  # the weights of the loaded state are still to come
            self.leave() if training else self.enter()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the averaged weights for a moment, in training mode too, without a change to the graph."""
        replaced = []
        if self.swap and not self.evaluating and not self._expected and not self.retired:
            with torch.no_grad():
                self.notice_changes()
                for p, beta in self._averaged():
                    replaced.append((p, p.data))
                    p.data = self.average(p, beta).to(p.dtype)
        try:
            yield
        finally:
            for p, data in replaced:
                p.data = data

    @property
    def computes_nothing(self) -> bool:
        """Whether parameters are on ``meta``, where there is nothing to read."""
        return any(p.is_meta for group in self.groups for p in group["params"])

    @property
    def differ(self) -> bool:
        """Whether averaged weights differ from the training weights."""
        return next(self._averaged(), None) is not None

    def _averaged(self) -> Iterator[tuple[Tensor, float]]:
        """Return the parameters that have an average, with their beta."""
        for group in self.groups:
            for p in group["params"]:
                state = self.state.get(p, {})
                k = state.get("k", 0)
                if "x" in state or isinstance(k, Tensor) or k > 0:  # a tensor is not read: at 0, x is y is z
                    yield p, group["beta"]

    def average(self, p: Tensor, beta: float) -> Tensor:
        """Return the averaged weights of a parameter."""
        state = self.state[p]
        if "x" in state:
            return state["x"].to(p.device)
        y, z = training_weights(state.get("y", p), state), state["z"]
        if y.dtype != z.dtype or y.device != z.device:  # the model was cast or moved after the last step
            wide = torch.promote_types(y.dtype, z.dtype)
            y, z = y.to(wide), z.to(y.device, wide)
        return average_of(y, z, beta)

    def enter(self) -> None:
        """Put the averaged weights into the parameters."""
        if self.evaluating:
            return
        if self.notice_changes():
            self.note()
        with resharded(self.sharded_modules):
            for p, beta in self._averaged():
                x = self.average(p, beta)
                self.state[p]["y"] = p.detach().clone()
                p.copy_(x)
                self.head.training_weights = False
            for p in self.renormed & {p for group in self.groups for p in group["params"]}:
                self.state[p].setdefault("y", p.detach().clone())
        self.evaluating = True
        if self.statistics is not None:
            self.statistics.show()

    def leave(self) -> None:
        """Put the training weights back, bit for bit."""
        if not self.evaluating:
            return
        as_noted = self.written.knows
        with resharded(self.sharded_modules):
            for p in self.renormed & self.state.keys():
                p.copy_(self.state[p].pop("y", p))
            for p, beta in self._averaged():
                if "y" not in self.state[p]:
                    continue
                y = self.state[p]["y"]
                # As it was, if the model has been cast since.
                x = self.average(p, beta).to(y.dtype).to(p.dtype)
                now = p.detach().clone()
                del self.state[p]["y"]
                p.copy_(y)
                changed = local(now) != local(x)
                if changed.is_meta:
                    continue
                if bool(changed.all()):
                    self.restart(p, now)
                    as_noted = False
                elif bool(changed.any()):
                    self._take_over(p, now, changed)
                    as_noted = False
        self.evaluating = False
        if self.statistics is not None:
            self.statistics.hide()
        self.note(as_before=as_noted)

    # Weights that something else has changed.

    def note(self, *, reads: bool = True, as_before: bool = False) -> None:
        """Remember what the parameters hold: called after everything that the optimizer writes.

        Args:
            reads: whether numbers may be read on the host.
            as_before: they hold what they held when they were last noted, maybe in another type.
        """
        if self.evaluating or self._expected:
            self.written.forget()
        elif as_before:
            self.written.note_versions()
        else:
            known = [p for p, state in self.state.items() if any(key in state for key in KEPT)]
            self.written.note(known, [p for p in known if "edited" in self.state[p]], reads=reads)
        if self.swap and self.differ:
            self.head.training_weights = not self.evaluating

    def notice_changes(self, *, reads: bool = True) -> bool:
        """Take entries of the parameters that something else has changed for their new values.

        Args:
            reads: whether numbers may be read on the host.

        Returns:
            Whether there may be any.
        """
        if self.evaluating:
            return False
        reads = reads and not self.computes_nothing
        found = list(self.written.changed(reads=reads))
        for p, changed in found:
            self.state[p]["edited"] = True  # a copy tells single entries from now on, in a resumed run too
            if changed is None or (reads and bool(changed.all())):
                self.restart(p)
            else:
                self._take_over(p, p.detach(), changed)
        return bool(found)

    def _take_over(self, p: Tensor, now: Tensor, changed: Tensor) -> None:
        """Take the new value of changed entries for that of all three sets."""
        state = self.state[p]
        for each in (p.detach(), *(state[key] for key in KEPT if key in state)):
            part = local(each)
            part.copy_(torch.where(changed, local(now).to(part.dtype), part))
        if "rest" in state:
            local(state["rest"]).masked_fill_(changed, 0.0)

    def restart(self, p: Tensor, now: Tensor | None = None) -> None:
        """Start the average of a parameter again, from its present value or another."""
        state = self.state[p]
        state.pop("y", None)
        if now is not None:
            p.copy_(now)
        for key in KEPT:
            if key in state:
                state[key].copy_(p)
        if "k" in state:
            state["k"] = torch.zeros_like(state["k"]) if isinstance(state["k"], Tensor) else 0
        if "rest" in state:
            state["rest"].zero_()

    @torch.no_grad()
    def transform(self, change: Callable[[], None]) -> None:
        """Apply an affine change of the weights to everything that is kept of them.

        Args:
            change: changes parameters of the model in place, each by an affine function of the parameters. It
                is called once for each set of weights: the present ones, z, and so on.
        """
        evaluating = self.evaluating
        self.leave()
        self.notice_changes()
        params = [p for group in self.groups for p in group["params"]]
        present = [p.data for p in params]
        for key in KEPT:
            kept = [self.state[p].get(key) for p in params]
            if all(each is None for each in kept):
                continue
            for p, data, each in zip(params, present, kept, strict=True):
                p.data = data.clone() if each is None else each
            try:
                change()
            finally:
                for p, data in zip(params, present, strict=True):
                    p.data = data
        change()
        self.note()
        if evaluating:
            self.enter()

    # Checkpoints.

    def expect(self, fingerprints: dict[Tensor, int], evaluating: bool) -> None:
        """Wait for the weights that a loaded state belongs to, unless the parameters hold them already.

        Those on ``meta`` cannot be told apart.
        """
        self._expected = {p: mark for p, mark in fingerprints.items() if not p.is_meta}
        self._looked_at = []
        self.evaluating = evaluating
        self.written = Written()
        if all(fingerprint(p) == mark for p, mark in self._expected.items()):
            self.recognise()

    def loaded(self, training: bool) -> None:
        """Take weights that were loaded into the model for what it trains, or for those of a loaded state."""
        if self._expected:
            self.place(training)
        elif not self.evaluating and not self.computes_nothing:
            self.written.forgive()
        elif self.evaluating:
            averaged = dict(self._averaged())
            with torch.no_grad():
                for p in self.renormed & self.state.keys():
                    y = self.state[p].get("y")
                    x = self.average(p, averaged[p]).to(p.dtype) if p in averaged else y
                    if x is None or not torch.equal(local(p.detach()), local(x)):
                        self.restart(p)
                        self.state[p]["y"] = p.detach().clone()

    @property
    def expecting(self) -> bool:
        """Whether the weights of a loaded state are still to come."""
        return bool(self._expected)

    def fingerprint(self, p: Tensor) -> int:
        """Return the fingerprint of the weights that belong to the present state."""
        known = self._expected.get(p)
        return fingerprint(p) if known is None else known

    def recognise(self, *, stepping: bool = False) -> bool:
        """Return whether the model has the weights of the loaded state.

        Args:
            stepping: the weights are trained now: start again from those that are not the state's.
        """
        if not self._expected:
            return True
        looked_at = [p._version for p in self._expected]
        if looked_at == self._looked_at and not stepping:
            return False
        self._looked_at = looked_at
        found = {p: fingerprint(p) for p in self._expected}
        strange = [p for p, expected in self._expected.items() if found[p] != expected]
        if strange and self.evaluating and self._are_training_weights(found):
            strange, self.evaluating = [], False
            for p in self._expected:
                self.state[p].pop("y", None)
            if self.statistics is not None:
                self.statistics.take_gathered()
        if strange and not stepping:
            return False
        for p in strange:
            self.restart(p)
        if self.evaluating:
            self._rebuild()
        if strange:
            warn(
                f"{len(strange)} parameters are not those that the optimizer's state was saved with, so "
                "their averages start again: load the model and the optimizer from the same checkpoint"
            )
        self._expected, self._looked_at = {}, []
        self.note()
        return True

    def _rebuild(self) -> None:
        """Compute the training weights that a distributed checkpoint has no room for, from both others."""
        for p, beta in self._averaged():
            state = self.state[p]
            if "y" not in state and "z" in state:
                state["y"] = torch.lerp(state["z"], p.detach().to(wide_dtype(p)), beta).to(p.dtype)
                p.copy_(self.average(p, beta))  # up to rounding; another value would count as a change

    def _are_training_weights(self, found: dict[Tensor, int]) -> bool:
        """Return whether the model was saved in training mode, though the optimizer was not."""
        return all(
            mark == (fingerprint(self.state[p]["y"]) if "y" in self.state[p] else self._expected[p])
            for p, mark in found.items()
        )


_averaging: weakref.WeakSet[Averages] = weakref.WeakSet()
"""All that average, so that no two of them write to the same parameters."""


def training_weights(p: Tensor, state: dict[str, Any]) -> Tensor:
    """Return a parameter at the precision of its average; the parameter itself, if it has that."""
    rest = state.get("rest")
    return p.detach() if rest is None else p.detach().to(wide_dtype(p)) + rest.to(p.device)


def _renormed(model: Any) -> set[Tensor]:
    """Return the parameters that a forward pass changes, in evaluation mode too: that is no training."""
    layers = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = model.net.modules()
    return {m.weight for m in modules if isinstance(m, layers) and m.max_norm is not None}


class Written:
    """Notices parameters that something else has changed since they were noted.

    On the CPU every change is noticed, by a checksum of the bits. Elsewhere a read would stall the device:
    a change that torch counts is noticed at once, and one through ``.data``, which it does not count, by
    the norm and only where numbers may be read. A parameter that has been changed once is copied from then
    on, so that single entries can be told.
    """

    def __init__(self) -> None:
        self._params: list[Tensor] = []
        self._marks: list[Tensor] = []
        self._versions: list[int] = []
        self._kinds: list[Any] = []
        self._copies: dict[Tensor, Tensor] = {}

    def note(self, params: list[Tensor], copied: list[Tensor], *, reads: bool) -> None:
        """Remember what parameters hold.

        Args:
            params: the parameters.
            copied: those of which a copy is kept.
            reads: whether numbers may be read on the host.
        """
        self._params = params
        self._marks = _marks(self._params, exact=reads)
        self.note_versions()
        self._kinds = [(p.dtype, p.device) for p in self._params]
        for p in copied:
            if p in self._copies:
                self._copies[p].copy_(local(p.detach()))
            else:
                self._copies[p] = local(p.detach()).clone()

    @property
    def knows(self) -> bool:
        """Whether parameters have been noted, and not forgotten since."""
        return bool(self._params)

    def note_versions(self) -> None:
        """Count all writes so far as none."""
        self._versions = [p._version for p in self._params]

    def forgive(self) -> None:
        """Count changes that left a parameter as it was, such as a load of the same weights, as none."""
        if self._params and all(map(_is_as_wide, self._params, self._kinds)):
            for i, differs in enumerate(self._differ()):
                if not differs:
                    self._versions[i] = self._params[i]._version

    def _differ(self) -> list[bool]:
        """Return which parameters have other marks than before, in the types that they had then."""
        before = torch.stack(self._marks)
        pairs = zip(self._params, self._kinds, strict=True)
        parts = [p.detach().to(dtype) for p, (dtype, _) in pairs]
        now = torch.stack(_marks(parts, exact=before.dtype == torch.int64))
        found: list[bool] = (now != before).tolist()
        return found

    def forget(self) -> None:
        """Notice nothing until parameters are noted again."""
        self._params, self._marks, self._versions = [], [], []

    def changed(self, *, reads: bool) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Return the parameters that have changed, and where; None is everywhere.

        Args:
            reads: whether numbers may be read on the host.
        """
        if not self._params or not all(map(_is_as_wide, self._params, self._kinds)):
            return  # cast or moved: the optimizer has not stepped since
        changed = [p._version != version for p, version in zip(self._params, self._versions, strict=True)]
        if reads:
            exact = self._marks[0].dtype == torch.int64
            pairs = zip(changed, self._differ(), strict=True)
            changed = [differs or (counted and not exact) for counted, differs in pairs]
        for p, found in zip(self._params, changed, strict=True):
            if p in self._copies and (found or not reads):
                yield p, local(p.detach()) != self._copies[p]
            elif found:
                yield p, None


def _marks(params: list[Tensor], *, exact: bool) -> list[Tensor]:
    """Return a number for each parameter that changes with its bits; see :class:`Written`."""
    parts = [x if type(x) is Tensor else local(x) for x in (p.detach() for p in params)]
    if not parts or (exact and all(part.is_cpu for part in parts)):
        return [_checksum(part) for part in parts]
    wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    return list(torch._foreach_norm(parts, dtype=wide))


def _is_as_wide(p: Tensor, kind: Any) -> bool:
    """Return whether a parameter still has the bits that it had in a type, on a device."""
    dtype, device = kind
    return p.device == device and torch.promote_types(p.dtype, dtype) == p.dtype


def _checksum(x: Tensor) -> Tensor:
    flat = x.contiguous().view(-1)
    if flat.numel() * flat.element_size() % 8 == 0:
        return flat.view(torch.int64).sum()
    return flat.view(INTEGERS[flat.element_size()]).sum()
