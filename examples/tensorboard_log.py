"""Log the posterior and the features' rates to TensorBoard from a plain training loop.

Needs `pip install 'alrao[tensorboard]'`. Usage: python examples/tensorboard_log.py [--folder runs/alrao],
then tensorboard --logdir runs
"""

import argparse
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import alrao
from alrao.integrations import tensorboard


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=tempfile.mkdtemp())
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    x = torch.randn(1000, 10)
    y = x[:, :4].argmax(1)
    model = alrao.Alrao(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = alrao.Auto(model)

    writer = SummaryWriter(args.folder)  # line 1 of 2
    for step in range(args.steps):
        batch = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            writer.add_scalar("loss", loss.item(), step)
            tensorboard.log(writer, model, optimizer, step)  # line 2 of 2
    writer.close()
    print(f"Alrao: loss {loss.item():.3f}; run: tensorboard --logdir {args.folder}")


if __name__ == "__main__":
    main()
