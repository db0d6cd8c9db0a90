"""What sleeping copies cost in quality, beside what a small change of the weights does to the same runs.

    ALRAO_DATA=… python benchmarks/sleeping_quality.py                     # about half an hour of one core
    ALRAO_DATA=… python benchmarks/sleeping_quality.py --workloads words --seeds 2

Any small change of a run changes its final loss: training amplifies it. So every run is compared with two
others on the same batches, seed by seed: one in which copies *sleep*, and a *null* run with all copies
awake whose weights are multiplied by 1 + 0.001 N(0, 1) once. What sleeping costs is what its differences
have beyond those of the null runs.

``words``: Penn Treebank's validation text, its 1,000 most frequent words, an LSTM. ``triples``: three of
scikit-learn's digits side by side, 1,000 classes: many classes made from real images. ``pairs``: two of
them, 100 classes, so small that many seeds are cheap. The three runs of a seed are one until the first copy
sleeps. They are compared by their test losses 97 and 291 steps later, at the end, and in the mean over the
last 97 steps, every eighth of which is measured. The winner is the copy with the largest mean weight in these
97 steps: where two copies are about as good, the switch passes from one to the other every few batches, with
all awake too, and the last batches alone say little. ``--methods auto,sgd`` adds the paper's method.

The table has the mean over the seeds of loss / loss of the run with all awake - 1, with its bootstrap
interval of 95 %. Finished runs are read from the file given as ``--keep``, so that the script can be
stopped anywhere and started again.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import alrao
from alrao_lab.tasks.files import data_path, read_text

Batch = tuple[Tensor, Tensor]
VARIANTS = ("awake", "sleeping", "null")
NOISE = 1e-3
"""Relative change of the weights of a null run."""
AFTER = (97, 291)
"""Steps after the first copy sleeps at which test losses are compared, besides the last ones."""
LAST, EVERY = 97, 8
"""How many steps at the end are compared as a whole, and how often their test loss is measured."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "auto": alrao.Auto,
    "sgd": partial(alrao.SGD, lr=(1e-3, 100)),
}


class LSTM(nn.Module):
    def __init__(self, words: int, units: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, batch_first=True)
        self.output = nn.Linear(units, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(x))[0]).flatten(0, 1)


def words(size: int = 1000) -> tuple[nn.Module, Callable[[], Batch], Batch]:
    text = read_text(data_path(None, "set ALRAO_DATA to a folder with ptb.valid.txt") / "ptb.valid.txt")
    found = re.findall(r"[^\s]+|\n", text)
    numbers = {word: i for i, (word, _) in enumerate(Counter(found).most_common(size - 1))}
    coded = torch.tensor([numbers.get(word, size - 1) for word in found])
    held_out, coded = coded[: len(coded) // 10], coded[len(coded) // 10 :]

    def windows(source: Tensor, starts: Tensor) -> Batch:
        window = torch.stack([source[start : start + 36] for start in starts.tolist()])
        return window[:, :-1], window[:, 1:].flatten()

    def batch() -> Batch:
        return windows(coded, torch.randint(len(coded) - 36, (10,)))

    return LSTM(size), batch, windows(held_out, torch.arange(0, len(held_out) - 36, 35))


def digits(number: int, units: int, size: int) -> tuple[nn.Module, Callable[[], Batch], Batch]:
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 8 - 1, torch.tensor(data.target)

    def some(low: int, high: int, count: int) -> Batch:
        rows = torch.randint(low, high, (number, count))
        places = 10 ** torch.arange(number).flip(0)[:, None]
        return torch.cat([*images[rows]], 1), (places * labels[rows]).sum(0)

    net = nn.Sequential(nn.Linear(64 * number, units), nn.ReLU(), nn.Linear(units, 10**number))
    return net, lambda: some(0, 1400, size), some(1400, 1797, 4000)


MANY_CLASSES = {
    "words": (words, 600),
    "triples": (partial(digits, 3, 128, 64), 600),
    "pairs": (partial(digits, 2, 64, 32), 600),
}
"""Network, batches and test set, and the number of steps."""


def perturb(model: nn.Module, seed: int) -> None:
    """Change all weights a little, once."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + NOISE * torch.randn(p.shape, generator=generator))


def step(model: alrao.Alrao, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


@torch.no_grad()
def test_loss(model: alrao.Alrao, batch: Batch) -> float:
    model.eval()
    loss = F.cross_entropy(model(batch[0]), batch[1]).item()
    model.train()
    return loss


def run_many_classes(name: str, method: str, seed: int) -> list[dict[str, Any]]:
    """Train until a copy sleeps, then go on in three ways."""
    torch.manual_seed(seed)
    make, steps = MANY_CLASSES[name]
    net, draw, test = make()
    batches = [draw() for _ in range(steps)]
    model = alrao.Alrao(net)
    optimizer = OPTIMIZERS[method](model, sleep=True)
    begin = 0
    while model.head.awake is None and begin < steps:
        step(model, optimizer, batches[begin])
        begin += 1
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    found = []
    for variant in VARIANTS:
        model = alrao.Alrao(make()[0])
        optimizer = OPTIMIZERS[method](model, sleep=variant == "sleeping")
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
        row: dict[str, Any] = {"variant": variant, "seconds": 0.0, "begin": begin}
        taking_part, weights, losses = [], [], []
        for i, batch in enumerate(batches[begin:], 1):
            taking_part.append(len(range(model.head.copies)[model.head.part or slice(None)]))
            start = time.process_time()
            step(model, optimizer, batch)
            row["seconds"] += time.process_time() - start
            if i == 1 and variant == "null":
                perturb(model, 100 * seed + 1)
            if i in AFTER:
                row[f"after {i}"] = test_loss(model, test)
            if (left := steps - begin - i) < LAST:
                weights.append(model.posterior.tolist())
                if left % EVERY == 0:
                    losses.append(test_loss(model, test))
        row |= {"test": losses[-1], "last steps": mean(losses), "copies": mean(taking_part)}
        row |= {"winner at the end": int(model.posterior.argmax())}
        found.append(row | {"winner": int(np.mean(weights, axis=0).argmax())})
    return found


def interval(differences: Sequence[float]) -> str:
    """Return the mean with its bootstrap interval of 95 %, in per cent."""
    values = 100 * np.array(differences)
    drawn = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{values.mean():+.2f} ({low:+.2f} to {high:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(MANY_CLASSES))
    parser.add_argument("--methods", default="auto")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=Path, default=Path("sleeping_quality.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = [json.loads(line) for line in args.keep.read_text().splitlines()] if args.keep.exists() else []
    runs = {(row["workload"], row["method"], row["seed"], row["variant"]): row for row in done}
    asked = [
        (workload, method) for workload in args.workloads.split(",") for method in args.methods.split(",")
    ]
    for seed in range(args.seeds):
        for workload, method in asked:
            key = {"workload": workload, "method": method, "seed": seed}
            if (*key.values(), VARIANTS[-1]) in runs:
                continue
            rows = [key | row for row in run_many_classes(workload, method, seed)]
            runs |= {(*key.values(), row["variant"]): row for row in rows}
            with args.keep.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    print_table(runs, asked, args.seeds)


def print_table(runs: dict[Any, dict[str, Any]], asked: list[tuple[str, str]], seeds: int) -> None:
    table = Table(title="Loss beside the run with all copies awake, %, mean of paired seeds (95 %)")
    columns = (
        "workload",
        "method",
        "seeds",
        "loss",
        "awake",
        "sleeping",
        "null",
        "same winner",
        "copies",
        "time",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for workload, method in asked:
        of_seeds = [[runs[workload, method, seed, variant] for variant in VARIANTS] for seed in range(seeds)]
        for loss in [f"after {k}" for k in AFTER] + ["test", "last steps"]:
            if loss not in of_seeds[0][0]:
                continue
            ratios = [[row[loss] / rows[0][loss] - 1 for row in rows] for rows in of_seeds]
            winner = "winner at the end" if loss == "test" and "last steps" in of_seeds[0][0] else "winner"
            same = [sum(rows[0][winner] == rows[i][winner] for rows in of_seeds) for i in (1, 2)]
            copies = [rows[1]["copies"] for rows in of_seeds if "copies" in rows[1]]
            seconds = [sum(rows[i]["seconds"] for rows in of_seeds) for i in (0, 1)]
            last = loss in ("test", "last steps")
            table.add_row(
                workload, method, str(seeds), loss, f"{mean(rows[0][loss] for rows in of_seeds):.4f}",
                interval([ratio[1] for ratio in ratios]), interval([ratio[2] for ratio in ratios]),
                f"{same[0]}, null {same[1]}" if last else "",
                f"{mean(copies):.1f}" if copies and last else "",
                f"{seconds[1] / seconds[0]:.2f}" if last else "",
            )  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
