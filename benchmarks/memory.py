"""Memory of the rates, beside that of the parameters, and the largest tensor that a step makes.

The network is a VGG19 for 32x32 images. With ``--suite``: the weights, gradients and state that each
contender of the suite keeps, after 120 steps, when Auto is past its search. Usage:
[ALRAO_DATA=…] python benchmarks/memory.py [--suite noisy-4000,lstm]
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import alrao
from alrao_lab.loop import Loop
from alrao_lab.run import run
from alrao_lab.settings import MethodSpec, Settings
from alrao_lab.suite.contenders import CONTENDERS
from alrao_lab.suite.workloads import WORKLOADS

VGG19 = [64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0]


def vgg19() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in VGG19:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class LargestResult(TorchDispatchMode):
    """Remembers the bytes of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in known:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return result


STEPS = 120
"""Steps of a contender before its memory is measured."""


class EnoughError(Exception):
    """Stops a training that is only measured."""


def memory_of(workload: str, settings: Settings) -> int:
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

    with tempfile.TemporaryDirectory() as folder, suppress(EnoughError):
        run(WORKLOADS[workload].settings(settings), [Path(folder)], watch)
    return found


def of_suite(names: list[str]) -> Table:
    table = Table("contender", *names, title="Memory, in units of SGD's without momentum")
    common = Settings(method=MethodSpec("sgd", 0.01), budget="mini", threads=1)
    base = {name: memory_of(name, common) for name in names}
    for contender in CONTENDERS.values():
        settings = contender.settings(common, contender.first[0], seed=0)
        table.add_row(contender.name, *(f"{memory_of(name, settings) / base[name]:.2f}" for name in names))
    return table


def of_rates() -> Table:
    torch.manual_seed(0)
    table = Table(title="VGG19 for 32x32 images, 10 copies of the output layer, float32")
    for column in (
        "optimizer",
        "parameters, MB",
        "places and rates, %",
        "largest parameter, MB",
        "largest tensor made by step, MB",
    ):
        table.add_column(column, justify="left" if column == "optimizer" else "right")
    for name, make in {
        "SGD": alrao.SGD,
        "SGD, momentum, decay": lambda model: alrao.SGD(model, momentum=0.9, weight_decay=1e-4),
        "Adam": alrao.Adam,
        "AdamW": alrao.AdamW,
    }.items():
        model = alrao.Alrao(vgg19())
        optimizer = make(model)
        for _ in range(2):  # the state exists from the first step on
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.tensor([0, 1])).backward()
            with LargestResult() as watch:
                optimizer.step()
        sizes = [p.numel() * p.element_size() for p in model.parameters()]
        places = [optimizer.state[p]["u"] for p in model.body_parameters()]
        rates = sum(each.nbytes for each in [*places, *map(optimizer.rates, model.parameters())])
        table.add_row(
            name,
            f"{sum(sizes) / 1e6:.2f}",
            f"{100 * rates / sum(sizes):.3f}",
            f"{max(sizes) / 1e6:.2f}",
            f"{watch.largest / 1e6:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", metavar="A,B", help="workloads of the suite to measure its contenders on")
    names = parser.parse_args().suite
    torch.set_num_threads(1)
    Console(width=140).print(of_suite(names.split(",")) if names else of_rates())


if __name__ == "__main__":
    main()
