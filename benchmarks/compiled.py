"""Time of one compiled training step, as a ratio to the compiled limit: SGD with all copies' output units.

Two pieces are compiled, each once: forward and loss, whose backward torch compiles with it, and the step.
Both methods take turns in one process, ten steps each. Usage: python benchmarks/compiled.py [--rounds 300]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from step import BLOCK, WORKLOADS, Workload
from torch import Tensor

import alrao


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    """One training step of a model, from two compiled pieces."""
    loss_of = torch.compile(lambda x, y: F.cross_entropy(model(x), y))
    update = torch.compile(optimizer.step)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        update()

    return step


def methods(workload: Workload) -> dict[str, Callable[[Tensor, Tensor], None]]:
    """The compiled step of each method."""
    limit = workload.net(workload.copies * workload.classes)
    model = alrao.Alrao(workload.net(workload.classes), workload.copies)
    return {
        "limit": step_of(limit, torch.optim.SGD(limit.parameters(), lr=1e-3)),
        "Alrao": step_of(model, alrao.SGD(model, lr=(1e-5, 1e-2), capturable=True)),
    }


def measure(workload: Workload, rounds: int) -> dict[str, float]:
    """The median seconds of a step of each method."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    running = methods(workload)
    batches = [workload.batch() for _ in range(8)]
    times: dict[str, list[float]] = {name: [] for name in running}
    for turn in range(rounds // BLOCK + 1):
        for name, step in running.items():
            for i in range(BLOCK):
                start = time.perf_counter()
                step(*batches[i % len(batches)])
                if turn > 0:
                    times[name].append(time.perf_counter() - start)
        gc.collect(0)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300, help="steps of each method")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", ".*autograd.function.Function.* should not be instantiated")
    table = Table(title=f"Compiled training step; {args.threads} thread(s), torch {torch.__version__}")
    for name in ("workload", "limit", "Alrao", "Alrao / limit", "goal"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for key in args.workloads.split(","):
        seconds = measure(WORKLOADS[key], args.rounds)
        cells = [f"{each * 1e3:.2f} ms" for each in seconds.values()]
        table.add_row(WORKLOADS[key].title, *cells, f"{seconds['Alrao'] / seconds['limit']:.2f}", "1.10")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
