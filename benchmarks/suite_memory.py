"""Memory of a run of each contender of the suite: weights, gradients and the optimizer's state.

Each trains for 60 steps, so that Auto is past its search. Usage:
ALRAO_DATA=… python benchmarks/suite_memory.py [--workloads dense,lstm-ptb]
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_leaves

from alrao.lab.loop import Loop
from alrao.lab.run import run
from alrao.lab.settings import Settings
from alrao.lab.suite.contenders import CONTENDERS, Contender
from alrao.lab.suite.workloads import WORKLOADS

STEPS = 60


class EnoughError(Exception):
    """Stops a training after its memory was measured."""


def memory_of(workload: str, contender: Contender) -> int:
    """Return the bytes of all tensors that the training keeps from one step to the next."""
    found = 0

    def watch(loop: Loop) -> None:
        nonlocal found
        if loop.progress.total >= STEPS:
            learner = loop.learner
            grads = [p.grad for p in learner.model.parameters() if p.grad is not None]
            kept = [leaf for leaf in tree_leaves((learner.state_dict(), grads)) if isinstance(leaf, Tensor)]
            found = sum({leaf.data_ptr(): leaf.nbytes for leaf in kept}.values())
            raise EnoughError

    common = Settings(method=contender.methods[0], schedule=contender.schedule, budget="mini", threads=1)
    settings = replace(WORKLOADS[workload].settings(common), **contender.settings)
    with tempfile.TemporaryDirectory() as folder, suppress(EnoughError):
        run(settings, [Path(folder)], watch)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="dense,lstm-ptb")
    names = parser.parse_args().workloads.split(",")
    torch.set_num_threads(1)
    table = Table("contender", *names, title="Memory, in units of SGD's without momentum")
    base = {name: memory_of(name, CONTENDERS["sgd"]) for name in names}
    for contender in CONTENDERS.values():
        table.add_row(contender.name, *(f"{memory_of(name, contender) / base[name]:.2f}" for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()
