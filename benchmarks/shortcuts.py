"""What the shortcuts of alrao/shortcuts.py save on the MLP of step.py, in percent of a step.

Each shortcut is taken out in turn; ten steps with all of them and ten without each one alternate in one
process, and each ten are compared with the ten with all of them just before. Time is that of the thread, so
that other processes disturb little.
Usage: python benchmarks/shortcuts.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from step import BLOCK, WORKLOADS
from torch.optim import Optimizer

import alrao
from alrao.heads import softmax
from alrao.tensors import LogProbs

STEPS = 1000
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
    shortcut = softmax.apply_mixture
    function = softmax._CategoricalMixture
    softmax.apply_mixture = lambda *args: LogProbs.of(function.apply(*args), 1)
    try:
        yield
    finally:
        softmax.apply_mixture = shortcut


def timed(model: alrao.Alrao, optimizer: Optimizer, batches) -> list[float]:
    """Return the seconds of some steps."""
    seconds = []
    for x, y in batches:
        start = time.thread_time()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        seconds.append(time.thread_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="runs with and without each shortcut")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = WORKLOADS["mlp"]
    batches = [workload.batch() for _ in range(BLOCK)]
    model = alrao.Alrao(workload.net(workload.classes), workload.copies)
    fast = alrao.SGD(model, lr=(1e-5, 1e-2))
    slow = Plain(model, lr=(1e-5, 1e-2))
    ways = {
        "": (fast, nullcontext),
        "mark_only_if_watched, profiler_is_on": (slow, nullcontext),
        "applied_as": (fast, plain_apply),
    }
    saved: dict[str, list[float]] = {name: [] for name in ways if name}
    gc.disable()
    for _ in track(range(rounds), description="shortcuts", transient=True):
        ratios: dict[str, list[float]] = {name: [] for name in saved}
        for _ in range(STEPS // BLOCK):
            seconds = {}
            for name, (optimizer, without) in ways.items():
                with without():
                    seconds[name] = statistics.median(timed(model, optimizer, batches))
            for name, found in ratios.items():
                found.append(seconds[name] / seconds[""])
            gc.collect(0)
        for name, percents in saved.items():
            percents.append(100 * (statistics.median(ratios[name]) - 1))
    table = Table(title=f"Slower without it, % of a step; {rounds} interleaved runs of {STEPS} steps")
    for column in ("shortcut", "median", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "shortcut" else "right")
    for name, percents in saved.items():
        table.add_row(name, *(f"{f(percents):+.1f}" for f in (statistics.median, min, max)))
    Console().print(table)


if __name__ == "__main__":
    main()
