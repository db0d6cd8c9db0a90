"""What the shortcuts of alrao/shortcuts.py save on the MLP of step.py, in percent of a step.

Each shortcut is taken out in turn; runs with and without it alternate in one process. Time is that of the
thread, so that other processes disturb little. Usage: python benchmarks/shortcuts.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from step import WORKLOADS
from torch.optim import Optimizer

import alrao
from alrao.heads import mixture

STEPS = 200
"""Steps of a run, with or without a shortcut."""


class Plain(alrao.SGD):
    """SGD with torch's own marks around ``step`` and ``zero_grad``."""

    profile_hook_step = staticmethod(Optimizer.profile_hook_step)

    def zero_grad(self, set_to_none: bool = True) -> None:
        Optimizer.zero_grad(self, set_to_none)
        self.model.head.evidence.grad = None

    def step(self, closure=None):
        return alrao.SGD.step.__wrapped__(self, closure)


@contextmanager
def plain_apply() -> Iterator[None]:
    """Let the head's function be applied, and its output marked, by torch's public interface."""
    shortcut = mixture.apply_as
    mixture.apply_as = lambda kind, function, *args: kind.of(function.apply(*args), 1)
    try:
        yield
    finally:
        mixture.apply_as = shortcut


def run(model: alrao.Alrao, optimizer: Optimizer, batches) -> float:
    start = time.thread_time()
    for i in range(STEPS):
        x, y = batches[i % len(batches)]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="runs with and without each shortcut")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = WORKLOADS["mlp"]
    batches = [workload.batch() for _ in range(8)]
    model = alrao.Alrao(workload.net(workload.classes), workload.copies)
    fast = alrao.SGD(model, lr=(1e-5, 1e-2))
    slow = Plain(model, lr=(1e-5, 1e-2))
    saved: dict[str, list[float]] = {"mark_only_if_watched, profiler_is_on": [], "apply_as": []}
    gc.disable()
    run(model, fast, batches), run(model, slow, batches)
    for _ in track(range(rounds), description="shortcuts", transient=True):
        with_all = run(model, fast, batches)
        without_marks = run(model, slow, batches)
        with plain_apply():
            without_apply = run(model, fast, batches)
        for name, seconds in zip(saved, (without_marks, without_apply), strict=True):
            saved[name].append(100 * (seconds / with_all - 1))
        gc.collect(0)
    table = Table(title=f"Slower without it, % of a step; {rounds} interleaved runs of {STEPS} steps")
    for column in ("shortcut", "median", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "shortcut" else "right")
    for name, percents in saved.items():
        table.add_row(name, *(f"{f(percents):+.1f}" for f in (statistics.median, min, max)))
    Console().print(table)


if __name__ == "__main__":
    main()
