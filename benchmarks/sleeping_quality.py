"""What sleeping copies cost in quality: the final test loss with and without them, the posterior's winner.

    ALRAO_DATA=… python benchmarks/sleeping_quality.py                     # about half an hour of one core
    ALRAO_DATA=… python benchmarks/sleeping_quality.py --workloads words --seeds 2

Every workload is trained with Auto and with the paper's method, on the same batches with and without sleeping
copies. ``words``: Penn Treebank's validation text, its 1,000 most frequent words, an LSTM. ``triples``: three
of scikit-learn's digits side by side, 1,000 classes: many classes made from real images. The others are
workloads of the suite on which defaults were chosen, with Auto; their output layers are so small that copies
sleep only when asked to. Finished runs are read from the file given as ``--keep``, so that the script can be
stopped anywhere and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import alrao
from alrao.lab.run import run
from alrao.lab.settings import Settings
from alrao.lab.suite.workloads import WORKLOADS
from alrao.lab.values import MethodSpec

Batch = tuple[Tensor, Tensor]
SUITE = ("dense", "sigmoid", "deep", "cancer")
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
    text = (Path(os.environ["ALRAO_DATA"]) / "ptb.valid.txt").read_text(encoding="utf-8")
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


def triples() -> tuple[nn.Module, Callable[[], Batch], Batch]:
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 8 - 1, torch.tensor(data.target)

    def three(low: int, high: int, count: int) -> Batch:
        rows = torch.randint(low, high, (3, count))
        a, b, c = labels[rows]
        return torch.cat([*images[rows]], 1), 100 * a + 10 * b + c

    net = nn.Sequential(nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 1000))
    return net, lambda: three(0, 1400, 64), three(1400, 1797, 4000)


MANY_CLASSES = {"words": (words, 600), "triples": (triples, 600)}
"""Network, batches and test set, and the number of steps."""


def train(name: str, method: str, seed: int, sleep: bool) -> dict[str, Any]:
    torch.manual_seed(seed)
    make, steps = MANY_CLASSES[name]
    net, batch, (x_test, y_test) = make()
    model = alrao.Alrao(net)
    optimizer = OPTIMIZERS[method](model, sleep=sleep)
    torch.manual_seed(1000 + seed)  # the same batches for both
    awake = 0.0
    for _ in range(steps):
        x, y = batch()
        rows = model.head.taking_part()
        awake += len(range(model.head.copies)[rows or slice(None)]) / steps
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x_test), y_test).item()
    return {"loss": loss, "winner": int(model.posterior.argmax()), "awake": awake}


def train_suite(name: str, method: str, seed: int, sleep: bool) -> dict[str, Any]:
    models: list[alrao.Alrao] = []

    plain = alrao.Auto

    def built(model: alrao.Alrao, **options: Any) -> torch.optim.Optimizer:
        models.append(model)
        return plain(model, sleep=sleep, **options)

    settings = WORKLOADS[name].settings(Settings(method=MethodSpec.parse(method), seed=seed, threads=1))
    with tempfile.TemporaryDirectory() as folder, patch.object(alrao, "Auto", built):
        result = run(settings, [Path(folder)]).result
    assert result is not None
    return {"loss": result["test"]["loss"], "winner": int(models[0].posterior.argmax()), "awake": None}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join([*MANY_CLASSES, *SUITE]))
    parser.add_argument("--methods", default=",".join(OPTIMIZERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=Path, default=Path("sleeping_quality.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = [json.loads(line) for line in args.keep.read_text().splitlines()] if args.keep.exists() else []
    runs = {(row["workload"], row["method"], row["seed"], row["sleep"]): row for row in done}
    asked = [
        (workload, method)
        for workload in args.workloads.split(",")
        for method in args.methods.split(",")
        if workload in MANY_CLASSES or method == "auto"
    ]
    for seed in range(args.seeds):
        for workload, method in asked:
            for sleep in (False, True):
                key = (workload, method, seed, sleep)
                if key in runs:
                    continue
                start = time.process_time()
                row = (train if workload in MANY_CLASSES else train_suite)(workload, method, seed, sleep)
                row |= dict(zip(("workload", "method", "seed", "sleep"), key, strict=True))
                row["seconds"] = time.process_time() - start
                runs[key] = row
                with args.keep.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    table = Table(title="Sleeping copies beside all awake: final test loss")
    columns = (
        "workload",
        "method",
        "seeds",
        "all awake",
        "sleeping",
        "difference",
        "same winner",
        "awake",
        "time",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for workload, method in asked:
        pairs = [
            (runs[workload, method, seed, False], runs[workload, method, seed, True])
            for seed in range(args.seeds)
        ]
        parts = [100 * (b["loss"] / a["loss"] - 1) for a, b in pairs]
        error = stdev(parts) / sqrt(len(parts)) if len(parts) > 1 else float("nan")
        awake = [b["awake"] for _, b in pairs if b["awake"] is not None]
        table.add_row(
            workload, method, str(len(pairs)),
            f"{mean(a['loss'] for a, _ in pairs):.4f}", f"{mean(b['loss'] for _, b in pairs):.4f}",
            f"{mean(parts):+.2f} ± {error:.2f} %",
            f"{sum(a['winner'] == b['winner'] for a, b in pairs)} of {len(pairs)}",
            f"{mean(awake):.1f}" if awake else "",
            f"{sum(b['seconds'] for _, b in pairs) / sum(a['seconds'] for a, _ in pairs):.2f}",
        )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
