"""Time of a step of this tree against another commit's, in the same process.

The other commit's package is imported beside this one under another name. Both take turns, ten steps each, on
the same batches. Time is the process's own, so that other processes disturb little.
Usage: python benchmarks/against.py e791116 [--optimizer SGD] [--runs 10] [--steps 200] [--workloads mlp,cnn]
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from step import BLOCK, WORKLOADS, Workload

import alrao

SETTINGS = {"SGD": {"lr": (1e-5, 1e-2)}, "Adam": {"lr": (1e-6, 1e-2)}}
"""Those of step.py; other optimizers run at their defaults."""


def package_of(commit: str, directory: str) -> ModuleType:
    """Import the package as it was at a commit."""
    root = Path(__file__).parents[1]
    tree = subprocess.run(["git", "archive", commit, "src/alrao"], cwd=root, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(tree.stdout)) as archive:
        archive.extractall(directory, filter="data")
    place = Path(directory, "src", "alrao")
    spec = importlib.util.spec_from_file_location(
        "alrao_before", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["alrao_before"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(workload: Workload, packages: list[ModuleType], optimizer: str, steps: int) -> list[float]:
    """Return the median seconds of a step with each of the packages."""
    torch.manual_seed(0)
    batches = [workload.batch() for _ in range(8)]
    running = []
    for package in packages:
        torch.manual_seed(1)
        model = package.Alrao(workload.net(workload.classes), workload.copies)
        running.append((model, getattr(package, optimizer)(model, **SETTINGS.get(optimizer, {})), []))
    warm_up = 6 if optimizer == "Auto" else 1  # turns: the search takes 50 steps
    for turn in range(-warm_up, steps // BLOCK):
        for model, optimizer_, seconds in running:
            for i in range(BLOCK):
                x, y = batches[i % len(batches)]
                start = time.process_time()
                optimizer_.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer_.step()
                if turn >= 0:
                    seconds.append(time.process_time() - start)
            gc.collect(0)
    return [statistics.median(seconds) for _, _, seconds in running]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("--optimizer", default="SGD", help="name of the optimizer")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200, help="steps of a run (fewer for slow workloads)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    title = f"alrao.{args.optimizer}: time of a step, in units of {args.commit}'s; {args.runs} runs"
    table = Table(title=title, caption=f"torch {torch.__version__}")
    for column in ("workload", "before", "median", "lowest", "highest"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    with tempfile.TemporaryDirectory() as directory:
        packages = [package_of(args.commit, directory), alrao]
        gc.disable()
        for key in args.workloads.split(","):
            workload = WORKLOADS[key]
            steps = args.steps if key == "mlp" else max(2 * BLOCK, args.steps // 5)
            ratios, before = [], []
            for i in track(range(args.runs), description=workload.title, transient=True):
                if i % 2:
                    new, old = run(workload, packages[::-1], args.optimizer, steps)
                else:
                    old, new = run(workload, packages, args.optimizer, steps)
                ratios.append(new / old)
                before.append(old)
            cells = [f"{f(ratios):.3f}" for f in (statistics.median, min, max)]
            table.add_row(workload.title, f"{1e3 * statistics.median(before):.2f} ms", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
