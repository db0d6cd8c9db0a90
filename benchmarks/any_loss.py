"""Plain networks under Auto on tasks without a likelihood, beside Adam at seven rates and Prodigy.

Each run is a line in a file; a run that is there is skipped, so the same command resumes. The table at the
end has the mean and the deviation over the seeds, each measure on its own scale. Usage:
python benchmarks/any_loss.py [--tasks gan ctc] [--methods auto adam prodigy] [--seeds 3] [--out runs.jsonl]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from math import inf, isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from any_loss_tasks import TASKS, Task
from torch import nn
from torch.optim import Optimizer

import alrao

RATES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
DEFAULT = 1e-3
"""The rate of torch's Adam by default: that method is the run at this rate."""

Row = dict[str, Any]


class Method:
    """How to make an optimizer for a network, and the options of an agent of Stable-Baselines3."""

    def __init__(self, make: Callable[[nn.Module], Optimizer], agent: Callable[[], dict[str, Any]]) -> None:
        self.make, self.agent = make, agent

    def __call__(self, net: nn.Module) -> Optimizer:
        return self.make(net)


def adam(rate: float) -> Method:
    return Method(lambda net: torch.optim.Adam(net.parameters(), lr=rate), lambda: {"learning_rate": rate})


def auto() -> Method:
    def agent() -> dict[str, Any]:
        from alrao.integrations.sb3 import PolicyAuto

        return {"learning_rate": 1.0, "policy_kwargs": {"optimizer_class": PolicyAuto}}

    return Method(alrao.Auto, agent)


def prodigy() -> Method:
    from prodigyopt import Prodigy

    policy = {"optimizer_class": Prodigy}
    return Method(
        lambda net: Prodigy(net.parameters()), lambda: {"learning_rate": 1.0, "policy_kwargs": policy}
    )


METHODS: dict[str, Callable[[], Method]] = {"auto": auto, "prodigy": prodigy}
METHODS |= {f"adam@{rate:g}": lambda rate=rate: adam(rate) for rate in RATES}  # type: ignore[misc]


def chosen(names: list[str]) -> list[str]:
    """Return the methods that are asked for; ``adam`` is Adam's default, ``adams`` all of its rates."""
    found: list[str] = []
    for name in names:
        if name == "adams":
            found += [f"adam@{rate:g}" for rate in RATES]
        else:
            found.append(f"adam@{DEFAULT:g}" if name == "adam" else name)
    unknown = [name for name in found if name not in METHODS]
    if unknown:
        raise SystemExit(
            f"unknown methods {', '.join(unknown)}: choose among adam, adams, {', '.join(METHODS)}"
        )
    return list(dict.fromkeys(found))


def run(task: str, method: str, seed: int, part: float) -> Row:
    """Return the row of one run; a measure that is not finite is None."""
    torch.manual_seed(seed)
    begun = time.process_time()
    value = TASKS[task].run(seed, METHODS[method](), part)
    row: Row = {"task": task, "method": method, "seed": seed, "part": part}
    row |= {"value": value if isfinite(value) else None, "seconds": round(time.process_time() - begun, 2)}
    return row | {"torch": torch.__version__, "alrao": alrao.__version__}


def keep(path: Path, row: Row) -> None:
    """Append a row, on a line of its own."""
    cut_off = path.exists() and not path.read_text("utf-8").endswith("\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut_off + json.dumps(row) + "\n")


def read(path: Path) -> list[Row]:
    """Return the rows of a file; a line that was cut off is left out."""
    rows = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


# The table.


def values(rows: list[Row], task: str, method: str) -> list[float]:
    """Return the measures of a method; those of failed runs are the worst of all."""
    worst = -inf if TASKS[task].higher else inf
    chosen = [row for row in rows if row["task"] == task and row["method"] == method]
    return [worst if row["value"] is None else row["value"] for row in chosen]


def cell(found: list[float]) -> str:
    if not found:
        return "–"
    finite = [value for value in found if isfinite(value)]
    failed = len(found) - len(finite)
    text = f"{mean(finite):.3g} ± {stdev(finite) if len(finite) > 1 else 0:.2g}" if finite else ""
    return text + (f" ({failed} of {len(found)} failed)" if failed else "")


def best_rate(rows: list[Row], task: Task, name: str, seeds: int) -> str | None:
    """Return the rate with the best mean among those that were run with all seeds."""
    found = {f"adam@{rate:g}": values(rows, name, f"adam@{rate:g}") for rate in RATES}
    means = {method: mean(each) for method, each in found.items() if len(each) >= seeds}
    return (max if task.higher else min)(means, key=lambda method: means[method]) if means else None


def behind(rows: list[Row], task: Task, name: str, method: str, best: str | None) -> str:
    """Return how far a method's mean is behind the best rate's, in deviations of the latter."""
    ours, theirs = values(rows, name, method), values(rows, name, best) if best else []
    if not ours or len(theirs) < 2 or not all(map(isfinite, [*ours, *theirs])):
        return "–"
    gap = mean(theirs) - mean(ours) if task.higher else mean(ours) - mean(theirs)
    return f"{gap / stdev(theirs):+.1f}" if stdev(theirs) > 0 else f"{gap:+.3g} of 0"


def table(rows: list[Row], tasks: list[str], seeds: int) -> str:
    head = [
        "task",
        "measure",
        "Auto",
        "Adam's default",
        "Adam, best of 7",
        "rate",
        "Prodigy",
        "Auto behind",
        "s",
    ]
    lines = [" | ".join(["", *head, ""]).strip(), "|---" * len(head) + "|"]
    for name in tasks:
        task = TASKS[name]
        best = best_rate(rows, task, name, seeds)
        took = [row["seconds"] for row in rows if row["task"] == name and row["method"] == "auto"]
        cells = [name, f"{task.measure} {'↑' if task.higher else '↓'}"]
        cells += [cell(values(rows, name, method)) for method in ("auto", f"adam@{DEFAULT:g}")]
        cells += [
            cell(values(rows, name, best)) if best else "–",
            best.removeprefix("adam@") if best else "–",
        ]
        cells += [cell(values(rows, name, "prodigy")), behind(rows, task, name, "auto", best)]
        lines.append("| " + " | ".join([*cells, f"{mean(took):.0f}" if took else "–"]) + " |")
    return "\n".join(lines) + (
        "\n\n*Auto behind*: the gap of the means, in deviations of the best rate's runs; negative is ahead."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--methods", nargs="+", default=["auto", "adams", "prodigy"], help="adam, adams, auto, …"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", type=float, default=1.0, help="part of the steps, to try it")
    parser.add_argument("--out", type=Path, default=Path("runs/any_loss.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["task"], r["method"], r["seed"], r["part"]) for r in read(options.out)}
    for seed in range(options.seeds):
        for task in options.tasks:
            for method in chosen(options.methods):
                if (task, method, seed, options.part) in done:
                    continue
                row = run(task, method, seed, options.part)
                keep(options.out, row)
                print(f"{task} {method} seed {seed}: {row['value']} in {row['seconds']} s", flush=True)
    rows = [row for row in read(options.out) if row["part"] == options.part and row["seed"] < options.seeds]
    print(table(rows, options.tasks, options.seeds))


if __name__ == "__main__":
    main()
