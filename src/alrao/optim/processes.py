"""Processes that train one model together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributed as dist

__all__ = ["add_up", "common_seed", "count"]

DISTRIBUTED = dist.is_available()


def count(group: Any) -> int:
    """Return the number of processes in a group; None is the group of all."""
    return dist.get_world_size(group) if DISTRIBUTED and dist.is_initialized() else 1


def common_seed(generator: Generator | None, group: Any) -> int:
    """Return a seed, the same in all processes."""
    seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    if count(group) > 1:
        seeds = [seed]
        first = 0 if group is None else dist.get_global_rank(group, 0)
        dist.broadcast_object_list(seeds, src=first, group=group)
        seed = seeds[0]
    return seed


def add_up(gradient: Tensor | None, like: Tensor, group: Any) -> Tensor | None:
    """Return the sum of a gradient over all processes; that of a process without one counts as 0."""
    if count(group) > 1:
        gradient = torch.zeros_like(like) if gradient is None else gradient.clone()
        dist.all_reduce(gradient, group=group)
    return gradient
