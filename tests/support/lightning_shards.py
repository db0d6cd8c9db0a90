"""Run in two processes: Lightning's ModelParallelStrategy over the two halves of every batch."""

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from support.lightning_modules import Module, pl, table, trainer  # first: it loads torchvision with care
from support.lightning_ranks import Halves

# isort: split
import alrao
from alrao.integrations.lightning import AlraoCallback


class Sharded(Module):
    """A classifier that is sharded as Lightning's documentation shows it."""

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        fully_shard(self.model.net[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)


def run(folder, kind, **options):
    strategy = pl.strategies.ModelParallelStrategy(
        data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo"
    )
    fit = trainer(3, devices=2, strategy=strategy, use_distributed_sampler=False, callbacks=[AlraoCallback()])
    rank = fit.global_rank
    torch.manual_seed(7)
    module = Sharded(optimizer=kind, **options)
    torch.manual_seed(9)
    fit.fit(module, DataLoader(table(), batch_sampler=Halves(rank)))
    fit.save_checkpoint(f"{folder}/{kind.__name__}")
    assert isinstance(module.model.head.weight, DTensor)
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in module.model.state_dict().items()
    }, rank


def main(folder):
    torch.set_num_threads(1)
    sgd, rank = run(folder, alrao.SGD, lr=(1e-2, 1.0), momentum=0.5)
    auto, _ = run(folder, alrao.Auto, steps=9)
    torch.save({"sgd": sgd, "auto": auto}, f"{folder}/{rank}.pt")
