"""Processes that train one model together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributed as dist

from ..runtime.sharding import fingerprint, is_shard


def count(group: Any) -> int:
    """Return the number of processes in a group; None is the group of all."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def common_seed(generator: Generator | None, group: Any) -> int:
    """Return a seed, the same in all processes."""
    seeds = [int(torch.randint(2**62, (), generator=generator, device="cpu"))]
    if count(group) > 1:
        first = 0 if group is None else dist.get_global_rank(group, 0)
        dist.broadcast_object_list(seeds, src=first, group=group)
    return seeds[0]


def add_up(gradient: Tensor | None, like: Tensor, group: Any) -> Tensor | None:
    """Return the sum of a gradient over all processes; that of a process without one counts as 0."""
    if count(group) > 1:
        gradient = torch.zeros_like(like) if gradient is None else gradient.clone()
        dist.all_reduce(gradient, group=group)
    return gradient


def check_copies(group: Any, copies: int, params: Iterable[Tensor]) -> None:
    """Raise a ValueError for heads of different sizes with shards, whose exchange would wait for ever."""
    if count(group) > 1 and any(is_shard(p) for p in params):
        _compare([("copies", copies)], group)


def check_alike(group: Any, seed: int, copies: int, groups: Iterable[dict[str, Any]]) -> None:
    """Raise a ValueError if the processes train different models, or at different rates."""
    if count(group) > 1:
        params: list[Tensor] = [p for each in groups for p in each["params"]]
        marks = [fingerprint(p) for p in params if not is_shard(p) and not p.is_meta]
        size = sum(p.numel() for p in params)
        _compare([("copies", copies), ("size", size), ("seed", seed), ("weights", marks)], group)


def _compare(mine: list[tuple[str, Any]], group: Any) -> None:
    found: list[Any] = [None] * count(group)
    dist.all_gather_object(found, mine, group=group)
    for i, (name, _) in enumerate(mine):
        values = [of_one[i][1] for of_one in found]
        other = next((j for j, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            known = "" if name == "weights" else " and ".join(map(str, dict.fromkeys(values)))
            raise ValueError(MESSAGES[name].format(values=known, count=len(found), other=other))


MESSAGES = {
    "copies": "the processes train heads of {values} copies, and must all train the same model: build "
    "Alrao(net, copies=…) with one number in all of them",
    "size": "the processes train models of {values} parameters, and must all train the same model: build "
    "one network in all of them",
    "seed": "the {count} processes have drawn different learning rates, from the seeds {values}: build the "
    "optimizer after torch.distributed is initialised, so that they share the first one's",
    "weights": "the weights of processes 0 and {other} differ, and must be the same in all: call "
    "torch.manual_seed with one number in all processes before the network is built, load the same weights, "
    "or wrap the model in DistributedDataParallel, which sends those of the first",
}
"""What is wrong, by what differs between the processes."""
