"""A network for tables of numbers, trained by Alrao: the parts of the scikit-learn estimators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from ..auto import Auto
from ..losses import MixtureMSELoss
from ..model import Alrao
from ..optim import Adam, AlraoOptimizer

__all__ = ["Scale", "Table", "Tabular", "as_tensor", "auto_batch", "auto_hidden", "held_out", "train"]

Array: TypeAlias = NDArray[np.float64]

FAR = 1e3
"""Standardised inputs are clipped to this: new data may contain anything."""

STEPS = 12
"""An iteration is one pass over the data, or as many passes as give about this many steps."""

FEWEST = 10
"""With fewer samples than this, nothing is held out."""

ENOUGH = 1e-4
"""A smaller improvement of the loss does not count, as in scikit-learn's networks."""

_ONE_AT_A_TIME = threading.Lock()


def auto_hidden(samples: int) -> tuple[int, int]:
    """Return the sizes of two hidden layers, from 64 units for few samples to 512 for many thousands."""
    width = 2 ** round(np.log2(max(1, samples) ** 0.5 * 8))
    return (int(np.clip(width, 64, 512)),) * 2


def auto_batch(samples: int) -> int:
    """Return the batch size: 64 for up to a few thousand samples, then more, up to 256."""
    return int(np.clip(2 ** round(np.log2(max(1, samples) / 50)), 64, 256))


@dataclass
class Scale:
    """Mean and standard deviation of each column; a constant column has deviation 0."""

    weight: float
    mean: Array
    deviation: Array

    @classmethod
    def of(cls, x: Array, weights: Array) -> Scale:
        """Compute the weighted mean and deviation of each column without overflow."""
        largest = np.abs(x).max(0)
        largest[largest == 0] = 1.0
        x, share = x / largest, (weights / weights.sum())[:, None]
        mean = (x * share).sum(0)
        deviation = np.sqrt((np.square(x - mean) * share).sum(0))
        deviation[(deviation < 1e-14) | (x == x[0]).all(0)] = 0.0
        return cls(float(weights.sum()), mean * largest, deviation * largest)

    def merged(self, other: Scale) -> Scale:
        """Return the scale of the union of both data sets."""
        total = self.weight + other.weight
        a, b = self.weight / total, other.weight / total
        apart = np.abs(self.mean / 2 - other.mean / 2) * 2 * np.sqrt(a * b)
        parts = np.stack([self.deviation * np.sqrt(a), other.deviation * np.sqrt(b), apart])
        largest = parts.max(0)
        relative = parts / np.where(largest > 0, largest, 1.0)
        return Scale(total, a * self.mean + b * other.mean, largest * np.sqrt(np.square(relative).sum(0)))

    @property
    def unit(self) -> Array:
        """The deviation, or 1 where the deviation is 0."""
        return np.where(self.deviation > 0, self.deviation, 1.0)

    def apply(self, x: Array) -> Array:
        """Standardise ``x``."""
        with np.errstate(over="ignore"):
            return np.clip((x / self.unit) - (self.mean / self.unit), -FAR, FAR)


@dataclass
class Table:
    """Standardised inputs, targets (class numbers or standardised values), and weights of mean 1."""

    x: Tensor
    y: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, at: Tensor) -> Table:
        """Return the selected rows."""
        return Table(self.x[at], self.y[at], self.weights[at])

    def to(self, device: torch.device) -> Table:
        """Return the table on a device."""
        return Table(self.x.to(device), self.y.to(device), self.weights.to(device))


class Tabular:
    """A multi-layer perceptron or another network under Alrao, with its optimizer and random generator.

    torch's global random state, default device and gradient mode are left unchanged.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        *,
        classify: bool,
        copies: int,
        lr: Any,
        seed: int,
        weight_decay: float | None = None,
        device: Any = "cpu",
        network: Callable[[int, int], nn.Module] | None = None,
    ) -> None:
        if isinstance(network, nn.Module):
            raise TypeError(
                "network must be a function of the numbers of inputs and of outputs that returns a network, "
                f"so that every fit starts from new weights, got a {type(network).__name__}: pass "
                "network=lambda inputs, outputs: …, or a function with a name if the estimator is pickled"
            )
        self.classify = classify
        self.device = torch.device(device)
        self.generator = Generator("cpu").manual_seed(seed)
        sizes = [inputs, *hidden]
        with (
            _ONE_AT_A_TIME,
            torch.device("cpu"),
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
        ):
            torch.default_generator.manual_seed(seed)
            if network is None:
                layers: list[nn.Module] = []
                for n, m in pairwise(sizes):
                    layers += [nn.Linear(n, m, dtype=torch.float32), nn.ReLU()]
                net: nn.Module = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, dtype=torch.float32))
            else:
                net = network(inputs, outputs)
            self.model = Alrao(net, copies, likelihood="categorical" if classify else "gaussian")
            self.model.to(self.device)
            options: Any = {"generator": self.generator, "foreach": True}
            if weight_decay is not None:
                options["weight_decay"] = weight_decay
            self.optimizer: AlraoOptimizer = (
                Auto(self.model, **options) if isinstance(lr, str) else Adam(self.model, lr, **options)
            )

    def _losses(self, part: Table) -> Tensor:
        out = self.model(part.x)
        if self.classify:
            return F.cross_entropy(out, part.y, reduction="none")
        return MixtureMSELoss(reduction="none")(out, part.y)

    def pass_over(self, table: Table, batch: int, times: int = 1) -> float:
        """Train on all rows, in random order, ``times`` times; return the mean loss of the batches."""
        self.model.train()
        total, steps = torch.zeros((), device=self.device), 0
        with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
            for _ in range(times):
                order = torch.randperm(len(table), generator=self.generator)
                for at in order.tensor_split(max(1, round(len(table) / batch))):
                    self.optimizer.zero_grad()
                    part = table.rows(at.to(self.device))
                    loss = (self._losses(part) * part.weights).mean()
                    loss.backward()
                    self.optimizer.step()
                    total, steps = total + loss.detach().as_subclass(Tensor), steps + 1
        return float(total) / steps

    @torch.no_grad()
    def loss(self, table: Table) -> float:
        """Return the weighted mean loss: negative log-likelihood, or squared error of the prediction."""
        self.model.eval()
        out = self.model(table.x)
        if self.classify:
            losses = F.nll_loss(out.as_subclass(Tensor), table.y, reduction="none")
        else:
            losses = (out.as_subclass(Tensor) - table.y).square().mean(1)
        return float((losses * table.weights).sum() / table.weights.sum())

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the model's state."""
        return {key: value.clone() for key, value in self.model.state_dict().items()}

    @torch.no_grad()
    def rescale(self, was: Scale, now: Scale, of_targets: tuple[Scale, Scale] | None) -> None:
        """Convert the weights to other units of inputs and targets, so that predictions do not change."""

        def change() -> None:
            self._rescale(was, now, of_targets)

        if isinstance(self.optimizer, Auto):
            self.optimizer.transform(change)
        else:
            change()

    def _rescale(self, was: Scale, now: Scale, of_targets: tuple[Scale, Scale] | None) -> None:
        first = self.model.net[0] if isinstance(self.model.net, nn.Sequential) else None
        if isinstance(first, nn.Linear):
            known = (was.deviation > 0) & (now.deviation > 0)
            factor = as_tensor(np.where(known, now.unit / was.unit, 1.0))
            shift = as_tensor(np.where(known, (now.mean - was.mean) / was.unit, 0.0))
            _set(first.bias, first.bias.double() + first.weight.double() @ shift)
            _set(first.weight, first.weight.double() * factor)
        if of_targets is not None and bool((of_targets[0].deviation > 0).all()):
            y_was, y_now = of_targets
            factor = as_tensor(y_was.unit / y_now.unit)
            shift = as_tensor((y_was.mean - y_now.mean) / y_now.unit)
            weight, bias = (self.model.head.get_parameter(name) for name in ("weight", "bias"))
            _set(weight, weight.double() * factor[:, None])
            _set(bias, bias.double() * factor + shift)

    def plain(self) -> nn.Module:
        """Return the mixture as an ordinary network in double precision, on the CPU."""
        return self.model.collapse(mixture=True).cpu().double().eval().requires_grad_(False)


def as_tensor(x: Array) -> Tensor:
    """Return the array as a float64 tensor."""
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))


def _set(parameter: Tensor, value: Tensor) -> None:
    if bool(value.isfinite().all()):
        parameter.copy_(value)


def held_out(
    numbers: NDArray[Any] | None, samples: int, fraction: float, rng: np.random.RandomState
) -> NDArray[np.bool_]:
    """Return a mask of the samples to hold out, chosen at random and stratified by class."""
    held = np.zeros(samples, dtype=bool)
    if samples < FEWEST:
        return held
    numbers = np.zeros(samples, dtype=int) if numbers is None else numbers
    for number in np.unique(numbers):
        (members,) = np.nonzero(numbers == number)
        held[rng.permutation(members)[: round(fraction * len(members))]] = True
    if held.all() or not fraction:
        return np.zeros(samples, dtype=bool)
    return held


def train(
    tabular: Tabular,
    table: Table,
    held: NDArray[np.bool_],
    *,
    batch: int,
    max_iter: int,
    patience: int,
    verbose: bool = False,
) -> tuple[list[float], float]:
    """Train until the loss on the held-out samples stops improving, and keep the best weights.

    If nothing is held out, the loss on all samples is used.

    Returns:
        The mean training loss of each iteration, and the best loss.
    """
    rows = torch.from_numpy(held).to(table.x.device)
    learnt, judged = table.rows(~rows), table.rows(rows) if held.any() else table
    times = max(1, round(STEPS / max(1, round(len(learnt) / batch))))
    best, last, since, state, curve = np.inf, np.inf, 0, tabular.state(), list[float]()
    while len(curve) < max_iter and since < patience:
        curve.append(tabular.pass_over(learnt, batch, times))
        loss = tabular.loss(judged)
        if verbose:  # as scikit-learn's networks do
            print(f"Iteration {len(curve)}, loss = {curve[-1]:.8f}, validation loss = {loss:.8f}")  # noqa: T201
        since += 1
        if loss < best:
            best, state = loss, tabular.state()
        if loss < last - ENOUGH:
            last, since = loss, 0
    tabular.model.load_state_dict(state)
    return curve, float(best)
