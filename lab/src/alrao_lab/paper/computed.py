"""Exhibits that need no run: the table of parameter counts, and the theorem of appendix B.

The theorem says that one good rate is enough; only its initial weights are random. The loss is convex
(softmax regression on fixed features), the gradient that of all data, the copies are averaged by plain Bayes.
If one copy's rate is below 1/λ, λ a bound on the Hessian, the mixture's loss tends to the optimum, although
other copies diverge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import pandas as pd  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import alrao

from ..tasks.files import shipped
from ..zoo.paper import RecurrentLM, googlenet, mobilenet_v2, vgg19

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float, float]] = {
    "GoogLeNet": (googlenet, 10, 6.166, 6.258),
    "VGG19": (vgg19, 10, 20.041, 20.087),
    "MobileNet": (mobilenet_v2, 10, 2.297, 2.412),
    "LSTM, characters": (lambda: RecurrentLM(50), 6, 0.172, 0.197),
    "LSTM, words": (lambda: RecurrentLM(9999), 6, 2.171, 7.221),
}
"""Each network of the paper's table, its copies, and the paper's counts in millions, plain and with Alrao."""


def count(name: str) -> tuple[int, int]:
    """Count the parameters of a network of the table, plain and with Alrao."""
    build, copies, *_ = NETWORKS[name]
    with torch.device("meta"):  # shapes are enough
        net = build()
        plain = sum(p.numel() for p in net.parameters())
        return plain, sum(p.numel() for p in alrao.Alrao(net, copies).parameters())


def counts() -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the table: our counts beside the paper's, in millions."""
    heads = ["network", "plain", "with Alrao", "copies", "paper: plain", "paper: with Alrao"]
    rows = []
    for name, (_, copies, *paper) in NETWORKS.items():
        ours = [f"{number / 1e6:.3f}" for number in count(name)]
        rows.append([name, *ours, str(copies), *(f"{millions:.3f}" for millions in paper)])
    return heads, rows


MULTIPLES = (0.009, 0.09, 0.9, 9.0, 90.0, 900.0)
"""The rates of the copies, as multiples of 1/λ: three below 1, three above."""
STEPS, ROWS = 3_000, 600


@dataclass(frozen=True)
class Theorem:
    """The losses of the mixture and of its copies before some steps, a column each, and the optimum."""

    losses: pd.DataFrame
    rates: list[float]
    posterior: list[float]
    optimum: float


def compute(steps: int = STEPS) -> Theorem:
    """Train the copies, and find the optimum by other means."""
    x, y = _data()
    bound = _bound(x)
    optimum = _optimum(x, y)
    torch.manual_seed(0)
    count = len(MULTIPLES)
    average = alrao.paper.BayesianAverage(count)
    model = alrao.Alrao(nn.Linear(x.shape[1], 10, dtype=torch.float64), count, averaging=average)
    optimizer = alrao.SGD(model, lr=(MULTIPLES[0] / bound, MULTIPLES[-1] / bound))
    spread = {round(10 ** (i / 20)) for i in range(20 * len(str(steps)))}
    kept = sorted({step for step in spread if step < steps} | {steps})
    losses: dict[int, list[float]] = {}
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if step in kept:
            head = {name: tensor.detach() for name, tensor in model.head.named_parameters()}
            copies = (F.linear(x, *copy) for copy in zip(head["weight"], head["bias"], strict=True))
            losses[step] = [loss.item(), *(F.cross_entropy(output, y).item() for output in copies)]
        loss.backward()
        optimizer.step()
    rates = [multiple / bound for multiple in MULTIPLES]
    names = ["mixture", *(f"copy at {rate:.4g}" for rate in rates)]
    found = pd.DataFrame.from_dict(losses, "index", columns=names).rename_axis("step")
    return Theorem(found, rates, model.posterior.tolist(), optimum)


def _data() -> tuple[Tensor, Tensor]:
    """Handwritten digits seen as the brightness of four quarters: classes overlap, the optimum is finite."""
    pixels, labels = shipped("load_digits", return_X_y=True)
    images = torch.from_numpy(pixels[:ROWS]).view(-1, 1, 8, 8)
    features = F.avg_pool2d(images, 4).flatten(1)
    return (features - features.mean(0)) / features.std(0), torch.from_numpy(labels[:ROWS]).long()


def _bound(x: Tensor) -> float:
    """λ: the Hessian of the loss in the logits, diag(p) - p p', is at most 1/2."""
    inputs = F.pad(x, (0, 1), value=1.0)
    return float(0.5 * torch.linalg.eigvalsh(inputs.T @ inputs / len(inputs)).max())


def _optimum(x: Tensor, y: Tensor) -> float:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.metrics import log_loss  # type: ignore[import-untyped]

    found = LogisticRegression(C=inf, tol=1e-10, max_iter=100_000).fit(x.numpy(), y.numpy())
    return float(log_loss(y.numpy(), found.predict_proba(x.numpy())))
