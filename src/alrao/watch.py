"""Notice that another optimizer than alrao's trains the copies, or an evaluation in training mode."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from .warn import warn

version_of = attrgetter("_version")  # torch's count of the changes of a tensor in place
STEPS = 3  # steps of torch's optimizers on the copies of a head that are warned of: one or two may be a trial
EVALUATION = 10  # passes without gradients in training mode that count as an evaluation


@dataclass
class Unstepped:
    """A head that no optimizer of alrao has stepped on yet."""

    former: list[weakref.ref[nn.Parameter]]
    """The parameters of the layer that it has replaced."""
    steps: int = 0
    """Steps of other optimizers on it."""


_unstepped: weakref.WeakKeyDictionary[nn.Module, Unstepped] = weakref.WeakKeyDictionary()
_hooks: list[Any] = []  # the one hook, from the first head on


def watch_steps(head: nn.Module, former: Iterable[nn.Parameter] = ()) -> None:
    """Warn once if other optimizers train a head, or what it has replaced, until :func:`unwatch_steps`."""
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(note_step))
    _unstepped[head] = Unstepped([weakref.ref(p) for p in former])


def unwatch_steps(head: nn.Module) -> None:
    """Leave a head alone, because an optimizer of alrao has stepped."""
    if _unstepped:
        _unstepped.pop(head, None)


def note_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Note a step of an optimizer of torch: the hook for all of them."""
    if _unstepped and not torch.compiler.is_compiling():
        params = (p for group in optimizer.param_groups for p in group["params"])
        note_step_of(type(optimizer).__name__, params)


def note_step_of(optimizer: str, params: Iterable[Any]) -> None:
    """Note a step on parameters by an optimizer that does not train the head that they belong to."""
    trained = [each for each in _unstepped.items() if any(p.grad is not None for p in each[0].parameters())]
    given = {id(p) for p in params} if trained else set()
    for head, watched in trained:
        of_copies = any(id(p) in given for p in head.parameters())
        left = sum(1 for p in watched.former if id(p()) in given)
        watched.steps += bool(of_copies or left)
        if watched.steps < STEPS:
            continue
        unwatch_steps(head)
        if of_copies:
            warn(
                f"the copies of the head were trained by {optimizer} of torch, not by an "
                "optimizer of alrao, so the posterior stays uniform and no rates are drawn: build "
                "alrao.Auto(model) in its place, which needs no learning rate. For the paper's method on an "
                "optimizer of torch there are alrao.SGD, Adam and AdamW, and alrao.PerFeature for any other"
            )
        else:
            warn(
                f"{optimizer} was built before alrao.Alrao(net), which has put copies in the place of {left} "
                "of its parameters: the copies are not trained. Build the optimizer after that, "
                "optimizer = alrao.Auto(model)"
            )


class EvaluationWatch:
    """Warns once of an evaluation in training mode: passes without gradients, before a first ``eval()``.

    Args:
        what: the name of the network in the message.
        in_a_row: count only passes between which none has had gradients.
        more: the rest of the message.
    """

    def __init__(self, what: str, *, in_a_row: bool, more: str = "") -> None:
        self._what, self._in_a_row, self._more = what, in_a_row, more
        self._passes = 0

    def look(self, averages: Any, statistics: Any) -> bool:
        """Look at a pass in training mode; return False after the warning."""
        if torch.is_grad_enabled():
            self._passes = 0 if self._in_a_row else self._passes
        elif averages.differ and not statistics.resetting:
            self._passes += 1
        if self._passes < EVALUATION:
            return True
        warn(
            f"{EVALUATION} forward passes {'in a row ' * self._in_a_row}under no_grad() were in training "
            "mode, so they show the training weights, and not Auto's averaged weights: call "
            f"{self._what}.eval() before an evaluation, and {self._what}.train() after it{self._more}"
        )
        return False
