"""BatchNorm's statistics under Auto: those gathered in training, those of `eval()`, and recalibrated ones.

Validation losses on the suite's choosing workloads that have BatchNorm, whole runs. `alrao.recalibrate` sees
9,600 training images. The last column is the time of an `eval()` in training steps; `benchmarks/step.py`
measures what the statistics cost in a step.
Usage: ALRAO_DATA=… python benchmarks/recalibration.py [--seeds 3] [--plain] [--only cnn]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from statistics import mean, stdev

import torch
from torch import Tensor

import alrao
from alrao_lab.methods import learner
from alrao_lab.resolve import resolve
from alrao_lab.settings import MethodSpec, Settings
from alrao_lab.suite.workloads import WORKLOADS
from alrao_lab.tasks.task import Supervised, evaluate
from alrao_lab.team import Team

NAMES = ("cnn", "separable-512", "resnet")
ROWS = 9600


def run(name: str, method: str, seed: int) -> tuple[float, float, float, float]:
    """Return three losses, and the time of an `eval()` in steps."""
    workload = WORKLOADS[name]
    if not workload.chosen_on:
        raise ValueError(f"{name} is held out: nothing of this library is run on it here")
    common = Settings(task=workload.task, seed=seed, method=MethodSpec(method))
    task, settings = resolve(workload.settings(common))
    team = Team(torch.device("cpu"))
    problem = task.load(settings, team.device)
    assert isinstance(problem, Supervised)
    problem.start(settings, team, partial(learner, settings=settings, problem=problem))
    model = problem.learner.model
    begin, steps = time.process_time(), 0
    for epoch in range(1, settings.epochs + 1):
        steps += sum(1 for _ in problem.epoch(epoch, 0))
    step = (time.process_time() - begin) / steps

    def loss() -> float:
        found = evaluate(problem, model, "valid", team)[problem.measures[0]]
        return float("nan") if found is None else found

    def inputs() -> Iterator[Tensor]:
        rows = 0
        for x in problem.calibration(1):
            rows += len(x)
            yield x
            if rows >= ROWS:
                return

    gathered = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
    begin = time.process_time()
    model.eval()
    switch = (time.process_time() - begin) / step
    alone = loss()
    shown = {name: buffer.clone() for name, buffer in model.named_buffers() if name in gathered}
    for name, buffer in gathered.items():
        model.get_buffer(name).copy_(buffer)
    in_training = loss()
    for name, buffer in shown.items():
        model.get_buffer(name).copy_(buffer)
    alrao.recalibrate(model, inputs())
    return in_training, alone, loss(), switch


def main() -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="networks without copies of the head")
    parser.add_argument("--only", default="", help="workloads whose names start like this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| workload | gathered in training | eval() | recalibrated | eval() against it, % | eval(), steps |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name in (each for each in NAMES if each.startswith(args.only)):
        method = "auto-plain" if args.plain else "auto"
        found = [run(name, method, seed) for seed in range(args.seeds)]
        in_training, alone, again, switch = zip(*found, strict=True)
        changes = [100 * (a / b - 1) for a, b in zip(alone, again, strict=True)]
        spread = f" ± {stdev(changes):.1f}" if args.seeds > 1 else ""
        losses = " | ".join(f"{mean(each):.3f}" for each in (in_training, alone, again))
        print(f"| {name} | {losses} | {mean(changes):+.1f}{spread} | {mean(switch):.1f} |", flush=True)


if __name__ == "__main__":
    main()
