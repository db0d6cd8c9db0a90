"""A model, its data, and its training by Accelerate: in a loop, and in two processes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from support.hf_models import COPIES, accelerate, classifier, trainer  # first: it loads torchvision with care

# isort: split
import alrao
from alrao.integrations.huggingface import AlraoCallback


def made(seed=0):
    torch.manual_seed(seed)
    model = alrao.Alrao(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double(), COPIES)
    return model, alrao.SGD(model, lr=(1e-2, 1.0), momentum=0.9)


def data(batch=8):
    x = torch.randn(48, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch)


def accelerated(accelerator, model, optimizer, loader, epochs=2, clip=None):
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if clip is not None and accelerator.sync_gradients:
                    accelerator.unwrap_model(model).clip_grad_norm_(clip)
                optimizer.step()
                optimizer.zero_grad()


def halves(folder):
    """Run in two processes: two halves of every batch, and rates that differ."""
    torch.set_num_threads(1)
    early = alrao.Alrao(classifier(), 2)
    torch.seed()
    stranger = alrao.AdamW(early)  # before the processes know of each other
    split = accelerate.DataLoaderConfiguration(split_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=split)
    model, optimizer = made()
    accelerated(accelerator, *accelerator.prepare(model, optimizer, data(8)))
    try:
        trainer(folder, early, stranger, callbacks=[AlraoCallback()], max_steps=1).train()
        refused = "no"
    except ValueError as error:
        refused = str(error).partition(",")[0]
    rank = accelerator.process_index
    torch.save({"model": model.state_dict(), "refused": refused}, f"{folder}/{rank}.pt")
    accelerator.end_training()


def full(model):
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value.clone()
        for name, value in model.state_dict().items()
    }


def shards(folder):
    """Run in two processes: the FSDP plugin over two halves of every batch."""
    torch.set_num_threads(1)
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
    )
    split = accelerate.DataLoaderConfiguration(split_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin, dataloader_config=split)
    # Accelerate shards on GPUs only, by what it takes for the machine; all that follows is its own code.
    for state in (accelerate.PartialState(), accelerator.state):
        state.distributed_type = accelerate.DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    found = {}
    for kind in ("sgd", "auto"):
        model, optimizer = made()
        if kind == "auto":
            torch.manual_seed(5)
            optimizer = alrao.Auto(model, steps=8)
        model, optimizer, loader = accelerator.prepare(model, optimizer, data(8))
        assert isinstance(model.head.weight, DTensor)
        accelerated(accelerator, model, optimizer, loader)
        accelerator.save_state(f"{folder}/{kind}")
        found[kind] = full(model)
        accelerated(accelerator, model, optimizer, loader, epochs=1)
        found[f"{kind} later"] = full(model)
        accelerator.load_state(f"{folder}/{kind}")
        accelerated(accelerator, model, optimizer, loader, epochs=1)
        found[f"{kind} resumed"] = full(model)
        accelerator.free_memory()
    torch.save(found, f"{folder}/{accelerator.process_index}.pt")
    accelerator.end_training()
