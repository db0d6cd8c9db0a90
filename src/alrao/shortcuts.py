"""Shortcuts past torch's public interface, each with what it saves.

On a small network a step is a few dozen short operations, and what torch does around them in Python takes as
long as the arithmetic. ``python benchmarks/shortcuts.py`` measures the MLP of ``make bench`` with and without
each shortcut, in ten interleaved runs of 1,000 steps; one that saves less than 3 % is not kept. Figures are
medians over the runs, with the lowest and the highest, on a machine that did other work as well. What has no
figure is here because torch has no public way to do it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from .watch import note_step

profiler_is_on = _profiler_enabled

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Tensor)


def mark_only_if_watched(func: Callable[P, R]) -> Callable[P, R]:
    """Skip torch's wrapper around a step unless hooks or a profiler are active.

    Without it, and without asking :func:`profiler_is_on` before the wrapper around ``zero_grad``, a step is
    11.1 % slower (10.1 to 12.6; another series of ten runs: 9.7, from 8.4 to 12.5).
    """
    marked = Optimizer.profile_hook_step(func)

    @wraps(func)
    def step(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        optimizer = cast(Optimizer, args[0])
        watched = (
            profiler_is_on()
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or any(hook is not note_step for hook in _global_optimizer_post_hooks.values())
        )
        return (marked if watched else func)(*args, **kwargs)

    return step


def step_inside(optimizer: Optimizer) -> None:
    """Step an optimizer that works inside another one, whose step global hooks have seen already."""
    step: Any = type(optimizer).step
    if not hasattr(step, "hooked"):
        optimizer.step()
        return
    for before in optimizer._optimizer_step_pre_hooks.values():
        before(optimizer, (), {})
    step.__wrapped__(optimizer)
    for after in optimizer._optimizer_step_post_hooks.values():
        after(optimizer, (), {})


@contextmanager
def capturable_anywhere(kind: type[Optimizer]) -> Iterator[None]:
    """Let an optimizer of torch be ``capturable`` on every device."""
    name = "_get_capturable_supported_devices"
    modules = [sys.modules[each.__module__] for each in kind.__mro__ if each not in (Optimizer, object)]
    known = [] if torch.compiler.is_compiling() else [m for m in modules if hasattr(m, name)]
    former = [getattr(module, name) for module in known]
    for module, devices in zip(known, former, strict=True):
        setattr(module, name, lambda *_, devices=devices, **__: [*devices(), "cpu", "meta"])
    try:
        yield
    finally:
        for module, devices in zip(known, former, strict=True):
            setattr(module, name, devices)


def applied_as(kind: type[T], function: Any) -> Callable[..., T]:
    """Return a function that applies an autograd function, and marks its output: classes are on axis 1.

    ``Function.apply`` also handles torch.func's transforms, which a head has refused before; and
    ``as_subclass`` makes one more tensor, with one more node in the graph, of an output that nobody else has.
    Without it a step is 3.2 % slower (2.4 to 6.2; another series of ten runs: 2.9, from 1.5 to 3.7).
    """
    at_once: Any = super(torch.autograd.Function, function).apply

    def apply(*args: Any) -> T:
        out = at_once(*args)
        out.__class__ = kind
        out.axis = 1
        return out

    return apply


def inside_functional_transform() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp) is active: torch has no public test."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def _users(tensor: Tensor) -> int:
    users: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return users


ALONE = _users(torch.empty(1, device="cpu"))
"""Users of the memory of one tensor: some versions of torch count the storage's own object too."""


def storage_is_shared(tensor: Tensor) -> bool:
    """Return whether another tensor has the same memory: torch has no public test."""
    return _users(tensor) > ALONE
