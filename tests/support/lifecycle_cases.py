"""What a lifecycle is made of: a network, its data, an optimizer of ours, and a case drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import alrao

ROWS, INPUTS, WORDS = 8, 16, 10
NETWORKS = ("mlp", "dropout", "cnn", "pixels", "lstm", "embedding", "max_norm", "tied", "attention")
OF_WORDS = ("embedding", "max_norm", "tied")


class Net(nn.Module):
    """A small network of some kind; all take the same rows of numbers, and ``output`` is the last layer."""

    def __init__(self, kind: str, outputs: int) -> None:
        super().__init__()
        self.kind, width = kind, 8
        if kind in OF_WORDS:
            self.words = nn.Embedding(WORDS, width, max_norm=1.0 if kind == "max_norm" else None)
        if kind in ("cnn", "pixels"):
            self.body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        elif kind == "lstm":
            self.body = nn.LSTM(4, width, batch_first=True)
        elif kind == "attention":
            self.enter = nn.Linear(4, width)
            self.body = nn.TransformerEncoderLayer(width, 2, 16, 0.1, batch_first=True)
        else:
            inputs = width if kind in OF_WORDS else INPUTS
            between = nn.Dropout(0.2) if kind == "dropout" else nn.LayerNorm(width)
            self.body = nn.Sequential(nn.Linear(inputs, width), between, nn.Tanh())
        self.output = nn.Conv2d(width, outputs, 1) if kind == "pixels" else nn.Linear(width, outputs)
        if kind == "tied":
            self.output.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> Any:
        if self.kind in ("cnn", "pixels"):
            x = self.body(x.view(-1, 1, 4, 4))
            x = x if self.kind == "pixels" else x.mean((2, 3))
        elif self.kind == "lstm":
            x = self.body(x.view(-1, 4, 4))[0][:, -1]
        elif self.kind == "attention":
            x = self.body(self.enter(x.view(-1, 4, 4))).mean(1)
        elif self.kind in OF_WORDS:
            x = self.body(self.words(words_of(x)).mean(1))
        else:
            x = self.body(x)
        return self.output(x)


def words_of(x: torch.Tensor) -> torch.Tensor:
    return x[:, :4].nan_to_num(0, 0, 0).float().mul(3).long() % WORDS


@dataclass(frozen=True)
class Event:
    """Something that happens before a step; what it chooses follows from ``number``."""

    at: int
    name: str
    number: int


@dataclass(frozen=True)
class Case:
    """A training with events between its steps. All of it follows from the seed."""

    seed: int
    network: str = "mlp"
    dtype: str = "float32"
    likelihood: str = "categorical"
    copies: int = 0
    """Of the output layer; 0: a plain network."""
    optimizer: str = "SGD"
    options: dict[str, Any] = field(default_factory=dict)
    groups: str = "one"
    schedule: str = "none"
    steps: int = 16
    events: tuple[Event, ...] = ()

    def outputs(self) -> int:
        return WORDS if self.network == "tied" else 1 if self.likelihood == "gaussian" else 3

    def net(self, seed: int) -> Net:
        torch.manual_seed(seed)
        return Net(self.network, self.outputs()).to(getattr(torch, self.dtype))

    def model(self, seed: int) -> nn.Module:
        net = self.net(seed)
        return alrao.Alrao(net, self.copies, likelihood=self.likelihood) if self.copies else net

    def build(self, seed: int, of: Any = alrao) -> tuple[nn.Module, Any, Any]:
        """Return a model, an optimizer of alrao or of torch for it, and a schedule or None."""
        model = self.model(seed)
        groups = self.groups_of(model)
        if of is alrao:
            optimizer = getattr(alrao, self.optimizer)(model, params=groups, **self.options)
        else:
            optimizer = getattr(torch.optim, self.optimizer)(groups or model.parameters(), **self.options)
        highest = optimizer.param_groups[0]["lr"]  # 1.0 for ours: it is a factor
        return model, optimizer, SCHEDULES[self.schedule](optimizer, float(highest), self.steps)

    def groups_of(self, model: nn.Module) -> list[dict[str, Any]] | None:
        named = dict(model.named_parameters())
        last = [p for name, p in named.items() if name.startswith("output.")]
        if self.network == "tied" and not self.copies:
            last = [model.output.bias]
        rest = [p for p in named.values() if all(p is not each for each in last)]
        if self.groups == "head":
            return [{"params": rest, "weight_decay": 0.01}, {"params": last}]
        if self.groups == "biases":
            flat = [p for name, p in named.items() if "bias" in name]
            return [{"params": [p for name, p in named.items() if "bias" not in name]}, {"params": flat}]
        return [{"params": rest[1:] + last}] if self.groups == "later" else None

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        x = torch.randn(ROWS, INPUTS, generator=generator).to(getattr(torch, self.dtype))
        if self.network == "tied":
            return x, words_of(x)[:, 0]
        if self.network == "pixels":
            seen = (x.view(-1, 4, 4) > 0).long()
            return x, seen if self.likelihood == "categorical" else seen[:, None].expand(-1, 3, 4, 4).to(x)
        if self.likelihood == "categorical":
            return x, (words_of(x)[:, 0] % 3 if self.network in OF_WORDS else x[:, :3].argmax(1))
        return x, (x[:, :1] if self.likelihood == "gaussian" else (x[:, :3] > 0).to(x))

    def loss(self, out: Any, y: torch.Tensor) -> Any:
        if self.likelihood == "categorical":
            return F.cross_entropy(out, y)
        if self.likelihood == "gaussian":
            return alrao.MixtureMSELoss()(out, y) if self.copies else F.mse_loss(out, y)
        return alrao.MixtureBCELoss()(out, y) if self.copies else F.binary_cross_entropy_with_logits(out, y)


def from_zero(step: int) -> float:
    return min(1.0, step / 4)


SCHEDULES: dict[str, Any] = {
    "none": lambda optimizer, rate, steps: None,
    "steps": lambda optimizer, rate, steps: lr_scheduler.StepLR(optimizer, 3, 0.7),
    "cosine": lambda optimizer, rate, steps: lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "warm-up": lambda optimizer, rate, steps: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
    "from zero": lambda optimizer, rate, steps: lr_scheduler.LambdaLR(optimizer, from_zero),
    "one cycle": lambda optimizer, rate, steps: lr_scheduler.OneCycleLR(
        optimizer, rate, steps + 40, cycle_momentum="betas" in optimizer.defaults
    ),
}


def draw(seed: int, events: dict[str, float]) -> Case:
    """Return the case of a seed.

    Args:
        seed: what all choices follow from.
        events: the names of events, with how often they happen in relation to each other.
    """
    r = random.Random(seed)
    network = r.choice(NETWORKS)
    likelihood = r.choice(["categorical"] * 4 + ["gaussian", "bernoulli"])
    if network == "tied" or (network == "pixels" and likelihood == "gaussian"):
        likelihood = "categorical"
    dtype = r.choice(["float32"] * 4 + ["float64", "bfloat16"])
    if network == "max_norm" and dtype == "bfloat16":
        dtype = "float32"  # in bfloat16, rows that torch has renormalised are renormalised again
    copies = r.choice([0, 0, 0, 1, 3, 5, 5])
    optimizer = r.choice(["SGD", "Adam", "AdamW", "Auto", "Auto", "Auto"])
    options: dict[str, Any] = {"foreach": r.choice([None, None, True, False])}
    if optimizer == "Auto":
        options["steps"] = r.choice([3, 10, 10, 20, 30, None])  # its search takes 30 % of them
        options["swap"] = r.random() < 0.9
    else:
        top = 0.05 if optimizer == "SGD" else 0.01
        if copies == 1 or (not copies and r.random() < 0.3):
            options["lr"] = top
        elif not copies or r.random() < 0.7:
            options["lr"] = (top / 100, 2 * top)
    if optimizer == "SGD":
        options |= r.choice([{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
    elif optimizer != "Auto" and r.random() < 0.3:
        options["amsgrad"] = True
    if r.random() < 0.3:
        options["weight_decay"] = 0.02
    if r.random() < 0.1 and not isinstance(options.get("lr"), float):
        options["capturable"] = True
    elif copies > 1 and likelihood == "categorical" and r.random() < 0.2:
        options["sleep"] = True
    groups = r.choice(["one", "one", "head", "biases", "later"])
    schedule = r.choice(["none", "none", "none", *SCHEDULES])
    steps = r.randrange(8, 22)
    moments = [
        r.choice([0, 1, 3, 10, r.randrange(steps)]) % (steps - 2) for _ in range(3)
    ]  # so that events meet
    names = r.choices(list(events), list(events.values()), k=r.randrange(2, 9))
    happens = (Event(r.choice(moments), name, r.randrange(10**6)) for name in names)
    return Case(
        seed, network, dtype, likelihood, copies, optimizer, options, groups, schedule, steps,
        tuple(sorted(happens, key=lambda event: event.at)),
    )  # fmt: skip
