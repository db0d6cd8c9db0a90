"""Notice that another optimizer than alrao's trains the copies of a head, or that nothing does."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from .warn import warn

__all__ = ["StepWatch", "ZeroWatch", "version_of"]

version_of = attrgetter("_version")
"""torch's count of the changes of a tensor in place."""

CHANGES = 3
"""How many times the weights must have changed from one forward pass to the next: once may be by hand."""

ZEROS = 10
"""Steps in a row with a gradient of 0 after which the copies of a head are said not to train."""


class ZeroWatch:
    """Warns once of a head whose gradient is 0 in :data:`ZEROS` steps in a row.

    It looks at every tenth gradient, and at each one after a 0, because a look takes time.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._zeros = 0

    def look(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Look at a head's parameters at the end of a step; return False after the warning."""
        self._steps += 1
        if self._zeros == 0 and self._steps % ZEROS != 1:
            return True
        trained = [p for p in parameters if type(p) is nn.Parameter and p.grad is not None]
        if not trained or any(bool(p.grad.any()) for p in trained if p.grad is not None):
            self._zeros = 0
            return True
        self._zeros += 1
        if self._zeros < ZEROS:
            return True
        warn(
            f"the gradient of the copies of the head was 0 in {ZEROS} steps in a row, so they do not learn. "
            "If the loss is not 0 as well, check that it is computed from the model's output, that no custom "
            "torch.autograd.Function stands between the two, and that the copies are finite: lower the upper "
            "end of the interval if they are not"
        )
        return False


class StepWatch:
    """Counts changes of a head's weights between forward passes, until an optimizer of alrao steps.

    torch counts the changes of a tensor in place, so nothing is read from a device. Weights that are loaded,
    or moved to another device or type, do not count, nor do those without a gradient, as of a target network
    that follows the trained one. Fused optimizers of torch leave that count as it is;
    their steps are noticed by a hook, which is removed when an optimizer of alrao is built.
    """

    def __init__(self) -> None:
        self._seen: tuple[Tensor, Tensor, int, int] | None = None
        self._changes = 0
        self._head: weakref.ref[nn.Module] | None = None
        self._stepped = False

    def follow(self, head: nn.Module) -> None:
        """Notice the steps of all optimizers of torch that train the head, until :meth:`unfollow`."""
        self._head = weakref.ref(head)
        _following.add(self)
        _update_hook()

    def unfollow(self) -> None:
        """Leave the hook, because an optimizer of alrao has been built."""
        _following.discard(self)
        _update_hook()

    def note(self, optimizer: Optimizer) -> None:
        """Note a step of an optimizer, if it changes the head's weights."""
        head = None if self._head is None else self._head()
        weight = None if head is None else next(head.parameters(), None)
        if weight is not None and weight.grad is not None:
            groups = optimizer.param_groups
            self._stepped |= any(each is weight for group in groups for each in group["params"])

    def look(self, weight: nn.Parameter, leaf: Tensor, loads: int) -> bool:
        """Look at a parameter of the head before a training pass; return False after the warning.

        The leaf for the evidence is replaced when the head is moved; ``loads`` counts loads of weights.
        """
        if type(weight) is not nn.Parameter or weight.is_inference() or not weight.requires_grad:
            return True  # a shard is gathered again for each pass
        now = (weight, leaf, loads, version_of(weight))
        before, self._seen = self._seen, now
        stepped, self._stepped = self._stepped, False
        if before is None or before[0] is not weight or before[1] is not leaf or before[2] != loads:
            self._changes = 0
        elif stepped or (before[3] != now[3] and (weight.grad is not None or leaf.grad is not None)):
            self._changes += 1
        if self._changes < CHANGES:
            return True
        warn(
            f"the copies of the head were changed {CHANGES} times, but not by an optimizer of alrao, so the "
            "posterior stays uniform and no rates are drawn. Give the program alrao.AdamW(model) in place of "
            "torch.optim.AdamW(model.parameters()), alrao.SGD(model) in place of torch.optim.SGD, or "
            "alrao.PerFeature(torch.optim.NAdam, model) for any other"
        )
        return False


_following: weakref.WeakSet[StepWatch] = weakref.WeakSet()
_hooks: list[Any] = []
"""The one global hook, present only while a model has no optimizer of alrao: it would cost each step."""


def _update_hook() -> None:
    if _following and not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_note))
    elif not _following and _hooks:
        _hooks.pop().remove()


def _note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for each in list(_following):
            each.note(optimizer)
