"""Checks of an optimizer's state before it is loaded: what does not fit changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..rates import RateDistribution, describe, rebuild
from ..runtime.sharding import is_shard, placements_for

KEY = "alrao"
VERSION = 5
"""Of the format of ``state_dict()``, saved under :data:`KEY`."""

OLDEST = 3
"""Oldest format that is read. :class:`alrao.Auto` renames what it holds; other optimizers' is the same."""


def check_version(state_dict: dict[str, Any]) -> None:
    """Raise a ValueError for a state that is not an alrao optimizer's, or of another format."""
    # torch.distributed.checkpoint drops the version, and keeps what is in the groups.
    groups = state_dict.get("param_groups", [])
    ours = bool(groups) and all("distribution" in group for group in groups)
    version = state_dict.get(KEY, VERSION if ours else None)
    if version is None:
        raise ValueError(
            f"this is not the state of an alrao optimizer, it has {sorted(state_dict)}: load what the "
            "optimizer's own state_dict() returned"
        )
    if version > VERSION:
        raise ValueError(f"the state has format {version}, this alrao reads format {VERSION}: upgrade alrao")
    if version < OLDEST:
        raise ValueError(
            f"the state has format {version}, of an alrao before its first release, this one reads formats "
            f"{OLDEST} to {VERSION}: finish the run with the alrao that began it"
        )


def distributions(
    built: Iterable[RateDistribution], saved_groups: list[dict[str, Any]]
) -> list[RateDistribution]:
    """Return the distribution of each saved group: the optimizer's own where they are equal."""
    return [
        own if describe(own) == saved["distribution"] else rebuild(saved["distribution"])
        for own, saved in zip(built, saved_groups, strict=False)
    ]


def check_shapes(params: dict[int, Tensor], state: dict[int, dict[str, Any]]) -> None:
    """Raise a ValueError if a tensor of the state does not fit its parameter."""
    for i, p in params.items():
        for key, value in state.get(i, {}).items():
            if not isinstance(value, Tensor) or key in ("step", "k", "gain_mean", "gain_mean_size"):
                continue
            _check_processes(key, value, p)
            of_features = key in ("u", "gain", "last")
            if not (broadcasts(value.shape, p.shape) if of_features else value.shape == p.shape):
                raise ValueError(
                    f"{key!r} of shape {tuple(value.shape)} does not fit a parameter of shape "
                    f"{tuple(p.shape)}: the state is of another model"
                )


def settle(groups: list[dict[str, Any]], built: list[dict[str, Any]]) -> None:
    """Let loaded groups run as the optimizer was built to: with ``lr`` as a tensor, or as a number.

    A captured graph may read the memory of the ``lr`` of the groups before, ``built``.
    """
    for group, before in zip(groups, built, strict=True):
        group["capturable"], lr = before["capturable"], before["lr"]
        if isinstance(lr, Tensor):
            group["lr"] = lr.fill_(group["lr"])
        elif isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].item()


def _check_processes(key: str, value: Any, p: Any) -> None:
    """Raise a ValueError for a part of a state that was saved by another number of processes."""
    if not is_shard(value):
        return
    here = p.device_mesh.size() if is_shard(p) else 0
    if value.device_mesh.size() != here or value.placements != placements_for(value.shape, p):
        raise ValueError(
            f"{key!r} is this process's part of a state of {value.device_mesh.size()} processes, but the "
            f"parameter is spread over {here or 1}: save and load with torch.distributed.checkpoint, which "
            "shards the state again, or gather it first, by get_optimizer_state_dict(model, optimizer, "
            "options=StateDictOptions(full_state_dict=True))"
        )


class Unstepped(defaultdict[Tensor, dict[str, Any]]):
    """The state of an optimizer that has not stepped: it is false, though the rates are drawn.

    torch's distributed checkpoints then make a step with gradients of 0 and ``lr`` 0, so that the state has
    every tensor that there is to load.
    """

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> Any:
        return type(self), (dict,), None, None, iter(self.items())


def mark_empty(packed: dict[str, Any]) -> None:
    """Give every parameter a state: torch's distributed checkpoints take one without it for missing."""
    for group in packed["param_groups"]:
        for i in group["params"]:
            if not packed["state"].get(i):
                packed["state"][i] = {KEY: VERSION}


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Return whether a tensor with as many axes, some of length 1, broadcasts to a shape."""
    return len(shape) == len(to) and all(n in (1, m) for n, m in zip(shape, to, strict=True))
