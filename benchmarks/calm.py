"""How calm the first steps of Auto look: the test loss that an evaluation shows during and after the search.

    python benchmarks/calm.py [--seeds 5] [--steps 150] [--every 5] [--only digits]

Ten small workloads, each evaluated in ``eval()`` mode at every few steps. A run is *calm* if no evaluation is
more than 10 % above the best one before it; an evaluation that is a jump is counted too. Loss that rises
because a network overfits counts as well, and is listed as a jump after the search.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor, nn

import alrao

JUMP = 1.1
"""An evaluation this many times the best one before it is a jump."""

Data = tuple[Tensor, Tensor]
Workload = tuple[nn.Module, bool, Callable[[Tensor, Tensor], Tensor], Data, int]
"""Network, whether it is wrapped, loss, data, batch size."""


def table(bunch: Any) -> Data:
    x = torch.tensor(bunch.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    return x, torch.tensor(bunch.target)


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


def cnn(classes: int) -> nn.Sequential:
    block = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*block, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes))


class Reader(nn.Module):
    """A small transformer or GRU that says which symbol a sequence has most often, or its first one."""

    def __init__(self, body: str, classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.place = nn.Parameter(0.1 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.body: nn.Module = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            if body == "transformer"
            else nn.GRU(width, width, batch_first=True)
        )
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.embedding(x) + self.place[: x.shape[1]])
        h = h[0][:, -1] if isinstance(h, tuple) else h.mean(1)
        return self.output(h)


def sequences() -> Data:
    x = torch.randint(0, 8, (2000, 16))
    return x, F.one_hot(x, 8).sum(1).argmax(1)


def curve() -> Data:
    x = 4 * torch.rand(2000, 3) - 2
    y = torch.sin(2 * x[:, :1]) * x[:, 1:2] + x[:, 2:].abs()
    return x, y + 0.1 * torch.randn(2000, 1)


def workload(name: str) -> Workload:
    if name.startswith("digits"):
        x, y = datasets.load_digits(return_X_y=True)
        x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
        if name == "digits-cnn":
            return cnn(10), True, F.cross_entropy, (x.view(-1, 1, 8, 8), y), 32
        if name == "digits-autoencoder":
            return mlp(64, 64, 12, 64, 64), False, F.mse_loss, (x, x), 32
        act = nn.Tanh if name == "digits-tanh" else nn.ReLU
        wrapped = name != "digits-plain"
        return mlp(64, 128, 128, 10, act=act), wrapped, F.cross_entropy, (x, y), 32
    if name == "cancer":
        return mlp(30, 64, 64, 2), True, F.cross_entropy, table(datasets.load_breast_cancer()), 32
    if name == "wine":
        return mlp(13, 64, 64, 3), True, F.cross_entropy, table(datasets.load_wine()), 16
    if name == "diabetes":
        x, y = table(datasets.load_diabetes())
        y = y.float()[:, None]
        return mlp(10, 64, 64, 1), False, F.mse_loss, (x, (y - y.mean()) / y.std()), 32
    if name == "curve":
        return mlp(3, 64, 64, 1, act=nn.Tanh), False, F.mse_loss, curve(), 32
    return Reader(name, 8), True, F.cross_entropy, sequences(), 32


NAMES = (
    "digits", "digits-plain", "digits-tanh", "digits-cnn", "digits-autoencoder",
    "cancer", "wine", "diabetes", "curve", "transformer", "gru",
)  # fmt: skip


def run(name: str, seed: int, steps: int, every: int) -> tuple[list[float], int]:
    """Return the test loss at each evaluation, and the step at which the search was over."""
    torch.manual_seed(seed)
    net, wrapped, loss_of, (x, y), batch = workload(name)
    order = torch.randperm(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    model = alrao.Alrao(net) if wrapped else net
    optimizer = alrao.Auto(model)
    shown, over = [], steps
    for step in range(steps + 1):
        if step % every == 0:
            model.eval()
            with torch.no_grad():
                shown.append(float(loss_of(model(x[test]), y[test])))
            model.train()
        rows = train[torch.randint(0, len(train), (batch,))]
        optimizer.zero_grad()
        loss_of(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if optimizer.search.over:
            over = min(over, step)
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
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads whose names start like this")
    parser.add_argument("--curves", action="store_true", help="print every evaluation")
    settings = parser.parse_args()
    runs = calm = evaluations = wild = late = 0
    for name in (each for each in NAMES if each.startswith(settings.only)):
        lines = []
        for seed in range(settings.seeds):
            shown, over = run(name, seed, settings.steps, settings.every)
            found = jumps(shown)
            within = [each for each in found if each[0] * settings.every <= over + 2 * settings.every]
            runs, calm = runs + 1, calm + (not found)
            late += bool(found) and not within
            evaluations, wild = evaluations + len(shown), wild + len(found)
            worst = max((ratio for _, ratio in found), default=1.0)
            first = f"at {found[0][0] * settings.every}" if found else ""
            lines.append(f"{over}:{len(found)}{f' ({worst:.2f} {first})' if found else ''}")
            if settings.curves:
                sys.stdout.write(f"  {' '.join(f'{loss:.3g}' for loss in shown)}\n")
        sys.stdout.write(f"{name:20s} end of search:jumps  {'  '.join(lines)}\n")
        sys.stdout.flush()
    sys.stdout.write(
        f"{runs - calm} of {runs} runs have a jump ({late} of them only later than two evaluations after the "
        f"search); {wild} of {evaluations} evaluations are one\n"
    )


if __name__ == "__main__":
    main()
