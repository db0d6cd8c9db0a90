"""Run in two processes: Lightning's DDP and its ModelParallelStrategy over the two halves of each batch."""

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from support.lightning_modules import Module, pl, table, trainer  # first: it loads torchvision with care

# isort: split
import alrao
from alrao.integrations.lightning import AlraoCallback


class Halves:
    """Batches of 16 rows, of which each rank takes its 8."""

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        for start in range(0, 48, 16):
            yield range(start + 8 * self.rank, start + 8 * self.rank + 8)

    def __len__(self):
        return 3


def ddp(folder):
    torch.set_num_threads(1)
    strategy = pl.strategies.DDPStrategy(process_group_backend="gloo")
    fit = trainer(
        3, devices=2, strategy=strategy, use_distributed_sampler=False, callbacks=[AlraoCallback()],
    )  # fmt: skip
    rank = fit.global_rank
    torch.manual_seed(7)
    module = Module(lr=(1e-2, 1.0), momentum=0.5)
    torch.manual_seed(100 + rank)  # the rates must not depend on the process
    fit.fit(module, DataLoader(table(), batch_sampler=Halves(rank)))
    rates = [module.optimizers().rates(p) for p in module.model.parameters()]
    torch.save({"model": module.model.state_dict(), "rates": rates}, f"{folder}/{rank}.pt")


class Sharded(Module):
    """A classifier that is sharded as Lightning's documentation shows it."""

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        fully_shard(self.model.net[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)


def run_shards(folder, kind, **options):
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


def shards(folder):
    torch.set_num_threads(1)
    sgd, rank = run_shards(folder, alrao.SGD, lr=(1e-2, 1.0), momentum=0.5)
    auto, _ = run_shards(folder, alrao.Auto, steps=9)
    torch.save({"sgd": sgd, "auto": auto}, f"{folder}/{rank}.pt")
