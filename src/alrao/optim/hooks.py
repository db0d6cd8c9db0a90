"""What torch does around a step for hooks and profilers, done only if there are any."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from torch._C._autograd import _profiler_enabled as profiler_is_on
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

__all__ = ["only_if_watched", "profiler_is_on"]

P = ParamSpec("P")
R = TypeVar("R")


def only_if_watched(func: Callable[P, R]) -> Callable[P, R]:
    """A step with hooks and a mark for the profiler, which takes long, where there are any."""
    marked = Optimizer.profile_hook_step(func)

    @wraps(func)
    def step(*args: P.args, **kwargs: P.kwargs) -> R:
        optimizer = cast(Optimizer, args[0])
        watched = (
            profiler_is_on()
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )
        return (marked if watched else func)(*args, **kwargs)

    return step
