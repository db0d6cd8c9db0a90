"""Time of a training step once copies sleep, beside all awake and the plain network.

Every method first trains for ``--before`` steps on labels with the frequencies of words, so that the
posterior settles; with many classes on fewer rows a step, to save time. Then all take turns, a step each. The
table has the mean processor time of a step over ``--steps`` steps; looks at sleeping copies are in it. The
last column is the mean number of copies that took part.

Usage: python benchmarks/sleeping.py [--workloads images,tokens] [--steps 97] [--threads 1]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import alrao


@dataclass
class Workload:
    title: str
    width: int
    classes: int
    rows: int
    rows_before: int
    goal: float  # of the time with sleeping copies, in units of the plain network's

    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, self.classes)
        )


WORKLOADS = {
    "images": Workload("512-512-1,000, 64 rows", 512, 1_000, 64, 64, 2.0),
    "words": Workload("256-256-10,000, 1,024 rows", 256, 10_000, 1024, 64, 2.5),
    "tokens": Workload("256-256-50,257, 1,024 rows", 256, 50_257, 1024, 32, 2.5),
}

Maker = Callable[..., torch.optim.Optimizer]
FAMILIES: dict[str, tuple[Maker, dict[str, Maker]]] = {
    "sgd": (lambda net: torch.optim.SGD(net.parameters(), lr=0.1), {"Alrao": alrao.SGD}),
    "adam": (
        lambda net: torch.optim.Adam(net.parameters()),
        {"Alrao-Adam": alrao.Adam, "Auto": alrao.Auto},
    ),
}


class Batches:
    """Inputs around a centre for each class; the classes are as frequent as words are."""

    def __init__(self, workload: Workload) -> None:
        self._centres = torch.randn(workload.classes, workload.width)
        self._frequencies = 1 / torch.arange(1.0, workload.classes + 1)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        y = torch.multinomial(self._frequencies, rows, replacement=True)
        return self._centres[y] + torch.randn(rows, self._centres.shape[1]), y


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def measure(workload: Workload, family: str, before: int, steps: int, awake: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    batches = Batches(workload)
    plain, ours = FAMILIES[family]
    net = workload.net()
    running: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {"plain": (net, plain(net))}
    for name, make in ours.items():
        for sleep in (False, True) if awake else (True,):
            model = alrao.Alrao(workload.net())
            running[f"{name}, {'sleeping' if sleep else 'all awake'}"] = (model, make(model, sleep=sleep))
    for name, (model, optimizer) in running.items():
        for _ in range(before if "sleeping" in name else 2):
            step(model, optimizer, batches.draw(workload.rows_before))
    times: dict[str, list[float]] = {name: [] for name in running}
    copies: dict[str, list[int]] = {name: [] for name in running}
    for turn in range(steps + 1):
        batch = batches.draw(workload.rows)
        for name, (model, optimizer) in running.items():
            if "awake" in name and turn > 5:
                continue
            if isinstance(model, alrao.Alrao):
                copies[name].append(len(range(model.head.copies)[model.head.part or slice(None)]))
            start = time.process_time()
            step(model, optimizer, batch)
            if turn > 0:  # the first is not counted
                times[name].append(time.process_time() - start)
            gc.collect(0)
    return {name: (mean(seconds), copies[name][1:]) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=int, default=200, help="steps before those that are measured")
    parser.add_argument("--steps", type=int, default=97)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workloads", default="images")
    parser.add_argument("--families", default="sgd,adam")
    parser.add_argument("--no-awake", action="store_true", help="leave out the runs with all copies awake")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = Table(
        title=f"A step after {args.before} steps; {args.threads} thread(s) of {os.cpu_count()} cores",
        caption=f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}",
    )
    for column in ("network", "method", "CPU ms", "/ plain", "goal", "copies"):
        table.add_column(column, justify="left" if column in ("network", "method") else "right")
    for key in args.workloads.split(","):
        workload = WORKLOADS[key]
        for family in args.families.split(","):
            found = measure(workload, family, args.before, args.steps, not args.no_awake)
            base, _ = found["plain"]
            for name, (seconds, copies) in found.items():
                table.add_row(
                    workload.title,
                    f"plain ({family})" if name == "plain" else name,
                    f"{1e3 * seconds:.1f}",
                    f"{seconds / base:.2f}",
                    f"{workload.goal:.2f}" if "sleeping" in name else "",
                    f"{mean(copies):.1f}" if copies else "",
                )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
