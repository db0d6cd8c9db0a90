"""What `alrao.recalibrate` is worth: the test loss at BatchNorm's statistics of training, and recomputed.

Two convolutional networks with BatchNorm under Auto: scikit-learn's digits and CIFAR-10 (10,000 images).
Usage: ALRAO_DATA=… python benchmarks/recalibration.py [--seeds 3]
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import alrao
from alrao.lab.tasks.cifar import load_cifar10


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = load_digits()
    x = torch.tensor(data.images / 16 - 0.3, dtype=torch.float32)[:, None]
    order = torch.randperm(len(x))
    x, y = x[order], torch.tensor(data.target)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def cifar() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arrays, _ = load_cifar10()
    rows = torch.randperm(len(arrays.train))[:10_000]

    def inputs(images: Tensor) -> Tensor:
        return images.float() / 128 - 1

    test, labels = arrays.test[:4000], arrays.test_labels[:4000]
    return inputs(arrays.train[rows]), arrays.train_labels[rows], inputs(test), labels


def network(channels: int, sizes: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in zip((channels, *sizes), sizes, strict=False):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 10))


CASES = {"digits": (digits, 1, (16, 32), 600), "CIFAR-10": (cifar, 3, (16, 32, 64), 1200)}


def run(name: str, seed: int) -> tuple[float, float]:
    torch.manual_seed(seed)
    load, channels, sizes, steps = CASES[name]
    x, y, x_test, y_test = load()
    model = alrao.Alrao(network(channels, sizes))
    optimizer = alrao.Auto(model)
    for _ in range(steps):
        rows = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    losses = []
    for again in (False, True):
        if again:
            alrao.recalibrate(model, x[:2000].split(100))
        model.eval()
        with torch.no_grad():
            losses.append(F.cross_entropy(model(x_test), y_test).item())
    return losses[0], losses[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| data | as gathered in training | recalibrated | change of the loss, % |\n|---|--:|--:|--:|")
    for name in CASES:
        found = [run(name, seed) for seed in range(args.seeds)]
        before, after = zip(*found, strict=True)
        changes = [100 * (b / a - 1) for a, b in found]
        spread = f" ± {stdev(changes):.1f}" if args.seeds > 1 else ""
        print(
            f"| {name} | {mean(before):.3f} | {mean(after):.3f} | {mean(changes):+.1f}{spread} |", flush=True
        )


if __name__ == "__main__":
    main()
