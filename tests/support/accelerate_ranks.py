"""Run in two processes: Accelerate over two halves of every batch, and rates that differ."""

import torch

from support.hf_models import accelerate, classifier, trainer  # first: it loads torchvision with care

# isort: split
import alrao
from alrao.integrations.huggingface import AlraoCallback
from support.accelerate_loops import accelerated, data, made


def main(folder):
    torch.set_num_threads(1)
    early = alrao.Alrao(classifier(), 2)
    torch.seed()
    stranger = alrao.AdamW(early)  # before the processes know of each other
    halves = accelerate.DataLoaderConfiguration(split_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=halves)
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
