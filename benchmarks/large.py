"""Time and memory of one training step with a large output layer, beside the plain network and the limit.

*The limit* is torch's optimizer on the network whose output layer has copies x classes units: the same
arithmetic without the bookkeeping. All methods take turns in one process, a step each, and processor time is
measured, so that whatever else the machine does hits them alike. Memory is the peak of a process of its own
above what it had before the network, in units of the weights and gradients of the ten times wider network
(Linux only).

Usage: python benchmarks/large.py [--steps 5] [--threads 1] [--workloads narrow,words] [--memory]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

import alrao

COPIES = 10


@dataclass
class Workload:
    title: str
    width: int
    classes: int
    rows: int
    goal: float  # of Alrao's time, in units of the limit's

    def net(self, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, outputs))


WORKLOADS = {
    "images": Workload("512-512-1,000, 64 rows", 512, 1_000, 64, 1.15),
    "narrow": Workload("64-64-10,000, 700 rows", 64, 10_000, 700, 1.2),
    "words": Workload("256-256-10,000, 1,024 rows", 256, 10_000, 1024, 1.2),
    "tokens": Workload("256-256-50,257, 1,024 rows", 256, 50_257, 1024, 1.15),
}

Maker = Callable[..., torch.optim.Optimizer]
FAMILIES: dict[str, tuple[Maker, dict[str, Maker]]] = {
    "sgd": (
        lambda net: torch.optim.SGD(net.parameters(), lr=1e-3),
        {"Alrao": lambda model: alrao.SGD(model, lr=(1e-5, 1e-2))},
    ),
    "adam": (
        lambda net: torch.optim.Adam(net.parameters()),
        {"Alrao-Adam": lambda model: alrao.Adam(model, lr=(1e-6, 1e-2)), "Auto": alrao.Auto},
    ),
}  # fmt: skip


def build(workload: Workload, family: str, name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    plain, ours = FAMILIES[family]
    if name in ours:
        model = alrao.Alrao(workload.net(workload.classes), COPIES)
        return model, ours[name](model)
    net = workload.net(workload.classes * (COPIES if name == "limit" else 1))
    return net, plain(net)


def step(workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = torch.randn(workload.rows, workload.width), torch.randint(workload.classes, (workload.rows,))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def seconds(workload: Workload, family: str, steps: int) -> dict[str, float]:
    """The median processor seconds of a step of each method; the first step of each is not counted."""
    torch.manual_seed(0)
    names = ["plain", "limit", *FAMILIES[family][1]]
    running = {name: build(workload, family, name) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(steps + 1):
        for name in names:
            start = time.process_time()
            step(workload, *running[name])
            if turn > 0:
                times[name].append(time.process_time() - start)
            running[name][1].zero_grad()
            gc.collect()
    return {name: statistics.median(of_steps) for name, of_steps in times.items()}


def peak(workload: str, family: str, name: str, threads: int) -> float:
    """The peak of a process above its start, in bytes: three steps of a method."""
    command = [sys.executable, __file__, "--peak", name, "--workloads", workload, "--families", family]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_peak(workload: Workload, family: str, name: str) -> None:
    # Products of the kind that follow, so that torch's own buffers are there before.
    a = torch.randn(256, 256, requires_grad=True)
    F.cross_entropy(a @ a, torch.zeros(256, dtype=torch.long)).backward()
    before = highest()
    model, optimizer = build(workload, family, name)
    for _ in range(3):
        step(workload, model, optimizer)
    print(highest() - before)


def highest() -> int:
    """The most memory that this process has had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5, help="steps of each method")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workloads", default="images,narrow,words")
    parser.add_argument("--families", default="sgd,adam")
    parser.add_argument("--memory", action="store_true", help="measure the memory too")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    workloads, families = args.workloads.split(","), args.families.split(",")
    if args.peak:
        print_peak(WORKLOADS[workloads[0]], families[0], args.peak)
        return
    table = Table(
        title=f"A step with {COPIES} copies; {args.threads} thread(s) of {os.cpu_count()} cores",
        caption=f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}",
    )
    table.add_column("network")
    for column in (
        "method",
        "CPU seconds",
        "/ plain",
        "/ limit",
        "goal",
        "memory, MB",
        "/ weights and gradients",
    ):
        table.add_column(column, justify="right" if column != "method" else "left")
    for key in workloads:
        workload = WORKLOADS[key]
        for family in families:
            found = seconds(workload, family, args.steps)
            for name, of_step in found.items():
                memory = peak(key, family, name, args.threads) if args.memory else None
                goal = f"{workload.goal:.2f}" if name == "Alrao" else ""
                wide = 2 * 4 * workload.width * (workload.width + COPIES * workload.classes)
                table.add_row(
                    workload.title,
                    f"{name} ({family})" if name in ("plain", "limit") else name,
                    f"{of_step:.3f}",
                    f"{of_step / found['plain']:.2f}",
                    f"{of_step / found['limit']:.2f}",
                    goal,
                    "" if memory is None else f"{memory / 1e6:.0f}",
                    "" if memory is None else f"{memory / wide:.2f}",
                )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
