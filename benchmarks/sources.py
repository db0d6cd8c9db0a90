"""What the body's own knowledge adds to that of the copies: Auto with both sources, and with copies alone.

The body's centre counts where it is far above the copies'. On most workloads of the suite it never is, so
both trainings are the same to the bit: the search is watched first, and only the seeds on which it is not the
same are trained. Rows go to a file, and those that are there are not made again. Usage:
ALRAO_DATA=… python benchmarks/sources.py [--workloads deep,sigmoid] [--seeds 5] [--out sources.jsonl]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from alrao.auto import search as rate_search
from alrao.lab.loop import Loop
from alrao.lab.run import run
from alrao.lab.settings import MethodSpec, Settings
from alrao.lab.suite.workloads import WORKLOADS

BOTH = rate_search.AHEAD


class EnoughError(Exception):
    """Stops a training that is only watched."""


def settings_of(workload: str, seed: int) -> Settings:
    common = replace(Settings(), method=MethodSpec("auto"), seed=seed, threads=1, budget="mini")
    return WORKLOADS[workload].settings(common)


def train_until(done: Callable[[Loop], bool], settings: Settings) -> None:
    """Train, and stop after the first step of which ``done`` says so."""

    def watch(loop: Loop) -> None:
        if done(loop):
            raise EnoughError

    with tempfile.TemporaryDirectory() as folder, suppress(EnoughError):
        run(settings, [Path(folder)], watch)


def body_counts(workload: str, seed: int) -> bool:
    """Return whether the body's centre ever is that far above the copies' while rates are searched for."""
    seen = False

    def done(loop: Loop) -> bool:
        nonlocal seen
        search = loop.learner.optimizer.search
        seen |= search.interval() != replace(search, body_observed=0).interval()
        return seen or search.over

    train_until(done, settings_of(workload, seed))
    return seen


def test_loss(workload: str, seed: int, ahead: float) -> float:
    """Return the test loss of a whole training, where the body's centre counts ``ahead`` times above."""
    rate_search.AHEAD = ahead
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = run(settings_of(workload, seed), [Path(folder)])
            result = found.result
            assert result is not None
            return float(result["test"]["loss"])
    finally:
        rate_search.AHEAD = BOTH


def row_of(workload: str, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"workload": workload, "seed": seed, "counts": body_counts(workload, seed)}
    if row["counts"]:
        row |= {"both": test_loss(workload, seed, BOTH), "copies": test_loss(workload, seed, inf)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("sources.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.touch()
    rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    known = {(row["workload"], row["seed"]) for row in rows}
    names = args.workloads.split(",")
    for seed in range(args.seeds):
        for name in names:
            if (name, seed) not in known:
                rows.append(row_of(name, seed))
                with args.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    table = Table(title="Test loss with both sources, against copies alone")
    for column in ("workload", "seeds on which they differ", "difference, mean of all seeds"):
        table.add_column(column)
    for name in names:
        of = [row for row in rows if row["workload"] == name]
        gaps = [row["both"] / row["copies"] - 1 if row["counts"] else 0.0 for row in of]
        table.add_row(name, f"{sum(row['counts'] for row in of)} of {len(of)}", f"{mean(gaps):+.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
