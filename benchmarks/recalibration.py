"""BatchNorm's statistics under Auto: those gathered in training, those of `eval()`, and recalibrated ones.

Test losses of convolutional networks with BatchNorm: scikit-learn's digits, and CIFAR-10 (10,000 images) with
plain and residual layers. The last column is the time of an `eval()` in training steps.
Usage: ALRAO_DATA=… python benchmarks/recalibration.py [--seeds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import alrao
from alrao_lab.tasks.cifar import load_cifar10
from alrao_lab.zoo.small import cnn, residual


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


Case = tuple[Callable[[], tuple[Tensor, ...]], Callable[[], nn.Module], int]

CASES: dict[str, Case] = {
    "digits, two convolutions": (digits, lambda: cnn(10, channels=1, sizes=(16, 32)), 900),
    "CIFAR-10, four convolutions": (cifar, lambda: cnn(10), 1200),
    "CIFAR-10, residual blocks": (cifar, lambda: residual(10, batch_norm=True), 600),
}


def run(name: str, seed: int) -> tuple[float, float, float, float]:
    """Return three losses, and the time of an `eval()` in steps."""
    torch.manual_seed(seed)
    load, build, steps = CASES[name]
    x, y, x_test, y_test = load()
    model = alrao.Alrao(build())
    optimizer = alrao.Auto(model)
    begin = time.perf_counter()
    for _ in range(steps):
        rows = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    step = (time.perf_counter() - begin) / steps

    def loss() -> float:
        with torch.no_grad():
            return F.cross_entropy(model(x_test), y_test).item()

    gathered = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
    begin = time.perf_counter()
    model.eval()
    switch = (time.perf_counter() - begin) / step
    alone = loss()
    for name, buffer in gathered.items():
        model.get_buffer(name).copy_(buffer)
    in_training = loss()
    alrao.recalibrate(model, x[torch.randperm(len(x))[:2000]].split(100))
    return in_training, alone, loss(), switch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | gathered in training | eval() | recalibrated | eval() against it, % | eval(), steps |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in CASES:
        found = [run(name, seed) for seed in range(args.seeds)]
        in_training, alone, again, switch = zip(*found, strict=True)
        changes = [100 * (a / b - 1) for a, b in zip(alone, again, strict=True)]
        spread = f" ± {stdev(changes):.1f}" if args.seeds > 1 else ""
        losses = " | ".join(f"{mean(each):.3f}" for each in (in_training, alone, again))
        print(f"| {name} | {losses} | {mean(changes):+.1f}{spread} | {mean(switch):.1f} |", flush=True)


if __name__ == "__main__":
    main()
