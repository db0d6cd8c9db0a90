"""Checks of an optimizer's state before it is loaded: what does not fit changes nothing."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Any

from torch import Tensor

from ..runtime.sharding import is_shard, placements_for

KEY = "alrao"
VERSION = 5  # of the format of ``state_dict()``, saved under KEY


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
    if version != VERSION:
        old = "it is of an alrao before its first release, finish the run with the one that began it"
        remedy = "upgrade alrao" if version > VERSION else old
        raise ValueError(f"the state has format {version}, this alrao reads format {VERSION}: {remedy}")


def check_shapes(params: dict[int, Tensor], state: dict[int, dict[str, Any]]) -> None:
    """Raise a ValueError if a tensor of the state does not fit its parameter."""
    for i, p in params.items():
        for key, value in state.get(i, {}).items():
            of_copies = isinstance(value, list)  # one by one, under PerFeature
            if of_copies and len(value) != len(p):
                raise ValueError(f"the state has {len(value)} copies, not {len(p)}: it is of another model")
            shape = p.shape[1:] if of_copies else p.shape
            dicts = value if of_copies else [value if isinstance(value, dict) else {key: value}]
            for name, x in (item for each in dicts for item in each.items()):
                if not isinstance(x, Tensor) or not x.ndim:
                    continue
                _check_processes(name, x, p)
                least = 1 if key in ("u", "inner") else inf  # of features, they have axes of length 1
                fits = (n in (m, least) for n, m in zip(x.shape, shape, strict=True))
                if x.ndim != len(shape) or not all(fits):
                    raise ValueError(
                        f"{name!r} of shape {tuple(x.shape)} does not fit a parameter of shape "
                        f"{tuple(p.shape)}: the state is of another model"
                    )


def settle(groups: list[dict[str, Any]], built: list[dict[str, Any]]) -> None:
    """Let loaded groups run as the optimizer was built to: with ``lr`` as a tensor, or as a number."""
    for group, before in zip(groups, built, strict=True):
        group["capturable"], lr = before["capturable"], before["lr"]
        if isinstance(lr, Tensor):
            group["lr"] = lr.fill_(group["lr"])  # whose memory a captured graph may read
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
