"""A network that starts on a plateau: a small Vision Transformer on scikit-learn's digits.

    python benchmarks/plateau.py                  # 132, 300 and 1,000 steps, eight seeds, about ten minutes
    python benchmarks/plateau.py --steps 132 --seeds 2

transformers' ViT, hidden size 48, two layers; 1,400 images to train, batches of 32 drawn with replacement.
The test loss is that on the other 397 images after the last step; above 2.2 it is chance.
"""

from __future__ import annotations

import argparse
from math import cos, pi
from statistics import mean

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import alrao
from alrao_lab.zoo.vision import torchvision  # noqa: F401  before transformers, which imports it

CHANCE = 2.2
TRAIN = 1_400


class ViT(nn.Module):
    """transformers' classifier, as a function of the images."""

    def __init__(self) -> None:
        from transformers import ViTConfig, ViTForImageClassification

        super().__init__()
        config = ViTConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
            image_size=8, patch_size=2, num_channels=1, num_labels=10,
        )  # fmt: skip
        self.vit = ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.vit(pixel_values=images).logits
        return logits


def digits() -> tuple[Tensor, Tensor]:
    """Return the images, scaled to -1 … 1, and their labels, in a random order that is always the same."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    return images[order], torch.tensor(data.target)[order]


def final_loss(method: str, steps: int, seed: int, images: Tensor, labels: Tensor) -> float:
    """Train, and return the test loss after the last step."""
    torch.manual_seed(seed)
    model: nn.Module = ViT()
    scheduler = None
    if method == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = LambdaLR(optimizer, lambda step: 0.5 * (1 + cos(pi * step / steps)))
    else:
        model = alrao.Alrao(model)
        optimizer = alrao.Auto(model, steps=steps if method == "auto-steps" else None)
    batches = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        which = torch.randint(TRAIN, (32,), generator=batches)
        optimizer.zero_grad()
        F.cross_entropy(model(images[which]), labels[which]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    model.eval()
    with torch.no_grad():
        return F.cross_entropy(model(images[TRAIN:]), labels[TRAIN:]).item()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[132, 300, 1000])
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = digits()
    print(
        "| steps | method | mean test loss | lowest | highest | at chance |\n|---:|---|---:|---:|---:|---:|"
    )
    for steps in arguments.steps:
        for method in ("auto", "auto-steps", "adamw"):
            losses = [final_loss(method, steps, seed, images, labels) for seed in range(arguments.seeds)]
            lost = sum(loss > CHANCE for loss in losses)
            row = f"{mean(losses):.3f} | {min(losses):.3f} | {max(losses):.3f} | {lost} of {len(losses)}"
            print(f"| {steps:,} | {method} | {row} |", flush=True)


if __name__ == "__main__":
    main()
