"""How calm evaluations under Auto are: the validation loss that ``eval()`` shows during and after the search.

    ALRAO_DATA=… python benchmarks/calm.py [--seeds 5] [--every 5] [--beyond 50] [--plain] [--only cora]

Ten of the suite's choosing workloads, each evaluated at every few steps until some steps after the search,
on at most 500 validation rows. An evaluation that is more than 10 % above the best one before it is a *jump*.
The last line has the share of jumps among all evaluations of the search and among those after it, where a
loss that rises because the network overfits counts as well.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace
from functools import partial

import torch

import alrao
from alrao_lab.methods import learner
from alrao_lab.resolve import resolve
from alrao_lab.settings import MethodSpec, Settings
from alrao_lab.suite.workloads import WORKLOADS
from alrao_lab.tasks.task import Supervised, evaluate
from alrao_lab.team import Team

JUMP = 1.1
"""An evaluation this many times the best one before it is a jump."""

NAMES = (
    "picture-1500", "noisy-1000", "noisy-4000", "deep", "dense-4", "cora", "cnn", "finetune", "lstm", "vit",
)  # fmt: skip
"""Those whose first steps differ: the pictures differ only in their number of steps."""

TABLES = ("digits", "cancer", "wine")
"""Small data that the suite leaves out, because test losses vary by 15 to 137 % between seeds."""

ROWS, SYMBOLS = 500, 4000
"""Validation rows, or symbols of a text, of an evaluation."""


def run(name: str, method: str, seed: int, every: int, beyond: int) -> tuple[list[float], int]:
    """Return the loss at each evaluation, and the step at which the search was over."""
    steps, size = 550 + beyond, None
    settings = Settings(task=name, seed=seed, method=MethodSpec(method))
    if name not in TABLES:
        workload = WORKLOADS[name]
        if not workload.chosen_on:
            raise ValueError(f"{name} is held out: nothing of this library is run on it here")
        settings = workload.settings(replace(settings, task=workload.task))
        size = SYMBOLS if workload.data in ("ptb", "shakespeare") else ROWS
    settings = replace(settings, epochs=steps // every, every=every, valid_size=size, test_size=size)
    task, settings = resolve(settings)
    team = Team(torch.device("cpu"))
    problem = task.load(settings, team.device)
    assert isinstance(problem, Supervised)
    problem.start(settings, team, partial(learner, settings=settings, problem=problem))
    trained = problem.learner
    optimizer = trained.optimizer
    assert isinstance(optimizer, alrao.Auto)

    def loss() -> float:
        with trained.evaluating(()) as model:
            found = evaluate(problem, model, "valid", team)[problem.measures[0]]
        return float("nan") if found is None else found

    shown, over, done = [loss()], steps, 0
    for epoch in range(1, steps // every + 1):
        for _ in problem.epoch(epoch, 0):
            done += 1
            if optimizer.search.over:
                over = min(over, done)
        shown.append(loss())
        if done >= over + beyond:
            break
    return shown, over


def jumps(shown: list[float]) -> list[tuple[int, float]]:
    """Return the evaluations that are jumps, by number, and how far above the best one before they are."""
    best = shown[0]
    found = []
    for i, loss in enumerate(shown):
        if not loss <= JUMP * best:
            found.append((i, loss / best))
        best = min(best, loss)
    return found


def main() -> None:
    """Run the workloads and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--beyond", type=int, default=50, help="steps after the search")
    parser.add_argument("--plain", action="store_true", help="networks without copies of the head")
    parser.add_argument("--tables", action="store_true", help="small tables in place of the workloads")
    parser.add_argument("--only", default="", help="workloads whose names start like this")
    parser.add_argument("--curves", action="store_true", help="print every evaluation")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts = {True: [0, 0], False: [0, 0]}  # jumps and evaluations, in the search and after it
    runs = restless = 0
    for name in (each for each in (TABLES if args.tables else NAMES) if each.startswith(args.only)):
        lines = []
        for seed in range(args.seeds):
            method = "auto-plain" if args.plain else "auto"
            shown, over = run(name, method, seed, args.every, args.beyond)
            found = dict(jumps(shown))
            for i in range(1, len(shown)):
                searching = i * args.every <= over
                counts[searching][0] += i in found
                counts[searching][1] += 1
            runs, restless = runs + 1, restless + any(i * args.every <= over for i in found)
            worst = f" ({max(found.values()):.2f} from {min(found) * args.every})" if found else ""
            lines.append(f"{over}:{len(found)}{worst}")
            if args.curves:
                sys.stdout.write(f"  {' '.join(f'{loss:.3g}' for loss in shown)}\n")
        sys.stdout.write(f"{name:14s} end of search:jumps  {'  '.join(lines)}\n")
        sys.stdout.flush()
    (wild, of), (late, of_late) = counts[True], counts[False]
    sys.stdout.write(
        f"in the search {wild} of {of} evaluations are jumps, in {restless} of {runs} runs; "
        f"in the {args.beyond} steps after it {late} of {of_late}\n"
    )


if __name__ == "__main__":
    main()
