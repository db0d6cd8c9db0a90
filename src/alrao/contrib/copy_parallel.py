"""``CopyParallel``: the copies of a head on several devices, by torch's tensor parallelism.

The copies are independent given the body's output, which every process has, so that each process computes
its own. :class:`alrao.heads.members.Exchange` has what they exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed as dist
from torch import nn

from ..heads.linear import LinearHead
from ..heads.members import Exchange

if TYPE_CHECKING or dist.is_available():
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ParallelStyle
else:
    ParallelStyle = object

__all__ = ["CopyParallel"]


class CopyParallel(ParallelStyle):
    """Put the copies of a head on several devices: each process holds and trains its own. Experimental.

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
        if not isinstance(module, LinearHead):
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
        module.parallel = Exchange(device_mesh.get_group(), module.weight)
        return module
