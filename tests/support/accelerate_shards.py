"""Run in two processes: Accelerate's FSDP plugin over two halves of every batch."""

import torch
from torch.distributed.tensor import DTensor

import alrao
from support.accelerate_loops import accelerated, data, made
from support.hf_models import accelerate


def full(model):
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value.clone()
        for name, value in model.state_dict().items()
    }


def main(folder):
    torch.set_num_threads(1)
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False
    )
    halves = accelerate.DataLoaderConfiguration(split_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin, dataloader_config=halves)
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
