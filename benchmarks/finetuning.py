"""Fine-tuning with Auto, which needs no interval, beside AdamW at five rates with a linear decay.

Four small cases, each with a network trained on one set of data (AdamW, once for every seed) and fine-tuned
on few rows of another: digits of other classes, digits turned by 90 degrees, more digits of the same kind,
and characters of another text. Usage:
ALRAO_DATA=… python benchmarks/finetuning.py [--seeds 3] [--markdown docs/how-to/fine-tuning.md]
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import alrao
from alrao_lab.render.markdown import replace_table

METHODS = ("AdamW 2e-5", "AdamW 5e-5", "AdamW 1e-4", "AdamW 3e-4", "AdamW 1e-3", "Auto", "Auto 1.0")
"""The number is AdamW's rate, and the weight decay of Auto where it is not the default."""

Batch = tuple[Tensor, Tensor]


class Reader(nn.Module):
    """A recurrent model of characters."""

    def __init__(self, symbols: int, size: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, 32)
        self.recurrent = nn.GRU(32, size, batch_first=True)
        self.output = nn.Linear(size, symbols)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.recurrent(self.embedding(x))[0])
        return out


class Rows:
    """Some rows to train on, drawn with replacement, and others to test on."""

    def __init__(self, x: Tensor, y: Tensor, few: int, generator: torch.Generator) -> None:
        order = torch.randperm(len(x), generator=generator)
        self.generator, (self.x, self.y) = generator, (x[order], y[order])
        self.few = few

    def batch(self) -> Batch:
        at = torch.randint(self.few, (32,), generator=self.generator)
        return self.x[at], self.y[at]

    def test(self) -> Batch:
        return self.x[self.few :], self.y[self.few :]


class Text:
    """Characters to train on, as windows drawn at random, and later ones to test on."""

    LENGTH = 32

    def __init__(self, text: Tensor, few: int, generator: torch.Generator) -> None:
        self.text, self.few, self.generator = text, few, generator

    def batch(self) -> Batch:
        starts = torch.randint(self.few - self.LENGTH, (16, 1), generator=self.generator)
        rows = self.text[starts + torch.arange(self.LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]

    def test(self) -> Batch:
        rows = self.text[self.few : self.few + 200 * self.LENGTH + 1]
        return rows[:-1].view(200, -1), rows[1:].view(200, -1)


def digits() -> Batch:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels)


def perceptron(outputs: int) -> nn.Module:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs)]
    return nn.Sequential(*layers)


def texts() -> dict[str, Tensor]:
    folder = Path(os.environ["ALRAO_DATA"])
    read = {name: (folder / f"{name}.txt").read_text("utf-8") for name in ("tinyshakespeare", "ptb.test")}
    symbols = sorted(set("".join(read.values())))
    numbers = {symbol: i for i, symbol in enumerate(symbols)}
    return {name: torch.tensor([numbers[c] for c in text]) for name, text in read.items()}


def fit(net: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any, data: Any, steps: int) -> None:
    for _ in range(steps):
        x, y = data.batch()
        optimizer.zero_grad()
        F.cross_entropy(net(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def trained(net: nn.Module, data: Any, steps: int) -> nn.Module:
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    fit(net, optimizer, schedule, data, steps)
    return net


def other_classes(g: torch.Generator) -> tuple[nn.Module, Any, bool]:
    x, y = digits()
    net = trained(perceptron(5), Rows(x[y < 5], y[y < 5], 700, g), 500)
    net[-1] = nn.Linear(128, 5)  # type: ignore[index]
    return net, Rows(x[y >= 5], y[y >= 5] - 5, 50, g), False


def turned(g: torch.Generator) -> tuple[nn.Module, Any, bool]:
    x, y = digits()
    net = trained(perceptron(10), Rows(x, y, 900, g), 500)
    return net, Rows(x.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1), y, 150, g), True


def other_text(g: torch.Generator) -> tuple[nn.Module, Any, bool]:
    found = texts()
    net = Reader(1 + max(int(text.max()) for text in found.values()))
    trained(net, Text(found["tinyshakespeare"], 900_000, g), 600)
    return net, Text(found["ptb.test"], 20_000, g), True


def half(g: torch.Generator) -> tuple[nn.Module, Any, bool]:
    x, y = digits()
    first = torch.randperm(len(x), generator=g)
    net = trained(perceptron(10), Rows(x[first[:200]], y[first[:200]], 200, g), 200)
    return net, Rows(x[first[200:]], y[first[200:]], 200, g), True


CASES: dict[str, tuple[str, Callable[[torch.Generator], tuple[nn.Module, Any, bool]]]] = {
    "other classes": ("digits 0 to 4, then 50 rows of 5 to 9, a new output layer", other_classes),
    "turned": ("900 digits, then 150 rows turned by 90 degrees", turned),
    "more data": ("200 digits, then 200 others", half),
    "other text": ("Shakespeare, then 20,000 characters of Penn Treebank", other_text),
}


def tuned(net: nn.Module, data: Any, keep: bool, method: str, steps: int) -> tuple[float, float]:
    """Fine-tune a copy with AdamW or with Auto, and return the test loss and the test accuracy."""
    net = copy.deepcopy(net)
    name, _, number = method.partition(" ")
    if name == "Auto":
        net = alrao.Alrao(net, keep_output=keep)
        options = {"weight_decay": float(number)} if number else {}
        optimizer: torch.optim.Optimizer = alrao.Auto(net, **options)
        schedule = None
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=float(number))
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    fit(net, optimizer, schedule, data, steps)
    return tested(net.eval(), data)


def tested(net: nn.Module, data: Any) -> tuple[float, float]:
    x, y = data.test()
    with torch.no_grad():
        out = net(x).flatten(0, -2)
    return F.cross_entropy(out, y.flatten()).item(), (out.argmax(1) == y.flatten()).float().mean().item()


def table(seeds: int, steps: int) -> str:
    names = ["before", *METHODS]
    head = ["| case | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    losses, accuracies = [], []
    for name, (_, make) in CASES.items():
        found: list[list[tuple[float, float]]] = [[] for _ in names]
        for seed in range(seeds):
            torch.manual_seed(seed)
            net, data, keep = make(torch.Generator().manual_seed(seed))
            found[0].append(tested(net, data))
            for column, method in zip(found[1:], METHODS, strict=True):
                torch.manual_seed(seed)
                data.generator.manual_seed(100 + seed)
                column.append(tuned(net, data, keep, method, steps))
        losses.append(row(name, [[loss for loss, _ in column] for column in found], min, 3))
        accuracies.append(row(name, [[100 * each for _, each in column] for column in found], max, 1))
        print(losses[-1], accuracies[-1], sep="\n", flush=True)
    return "\n".join(
        [
            f"Test loss in nats after {steps} steps, mean ± deviation of {seeds} seeds:", "", *head, *losses,
            "", "Test accuracy, %:", "", *head, *accuracies,
        ]
    )  # fmt: skip


def row(name: str, columns: list[list[float]], better: Callable[[Any], float], digits: int) -> str:
    best = better(map(mean, columns))
    cells = []
    for column in columns:
        number = f"{mean(column):.{digits}f}"
        cells.append(f"**{number}**" if mean(column) == best else number)
        if len(column) > 1:
            cells[-1] += f" ± {stdev(column):.{digits}f}"
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--markdown", type=Path, help="the page whose table is replaced")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = table(args.seeds, args.steps)
    print(text)
    if args.markdown:
        replace_table(args.markdown, "benchmarks/finetuning.py", text)


if __name__ == "__main__":
    main()
