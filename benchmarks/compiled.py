"""Time of one compiled training step, as a ratio to the compiled limit: SGD with all copies' output units.

One function is compiled, of forward, loss, backward and step; for the LSTM, which torch does not trace, and
the CNN, which is faster so, two pieces: forward and loss, whose backward torch compiles with it, and the
step. Both methods are compiled in the same way and take turns in one process, ten steps each. torch's own
optimizers begin a second graph at their step; with ``--one-graph`` the limit is SGD written for one graph.
Usage: python benchmarks/compiled.py [--rounds 300] [--workloads mlp,cnn] [--pieces] [--at-once]
[--one-graph] [--processor]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from step import BLOCK, WORKLOADS, Workload
from torch import Tensor

import alrao

IN_PIECES = {"lstm": "torch does not trace its layer", "cnn": "in one graph, torch 2.13 reuses less memory"}
"""Workloads that are compiled in two pieces."""


class TracedSGD:
    """SGD without the graph break of ``torch.optim``."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params, self.lr = list(params), lr

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        with torch.no_grad():
            torch._foreach_add_(self.params, [p.grad for p in self.params], alpha=-self.lr)


def step_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | TracedSGD, pieces: bool
) -> Callable[[Tensor, Tensor], None]:
    """One compiled training step of a model, or one of two compiled pieces."""
    if pieces:
        loss_of = torch.compile(lambda x, y: F.cross_entropy(model(x), y))
        update = torch.compile(optimizer.step)

        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            loss_of(x, y).backward()
            update()

        return step

    # torch's own optimizers break the graph where their step begins.
    @torch.compile(fullgraph=isinstance(model, alrao.Alrao) or isinstance(optimizer, TracedSGD))
    def train(x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        train(x, y)

    return step


def methods(
    workload: Workload, pieces: bool, one_graph: bool = False
) -> dict[str, Callable[[Tensor, Tensor], None]]:
    """The compiled step of each method."""
    limit = workload.net(workload.copies * workload.classes)
    model = alrao.Alrao(workload.net(workload.classes), workload.copies)
    sgd = TracedSGD if one_graph else torch.optim.SGD
    return {
        "limit": step_of(limit, sgd(limit.parameters(), lr=1e-3), pieces),
        "Alrao": step_of(model, alrao.SGD(model, lr=(1e-5, 1e-2), capturable=True), pieces),
    }


def measure(
    workload: Workload, rounds: int, pieces: bool, one_graph: bool, clock: Callable[[], float]
) -> dict[str, float]:
    """The median seconds of a step of each method."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.config.trace_autograd_ops = not pieces
    running = methods(workload, pieces, one_graph)
    batches = [workload.batch() for _ in range(8)]
    times: dict[str, list[float]] = {name: [] for name in running}
    for turn in range(rounds // BLOCK + 1):
        for name, step in running.items():
            for i in range(BLOCK):
                start = clock()
                step(*batches[i % len(batches)])
                if turn > 0:
                    times[name].append(clock() - start)
        gc.collect(0)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300, help="steps of each method")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--pieces", action="store_true", help="compile two pieces for every workload")
    parser.add_argument("--at-once", action="store_true", help="compile one function for every workload")
    parser.add_argument("--one-graph", action="store_true", help="compile the limit's step in its graph too")
    parser.add_argument("--processor", action="store_true", help="measure processor time, on a busy machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.processor else time.perf_counter
    warnings.filterwarnings("ignore", ".*autograd.function.Function.* should not be instantiated")
    table = Table(title=f"Compiled training step; {args.threads} thread(s), torch {torch.__version__}")
    for name in ("workload", "compiled", "limit", "Alrao", "Alrao / limit", "goal"):
        table.add_column(name, justify="left" if name in ("workload", "compiled") else "right")
    for key in args.workloads.split(","):
        pieces = args.pieces or (key in IN_PIECES and not args.at_once)
        seconds = measure(WORKLOADS[key], args.rounds, pieces, args.one_graph, clock)
        cells = [f"{each * 1e3:.2f} ms" for each in seconds.values()]
        ratio = f"{seconds['Alrao'] / seconds['limit']:.2f}"
        table.add_row(WORKLOADS[key].title, "two pieces" if pieces else "at once", *cells, ratio, "1.10")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
