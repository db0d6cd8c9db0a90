"""Shards: parameters of which each process holds a part, as torch's ``DTensor``.

An update of a parameter is elementwise, so each process computes on its own part, as on a plain tensor, and
no communication is needed. What an optimizer keeps of a parameter is sharded as the parameter is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

if dist.is_available():
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Replicate

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

FACTORS = -7046029254386353131, -4658895280553007687
"""Those of the generator SplitMix64, which turn successive numbers into ones that look random."""

PIECE = 1 << 22  # how many entries of a tensor are multiplied at a time


def is_shard(x: Any) -> bool:
    """Return whether each process holds a part of ``x``, or a replica of it that torch knows of."""
    return dist.is_available() and isinstance(x, DTensor)


def local(x: Any) -> Any:
    """Return this process's part of a tensor, without a place in a graph; anything else as it is."""
    if isinstance(x, dict):
        return {key: local(value) for key, value in x.items()}
    if not is_shard(x):
        return x
    with torch.no_grad():
        return x.to_local()


def gathered(x: Any) -> Any:
    """Return the whole of a tensor, from the parts of all processes; anything else as it is."""
    return x.full_tensor() if is_shard(x) else x


def placements_for(shape: torch.Size, parameter: Any) -> tuple[Any, ...]:
    """Return how a tensor that broadcasts to a sharded parameter is sharded: along the axes that it has."""
    of_axes = [(p, getattr(p, "dim", None)) for p in parameter.placements]
    alike = [n == m for n, m in zip(shape, parameter.shape, strict=False)]
    kept = len(shape) == parameter.ndim
    return tuple(p if kept and axis is not None and alike[axis] else Replicate() for p, axis in of_axes)


def sharded_as(x: Tensor, parameter: Tensor) -> Tensor:
    """Return a tensor, which every process has and which broadcasts to a parameter, sharded as that is."""
    if not is_shard(parameter) or is_shard(x):
        return x
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
    whole = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=placements_for(x.shape, parameter))


def shard_state(value: Any, parameter: Tensor) -> Any:
    """Return what is kept of a sharded parameter, sharded as it is; whole tensors are cut."""
    if isinstance(value, dict):
        return {key: shard_state(each, parameter) for key, each in value.items()}
    return sharded_as(value, parameter) if isinstance(value, Tensor) and value.ndim else value


def part_of(x: Tensor, shape: torch.Size, parameter: Any) -> Tensor:
    """Return the tensor of a ``shape``, sharded as a parameter is, of which ``x`` is this process's part."""
    placements, stride = placements_for(shape, parameter), torch.empty(shape, device="meta").stride()
    mesh = parameter.device_mesh
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=shape, stride=stride)


def local_gradient(parameter: Any) -> Any:
    """Return this process's part of the gradient of a parameter, if it has one."""
    grad = parameter.grad
    if is_shard(grad) and grad.placements != parameter.placements:
        grad = grad.redistribute(placements=parameter.placements)
    return local(grad)


def whole_state(value: Any, parameter: Tensor) -> Any:
    """Return what is kept of this process's part of a parameter, sharded as that is."""
    if isinstance(value, dict):
        return {key: whole_state(each, parameter) for key, each in value.items()}
    shared = isinstance(value, Tensor) and value.ndim > 0 and is_shard(parameter)
    return part_of(value, parameter.shape, parameter) if shared else value


def places_along(axis: int, parameter: Tensor) -> Tensor:
    """Return the places along an axis of a parameter that this process's part of it has."""
    places = torch.arange(parameter.shape[axis], device=parameter.device)
    places = places.view([-1 if each == axis else 1 for each in range(parameter.ndim)])
    return local(sharded_as(places, parameter)).flatten()


def over_shards(x: Tensor, parameter: Any, *, highest: bool = False) -> Tensor:
    """Return the sum, or the highest, of what each process has computed from its part of a parameter."""
    if not is_shard(parameter):
        return x
    x = x.detach().clone()
    for axis, placement in enumerate(parameter.placements):
        if not isinstance(placement, Replicate):
            op = dist.ReduceOp.MAX if highest else dist.ReduceOp.SUM
            dist.all_reduce(x, op, group=parameter.device_mesh.get_group(axis))
    return x


def fingerprint(parameter: Tensor) -> int:
    """Return a number that is the same for the same bits in the same order, and hardly ever for others.

    It is a sum of the bits of each entry times a number for its place, in integers: the same on every device
    and for every way to shard the parameter.
    """
    values = gathered(parameter.detach()).contiguous()
    if values.element_size() in INTEGERS:
        bits = values.view(INTEGERS[values.element_size()])
    else:
        bits = values.unsqueeze(-1).view(torch.int32)  # the low bits of float64 are often all 0
    for axis in reversed(range(bits.ndim if bits.numel() else 0)):
        x = (torch.arange(bits.shape[axis], device=bits.device) + (axis + 1 << 40)) * FACTORS[0]
        factors = (x ^ x >> 31) * FACTORS[1] | 1  # odd numbers for the places along the axis
        pieces = bits.reshape(-1, len(factors)).split(max(1, PIECE // len(factors)))
        bits = torch.cat([(piece * factors).sum(-1) for piece in pieces]).view(bits.shape[:-1])
    return int(bits.sum(dtype=torch.int64))


# torch's fully_shard.


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module; ``fully_shard`` puts another one in front of it."""
    kind = type(module)
    return kind.__mro__[2] if dist.is_available() and isinstance(module, FSDPModule) else kind


def sharded_modules(model: Any) -> list[Any]:
    """Return the modules of a model, or of a view of one, that ``fully_shard`` was applied to."""
    root: nn.Module = model if isinstance(model, nn.Module) else model.net
    return [m for m in root.modules() if dist.is_available() and isinstance(m, FSDPModule)]


def refuse_flattened(model: nn.Module) -> None:
    """Raise a TypeError for the older FSDP, whose parameters have no features."""
    wrapped = any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())
    if wrapped or any(getattr(p, "_fsdp_flattened", False) for p in model.parameters()):
        raise TypeError(
            "FullyShardedDataParallel joins parameters to flat ones, whose features are not known: shard "
            "with fully_shard(model) of torch.distributed.fsdp (FSDP2), then build the optimizer"
        )


def refuse_copy(model: nn.Module) -> None:
    """Raise a RuntimeError for a model that ``fully_shard`` was applied to: torch does not copy it."""
    if sharded_modules(model):
        raise RuntimeError(
            "a model sharded by fully_shard cannot be copied: call model.eval(), gather its state by "
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), load that into an "
            "Alrao model that is not sharded, and collapse this one"
        )


def names_of_parameters(model: Any) -> dict[Tensor, str]:
    """Return the names of a model's parameters, or of those of a view of one."""
    return {p: name for name, p in model.net.named_parameters()}


def replaced(model: Any, names: dict[Tensor, str], groups: Iterable[dict[str, Any]]) -> dict[Tensor, Tensor]:
    """Return the shards that have taken the place of parameters, in the model or in an optimizer's groups."""
    given = [p for group in groups for p in group["params"]]
    if all(p in names for p in given) and names.keys() == names_of_parameters(model).keys():
        return {}
    for module in sharded_modules(model):
        module.reshard()
    now = {name: p for p, name in names_of_parameters(model).items()}
    new = {p: now[name] for p, name in names.items() if is_shard(now.get(name)) and now[name] is not p}
    strange = [p for p in given if p not in names and all(p is not each for each in now.values())]
    if strange:
        raise RuntimeError(
            "the optimizer was given parameters that are not the model's, the first of shape "
            f"{tuple(strange[0].shape)}: DeepSpeed's ZeRO and the older FSDP join parameters to flat ones, "
            "whose features are not known. Shard with fully_shard of torch.distributed.fsdp, or use DDP"
        )
    present = set(now.values())
    left = [names[p] for p in given if p in names and p not in present and p not in new]
    left = [name for name in left if name in now and now[name] not in names and now[name].requires_grad]
    if left:
        raise RuntimeError(
            f"{len(left)} parameters of the model, the first {left[0]!r}, are not those that the optimizer "
            "was built for, and would not be trained: alrao.Alrao(net), load_state_dict(…, "
            "assign=True) and new layers put others in their place. Build the optimizer after that, or load "
            "without assign"
        )
    return new


@contextmanager
def resharded(modules: Iterable[Any]) -> Iterator[None]:
    """Show every process its own parts, for a change of them; those gathered before are gathered again."""
    gathered = []
    for module in modules:
        if not all(is_shard(p) for p in _managed(module)):
            gathered.append(module)
            module.reshard()
    try:
        yield
    finally:
        for module in gathered:
            module.unshard()


def _managed(module: nn.Module) -> Iterator[nn.Parameter]:
    """Return the parameters of a module and its children, but for children that are sharded themselves."""
    yield from module._parameters.values()  # type: ignore[misc]
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _managed(child)
