"""Run in two processes: Lightning's DDP over the two halves of every batch."""

import torch
from torch.utils.data import DataLoader

from support.lightning_modules import Module, pl, table, trainer  # first: it loads torchvision with care

# isort: split
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


def main(folder):
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
