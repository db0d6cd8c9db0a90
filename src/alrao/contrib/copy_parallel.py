"""``CopyParallel``: the copies of a head on several devices, by torch's tensor parallelism.

The copies are independent given the body's output, which every process has, so that each process computes
its own. What the mixture of a classifier exchanges is in :mod:`alrao.heads.vocabulary`; other heads gather
the outputs of all copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..evidence import marked_as
from ..heads import LinearHead
from ..heads.members import Exchange, shared_linear
from ..runtime.sharding import indices_of_copies

if TYPE_CHECKING or dist.is_available():
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ParallelStyle
else:
    ParallelStyle = object

__all__ = ["CopyParallel"]


class CopyParallel(ParallelStyle):
    """Put the copies of a head on several devices: each process holds and trains its own.

    A plan for :func:`torch.distributed.tensor.parallel.parallelize_module`. All processes of the mesh get the
    same batch, and the body is the same in all of them. A step with hard targets exchanges
    ``rows x copies`` numbers and the gradient by the body's output, nothing of the size of the classes. The
    parameters of the head become ``DTensor`` with the copies sharded; their values are those of the first
    process. Apply it before the optimizer is built.

    Example::

        from torch.distributed.tensor.parallel import parallelize_module

        from alrao.contrib.copy_parallel import CopyParallel

        model = alrao.Alrao(net, copies=8)
        parallelize_module(model.head, mesh, CopyParallel())
        optimizer = alrao.Auto(model)
    """

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        if not isinstance(module, LinearHead) or module.window is not None:
            raise ValueError(
                f"CopyParallel takes the head of an Alrao model whose output layer is linear, got "
                f"{type(module).__name__}: write parallelize_module(model.head, mesh, CopyParallel())"
            )
        if device_mesh.ndim != 1:
            raise ValueError(
                f"CopyParallel takes a mesh with one axis, got {device_mesh.ndim}: pass one of its axes, "
                'mesh["copies"]'
            )
        source = getattr(self, "src_data_rank", 0)
        for name, parameter in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(parameter.detach(), device_mesh, [Shard(0)], src_data_rank=source)
            module.register_parameter(name, nn.Parameter(sharded, parameter.requires_grad))
        module.move_leaf()
        module.parallel = ParallelCopies(device_mesh.get_group(), module.weight)
        return module


class ParallelCopies(Exchange):
    """The copies of a head that this process holds, and the way to those of the others.

    Args:
        group: the processes that hold copies.
        weight: the stacked weights, sharded over the copies.
    """

    alone = False

    def __init__(self, group: Any, weight: Tensor) -> None:
        self.group = group
        self.copies = len(weight)
        self.own = indices_of_copies(weight)

    def local(self, parameter: Any) -> Any:
        """Return the copies of a parameter that this process holds."""
        return None if parameter is None else parameter.to_local()

    def linear(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return every copy's linear output, gathered, as in :func:`shared_linear`."""
        z = z.view_as(z)
        if z.requires_grad:  # each process has the part of its copies
            z.register_hook(lambda g: self.add(g.clone(memory_format=torch.contiguous_format)))
        own, mixed = shared_linear(z, self.local(weight), self.local(bias))
        gathered: tuple[Tensor, Tensor] = _Gathered.apply(own, self), _Gathered.apply(mixed, self)
        return gathered

    def leaf(self, evidence: Tensor) -> Tensor:
        """Return the leaf for the evidence: every process reports all of it, so that each counts in part."""
        part = evidence.view_as(evidence)
        if part.requires_grad:
            processes = dist.get_world_size(self.group)
            part.register_hook(lambda g: g / processes)
        return marked_as(evidence, part)

    def gather(self, of_own: Tensor) -> Tensor:
        """Return what every process has for its copies, which are on the last axis."""
        whole = of_own.new_zeros(*of_own.shape[:-1], self.copies)
        whole[..., self.own] = of_own
        return self.add(whole)

    def add(self, x: Tensor) -> Tensor:
        """Replace ``x``, contiguous numbers, by the sum over the processes, and return it."""
        dist.all_reduce(x, group=self.group)
        return x

    def highest(self, x: Tensor) -> Tensor:
        """Replace ``x``, contiguous numbers, by the maximum over the processes, and return it."""
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_own: Tensor, parallel: ParallelCopies) -> Tensor:
        ctx.own = parallel.own
        return parallel.gather(of_own.movedim(0, -1)).movedim(-1, 0).contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return g[ctx.own], None
