"""Processes that train one model together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributed as dist

from ..runtime.sharding import fingerprint, is_shard

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


def check_copies(group: Any, copies: int, params: Iterable[Tensor]) -> None:
    """Raise a ValueError if the processes have heads of different sizes, and parameters are sharded.

    A forward pass with shards of different sizes would fail in the midst of an exchange, or wait for ever.
    """
    if count(group) > 1 and any(is_shard(p) for p in params):
        _refuse_other_copies(_gathered(copies, group))


def check_alike(group: Any, seed: int, copies: int, groups: Iterable[dict[str, Any]]) -> None:
    """Raise a ValueError if the processes train different models, or at different rates.

    They compare the ``seed`` of their rates, the copies of their heads, and parameters that are not sharded.
    """
    if count(group) < 2:
        return
    params: list[Tensor] = [p for each in groups for p in each["params"]]
    size = sum(p.numel() for p in params)
    marks = [fingerprint(p) for p in params if not is_shard(p) and not p.is_meta]
    found = _gathered((copies, size, seed, marks), group)
    of_copies, sizes, seeds, all_marks = zip(*found, strict=True)
    _refuse_other_copies(of_copies)
    if len(set(sizes)) > 1:
        raise ValueError(
            f"the processes train models of {_listed(sizes)} parameters, and must all train the same model: "
            "build one network in all of them"
        )
    if len(set(seeds)) > 1:
        raise ValueError(
            f"the {len(found)} processes have drawn different learning rates, from the seeds "
            f"{_listed(seeds)}: build the optimizer after torch.distributed is initialised, so that they "
            "share the first one's"
        )
    if any(each != marks for each in all_marks):
        differ = next(i for i, each in enumerate(all_marks) if each != all_marks[0])
        raise ValueError(
            f"the weights of processes 0 and {differ} differ, and must be the same in all: call "
            "torch.manual_seed with one number in all processes before the network is built, load the same "
            "weights, or wrap the model in DistributedDataParallel, which sends those of the first"
        )


def _gathered(value: Any, group: Any) -> list[Any]:
    found: list[Any] = [None] * count(group)
    dist.all_gather_object(found, value, group=group)
    return found


def _refuse_other_copies(of_copies: Iterable[int]) -> None:
    if len(set(of_copies)) > 1:
        raise ValueError(
            f"the processes train heads of {_listed(of_copies)} copies, and must all train the same model: "
            "build Alrao(net, copies=…) with one number in all of them"
        )


def _listed(values: Iterable[int]) -> str:
    return " and ".join(map(str, dict.fromkeys(values)))
