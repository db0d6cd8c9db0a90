"""Where an epoch's time goes: reading and augmenting, the network, the bookkeeping of a run.

Trains one epoch of a task as the workbench does and times the pieces, in processor time. Usage:
python benchmarks/epoch.py [--task cifar10] [--model small] [--method alrao] [--train-size N]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from alrao_lab import run as running
from alrao_lab.learner import Learner
from alrao_lab.resolve import resolve
from alrao_lab.settings import Settings
from alrao_lab.store import RunDirectory
from alrao_lab.team import Team


class Clock:
    """Adds up the time of pieces, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name, function):
        def wrapped(*args, **kwargs):
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start

        return wrapped

    def reading(self, name, batches) -> Iterator:
        step = self.timed(name, lambda: next(batches, None))
        while (batch := step()) is not None:
            yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--model", default="small")
    parser.add_argument("--method", default="alrao")
    parser.add_argument("--train-size", type=int)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wanted = Settings(
        task=args.task, model=args.model, method=args.method, train_size=args.train_size, epochs=1,
        threads=args.threads,
    )  # fmt: skip
    task, settings = resolve(wanted)
    device = torch.device("cpu")
    problem = task.load(settings, device)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports much of torch
    clock = Clock()
    for name, read in (("batches", problem.batches), ("evaluation", problem.evaluation)):
        setattr(problem, name, lambda *a, read=read: clock.reading("reading and augmenting", iter(read(*a))))
    for name in ("forward", "loss", "score"):
        setattr(problem, name, clock.timed("network: forward", getattr(problem, name)))
    Learner.step = clock.timed("network: backward and step", Learner.step)
    for name in ("save", "write", "write_metrics"):
        setattr(RunDirectory, name, clock.timed("run directory", getattr(RunDirectory, name)))
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        running.train(problem, settings, RunDirectory(Path(folder)), Team(device))
        total = time.process_time() - start
    clock.seconds["everything else"] = total - sum(clock.seconds.values())
    table = Table(
        title=f"One epoch of {args.task} {args.model}, {args.method}: {problem.steps} steps, {total:.1f} s",
        caption=f"{args.threads} thread(s) of {os.cpu_count()} cores, {date.today()}, "
        f"torch {torch.__version__}, Python {platform.python_version()}",
    )
    table.add_column("piece")
    table.add_column("share, %", justify="right")
    for name, seconds in clock.seconds.items():
        table.add_row(name, f"{100 * seconds / total:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
