"""Train with Accelerate: accumulated gradients, clipping, and a saved state.

Needs `pip install 'alrao[huggingface,sklearn]'`. Usage: python examples/accelerate_loop.py [--epochs 10],
or accelerate launch examples/accelerate_loop.py for several processes.
"""

import argparse
import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import alrao


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--folder", default=tempfile.mkdtemp())
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2)  # build it before the optimizer
    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels))
    train, test = random_split(data, [0.8, 0.2])

    model = alrao.Alrao(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = alrao.Auto(model)  # no learning rate
    model, optimizer, batches, held_out = accelerator.prepare(
        model, optimizer, DataLoader(train, 16, shuffle=True), DataLoader(test, 128)
    )
    for _ in range(args.epochs):
        model.train()
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(args.folder)  # resume with accelerator.load_state

    model.eval()  # the averaged weights
    correct = []
    with torch.no_grad():
        for x, y in held_out:
            correct.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
    plain = accelerator.unwrap_model(model).collapse()  # an ordinary network
    accelerator.print(f"Alrao: accuracy {torch.cat(correct).float().mean():.1%}; state in {args.folder}")
    accelerator.print(plain)


if __name__ == "__main__":
    main()
