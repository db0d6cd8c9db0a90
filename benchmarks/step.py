"""Time of one training step, as a ratio to torch.optim.SGD on the same plain network.

All methods take turns in one process, ten steps each, so that whatever else the machine does hits them alike.
Every step has a batch of its own, with noisy labels that can be learned: a network that knows a batch by
heart has gradients near zero, whose arithmetic takes much longer. Steps are measured once searches are over.
*The limit* is SGD on the network whose output layer has copies x classes units: the same arithmetic without
the bookkeeping. Usage:
python benchmarks/step.py [--rounds 300] [--threads 1] [--workloads mlp,cnn] [--mean]
[--processor]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import alrao
from alrao.statistics import batch_norms

BLOCK = 10
"""Steps that a method takes before it is the next one's turn."""


class CharacterLSTM(nn.Module):
    def __init__(self, symbols: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, 100)
        self.lstm = nn.LSTM(100, 100, 2, batch_first=True)
        self.decoder = nn.Linear(100, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.lstm(self.embedding(x))[0]).flatten(0, 1)


@dataclass
class Workload:
    title: str
    net: Callable[[int], nn.Module]  # takes the number of outputs
    classes: int
    copies: int
    inputs: Callable[[], Tensor]
    goal: float  # of Alrao's time, in units of the limit's

    def batch(self) -> tuple[Tensor, Tensor]:
        """New inputs, and the classes that a random linear map gives them with some noise."""
        x = self.inputs()
        known = torch.Generator().manual_seed(0)
        if x.is_floating_point():
            rows = x.flatten(1)
            scores = rows @ torch.randn(rows.shape[1], self.classes, generator=known) / rows.shape[1] ** 0.5
        else:
            scores = torch.randn(self.classes, self.classes, generator=known)[x.flatten()]
        return x, (scores + 0.5 * torch.randn_like(scores)).argmax(1)


def mlp(outputs: int) -> nn.Module:
    hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(256, outputs))


def cnn(outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for i, width in enumerate((16, 32, 64, 64)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i < 3 else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        channels = width
    return nn.Sequential(*layers, nn.Linear(64, outputs))


def wide(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, outputs))


WORKLOADS = {
    "mlp": Workload(
        "MLP 64-256-256-10, batch 32", mlp, 10, 10,
        lambda: torch.randn(32, 64), 1.45,
    ),
    "cnn": Workload(
        "CNN 16-32-64-64 with BatchNorm, 32x32, batch 32", cnn, 10, 10,
        lambda: torch.randn(32, 3, 32, 32), 1.08,
    ),
    "lstm": Workload(
        "LSTM 2x100, 50 symbols, 20x70, 6 copies", lambda outputs: CharacterLSTM(50, outputs), 50, 6,
        lambda: torch.randint(50, (20, 70)), 1.20,
    ),
    "wide": Workload(
        "Linear 512-512-1000, batch 64, 10 copies", wide, 1000, 10,
        lambda: torch.randn(64, 512), 1.15,
    ),
}  # fmt: skip


def methods(workload: Workload) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
    """Each method's model and optimizer, freshly made."""

    def plain(make: Callable[[nn.Module], torch.optim.Optimizer], outputs: int = workload.classes):
        net = workload.net(outputs)
        return net, make(net)

    def with_alrao(make: Callable[[alrao.Alrao], torch.optim.Optimizer]):
        model = alrao.Alrao(workload.net(workload.classes), workload.copies)
        return model, make(model)

    found = {
        "SGD": plain(lambda net: torch.optim.SGD(net.parameters(), lr=1e-3)),
        "limit": plain(
            lambda net: torch.optim.SGD(net.parameters(), lr=1e-3), workload.copies * workload.classes
        ),
        "Alrao": with_alrao(lambda model: alrao.SGD(model, lr=(1e-5, 1e-2))),
        "Adam": plain(lambda net: torch.optim.Adam(net.parameters())),
        "Alrao-Adam": with_alrao(lambda model: alrao.Adam(model, lr=(1e-6, 1e-2))),
        "Auto, copies": with_alrao(alrao.Auto),
        "Auto": plain(alrao.Auto),
    }
    if batch_norms(found["SGD"][0]):  # what their statistics at the averaged weights cost
        found["Auto, as gathered"] = with_alrao(lambda model: alrao.Auto(model, recalibrate=False))
    try:
        from dadaptation import DAdaptSGD
        from dog import DoG
        from prodigyopt import Prodigy
        from schedulefree import SGDScheduleFree
    except ImportError as missing:
        warnings.warn(f"the peers are left out: {missing} (pip install alrao-lab[peers])", stacklevel=2)
        return found
    found["Prodigy"] = plain(lambda net: Prodigy(net.parameters()))
    found["D-Adapt SGD"] = plain(lambda net: DAdaptSGD(net.parameters()))
    found["DoG"] = plain(lambda net: DoG(net.parameters()))

    def schedule_free(net: nn.Module) -> torch.optim.Optimizer:
        optimizer = SGDScheduleFree(net.parameters(), lr=1e-3)
        optimizer.train()
        return optimizer

    found["Schedule-Free"] = plain(schedule_free)
    return found


def measure(
    workload: Workload,
    rounds: int,
    warmup: int,
    clock: Callable[[], float],
    average: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """The average seconds of a step of each method, after some steps that are not measured."""
    torch.manual_seed(0)
    running = methods(workload)
    times: dict[str, list[float]] = {name: [] for name in running}
    searches = [each.search for _, each in running.values() if isinstance(each, alrao.Auto)]
    gc.disable()

    def take_turns(measured: bool) -> None:
        batches = [workload.batch() for _ in range(BLOCK)]
        for name, (model, optimizer) in running.items():
            for x, y in batches:
                start = clock()
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                if measured:
                    times[name].append(clock() - start)
            gc.collect(0)

    done = 0
    while done < warmup or not all(each.over for each in searches):
        take_turns(measured=False)
        done += BLOCK
    for _ in track(range(rounds // BLOCK), description=workload.title, transient=True):
        take_turns(measured=True)
    gc.enable()
    return {name: average(seconds) for name, seconds in times.items()}


def middle(seconds: list[float]) -> float:
    """The mean without the tenth at each end."""
    tenth = len(seconds) // 10
    return statistics.fmean(sorted(seconds)[tenth : len(seconds) - tenth])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=300, help="steps of each method (fewer for slow workloads)"
    )
    parser.add_argument("--warmup", type=int, default=10, help="steps before, and those of the searches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--mean", action="store_true", help="trimmed means: every fifth step of Auto is longer"
    )
    parser.add_argument("--processor", action="store_true", help="measure processor time, on a busy machine")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.processor else time.perf_counter
    found = {}
    for key in args.workloads.split(","):
        workload = WORKLOADS[key]
        rounds = args.rounds if key in ("mlp", "lstm") else max(20, args.rounds // 4)
        found[key] = measure(workload, rounds, args.warmup, clock, middle if args.mean else statistics.median)
    title = f"Step time in units of plain SGD; {args.threads} thread(s) of {os.cpu_count()} cores"
    caption = f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}"
    table = Table(title=title, caption=caption)
    names = dict.fromkeys(name for seconds in found.values() for name in seconds)
    for name in ("workload", *names, "Alrao / limit", "goal"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for key, seconds in found.items():
        base, goal = seconds["SGD"], WORKLOADS[key].goal
        cells = [f"{seconds[name] / base:.2f}" if name in seconds else "" for name in names if name != "SGD"]
        ratio = seconds["Alrao"] / seconds["limit"]
        table.add_row(WORKLOADS[key].title, f"{base * 1e3:.2f} ms", *cells, f"{ratio:.2f}", f"{goal:.2f}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
