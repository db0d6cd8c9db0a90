r"""Which weights are in the parameters: training weights to train, averaged weights to evaluate.

Auto works with three sets of weights (:mod:`alrao.auto.step`). A parameter holds :math:`y` in training mode
and :math:`x` in evaluation mode; ``state[p]["z"]`` is :math:`z`. In evaluation mode ``state[p]["y"]`` is a
copy of :math:`y`, because arithmetic would not bring back the same bits. During the search
``state[p]["x"]`` is :math:`x`, and ``state[p]["start"]`` the first weights. With ``swap=False`` parameters
hold :math:`y` in both modes.

**Weights that something else has changed**, since the optimizer wrote them: masked, clamped, renormalised,
loaded. An entry that has changed is taken for the new value of all three sets, so that what is evaluated is
what the program has written. A change of all entries of a parameter restarts its average. In evaluation mode
a change is found by computing :math:`x` again, in training mode by :mod:`alrao.runtime.edits`; the second
time a parameter is changed, a copy of what was written tells which entries.

**A loaded state** holds a fingerprint of the weights that it belongs to, so that they are recognised whether
the model or the optimizer is loaded first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..runtime.edits import Written
from ..runtime.sharding import fingerprint, local, resharded
from ..statistics import AveragedStatistics
from ..warn import warn
from .step import average_of

__all__ = ["Averages", "training_weights", "wide_dtype"]

KEPT = "start", "x", "z"
"""Sets of weights in the state of a parameter, beside a copy ``y`` in evaluation mode."""


def wide_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type in which averages of a parameter are kept: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def training_weights(p: Tensor, state: dict[str, Any]) -> Tensor:
    """Return a parameter at the precision of its average; the parameter itself, if it has that."""
    rest = state.get("rest")
    return p.detach() if rest is None else p.detach().to(wide_dtype(p)) + rest.to(p.device)


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
        self.on_device = False
        """Whether the next step reads nothing: then nothing else may take a change for another one."""
        self._expected: dict[Tensor, int] = {}  # fingerprints of the weights that belong to a loaded state
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
        own = set(self._params())
        for other in list(_averaging):
            if other is not self and not own.isdisjoint(other._params()):
                other.retired, other.state, other.groups, other.written = True, {}, [], Written()
                if other.statistics is not None:
                    other.statistics.stop()
        _averaging.add(self)
        model.averaged_by(self)

    def _params(self) -> list[Tensor]:
        return [p for group in self.groups for p in group["params"]]

    # The modes.

    def place(self, training: bool) -> None:
        """Put the weights for a mode into the parameters, where they are not there yet."""
        training = training or not self.swap
        if self.retired or (self.evaluating != training and not self._expected):
            return
        with torch.inference_mode(False), torch.no_grad():
            if self.recognise():  # else the weights of the loaded state are still to come
                self.leave() if training else self.enter()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the averaged weights for a moment, in training mode too, without a change to the graph."""
        replaced = []
        if self.swap and not self.evaluating and not self._expected and not self.retired:
            with torch.no_grad():
                self.notice_changes()
                averaged = dict(self._averaged())
                for p in averaged.keys() | self.renormed:
                    replaced.append((p, p.data))
                    p.data = self.average(p, averaged[p]).to(p.dtype) if p in averaged else p.data.clone()
        statistics = self.statistics if replaced else None
        try:
            with nullcontext() if statistics is None else statistics.shown():
                yield
        finally:
            for p, data in replaced:
                p.data = data

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

    def _without_average(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the parameters that have not moved since the search, with z, which they are still."""
        for p in self._params():
            state = self.state.get(p, {})
            if "z" in state and not isinstance(state["k"], Tensor) and state["k"] == 0:
                yield p, state["z"]

    def average(self, p: Tensor, beta: float) -> Tensor:
        """Return the averaged weights of a parameter."""
        state = self.state[p]
        if "x" in state:
            return state["x"].to(p.device)
        y, z = training_weights(state.get("y", p), state), state["z"]
        wide = torch.promote_types(y.dtype, z.dtype)  # the model may have been cast or moved since
        return average_of(y.to(wide), z.to(y.device, wide), beta)

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
            for p in self.renormed.intersection(self._params()):
                self.state[p].setdefault("y", p.detach().clone())
        self.evaluating = True
        if self.statistics is not None:
            self.statistics.show()

    def leave(self) -> None:
        """Put the training weights back, bit for bit."""
        if not self.evaluating:
            return
        changed = False
        with resharded(self.sharded_modules):
            for p in self.renormed & self.state.keys():
                p.copy_(self.state[p].pop("y", p))
            for p, beta in self._averaged():
                state = self.state[p]
                if "y" not in state:
                    continue
                # As it was, if the model has been cast since.
                x = self.average(p, beta).to(state["y"].dtype).to(p.dtype)
                now = p.detach().clone()
                p.copy_(state.pop("y"))
                changed |= self._adopt(p, now, local(now) != local(x))
            for p, z in self._without_average():
                y = training_weights(p, self.state[p])
                changed |= self._adopt(p, p.detach(), local(y) != local(z.to(y)))
        self.evaluating = False
        if self.statistics is not None:
            self.statistics.hide()
        self.note(as_before=not changed)

    # Weights that something else has changed.

    def note(self, *, reads: bool = True, as_before: bool = False) -> None:
        """Remember what the parameters hold: called after everything that the optimizer writes.

        Args:
            reads: whether numbers may be read on the host.
            as_before: they hold what they held when they were last noted, maybe in another type.
        """
        if self.swap and self.differ:
            self.head.training_weights = not self.evaluating
        if not self.evaluating and not self._expected:
            known = [p for p, each in self.state.items() if "z" in each or "x" in each or "start" in each]
            edited = [p for p, state in self.state.items() if "edited" in state]
            self.written.note(known, edited, reads=reads, as_before=as_before)

    def notice_changes(self, *, reads: bool = True) -> bool:
        """Take entries that something else has changed for their new values; return whether there may be any.

        Args:
            reads: whether numbers may be read on the host.
        """
        found = [] if self.evaluating else self.written.changed(reads=reads)
        for p, changed in found:
            self.state[p]["edited"] = True  # a copy tells single entries from now on, in a resumed run too
            self._adopt(p, p.detach(), changed, reads=reads and not self.on_device)
        return bool(found)

    def _adopt(self, p: Tensor, now: Tensor, changed: Tensor | None, *, reads: bool = True) -> bool:
        """Take changed entries for the new values of all sets; None is all, and restarts the average."""
        state = self.state[p]
        if changed is not None and reads and not changed.is_meta:
            if not bool(changed.any()):
                return False
            changed = None if bool(changed.all()) else changed
        if changed is None:
            state.pop("y", None)
            if "k" in state:
                state["k"] = state["k"] * 0  # not in place: parameters share counters
        for each in (p.detach(), *(state[key] for key in (*KEPT, "y") if key in state)):
            part, new = local(each), local(now)
            part.copy_(new if changed is None else torch.where(changed, new.to(part.dtype), part))
        if "rest" in state:
            rest = local(state["rest"])
            rest.zero_() if changed is None else rest.masked_fill_(changed, 0.0)
        return True

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
        params = self._params()
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
        self.evaluating, self.written = evaluating, Written()
        if all(fingerprint(p) == mark for p, mark in self._expected.items()):
            self.recognise()

    @torch.no_grad()
    def loaded(self, training: bool) -> None:
        """Take weights that were loaded into the model for what it trains, or for those of a loaded state."""
        if self._expected:
            self.place(training)
        elif self.evaluating:
            averaged = dict(self._averaged())
            for p in self.renormed & self.state.keys():  # now: a forward pass would change them
                x = self.average(p, averaged[p]).to(p.dtype) if p in averaged else self.state[p].get("y", p)
                self._adopt(p, p.detach(), local(p.detach()) != local(x.detach()))
                self.state[p].setdefault("y", p.detach().clone())
        elif not any(p.is_meta for p in self._params()):
            self.written.forgive()

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
            self._adopt(p, p.detach(), None)
        if self.evaluating:
            self._rebuild()
        if strange:
            warn(
                f"{len(strange)} parameters are not those that the optimizer's state was saved with, so "
                "their averages start again: load the model and the optimizer from the same checkpoint"
            )
        self._expected = {}
        self.note()
        return True

    def _are_training_weights(self, found: dict[Tensor, int]) -> bool:
        """Return whether the model was saved in training mode, though the optimizer was not."""
        return all(
            mark == (fingerprint(self.state[p]["y"]) if "y" in self.state[p] else self._expected[p])
            for p, mark in found.items()
        )

    def _rebuild(self) -> None:
        """Compute the training weights that a distributed checkpoint has no room for, from both others."""
        for p, beta in self._averaged():
            state = self.state[p]
            if "y" not in state and "z" in state:
                state["y"] = torch.lerp(state["z"], p.detach().to(wide_dtype(p)), beta).to(p.dtype)
                p.copy_(self.average(p, beta))  # up to rounding; another value would count as a change


_averaging: weakref.WeakSet[Averages] = weakref.WeakSet()
"""All that average, so that no two of them write to the same parameters."""


def _renormed(model: Any) -> set[Tensor]:
    """Return the parameters that a forward pass changes, in evaluation mode too: that is no training."""
    layers = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = model.net.modules()
    return {m.weight for m in modules if isinstance(m, layers) and m.max_norm is not None}
