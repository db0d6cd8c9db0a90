"""A model in training: its optimizer's steps, the weights to evaluate, and its part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import cos, pi
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.optim.swa_utils import update_bn

import alrao

from .errors import optional

RECALIBRATION = 50
"""Training batches from which BatchNorm statistics of averaged weights are computed."""


class Learner:
    """A model and its optimizer, or several for different parameters of it."""

    recalibrates = False
    """Whether BatchNorm statistics have to be computed for the weights that are evaluated."""
    averager: Any = None
    """What averages the weights, if the average is evaluated."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *others: Optimizer) -> None:
        self.model, self.optimizer, self.optimizers = model, optimizer, (optimizer, *others)
        self.schedulers: list[LRScheduler] = []
        self.parts: dict[str, Any] = {"model": model}
        """Everything that further training depends on, except random generators."""
        self.parts |= {f"optimizer{number or ''}": each for number, each in enumerate(self.optimizers)}

    def follow(self, schedule: str, steps: int) -> None:
        """Apply a schedule of the rates over a number of steps."""
        if schedule != "none":
            self.schedulers = [LambdaLR(each, _factor(schedule, steps)) for each in self.optimizers]
            self.parts |= {f"scheduler{number or ''}": each for number, each in enumerate(self.schedulers)}

    def average(self, *, recalibrates: bool = False) -> Self:
        """Evaluate DoG's average, for any method: that of all iterates, weighted towards the last."""
        dog = optional("dog", "peers", "an average of the weights", "dog-optimizer")
        self.averager = self.parts["averager"] = dog.PolynomialDecayAverager(self.model)
        self.recalibrates = recalibrates
        return self

    def step(self, loss: Tensor, clip: float | None = None) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            if isinstance(self.model, alrao.Alrao):
                self.model.clip_grad_norm_(clip)
            else:
                nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        if self.averager is not None:
            self.averager.step()

    def train(self) -> None:
        self.model.train()

    def evaluated(self) -> nn.Module:
        """Return the model with the weights to evaluate, in evaluation mode."""
        model: nn.Module = self.model if self.averager is None else self.averager.averaged_model
        return model.eval()

    @contextmanager
    def evaluating(self, inputs: Iterable[Tensor]) -> Iterator[nn.Module]:
        """Provide the model to evaluate; training inputs are for the BatchNorm statistics of its weights."""
        model, norms = self.evaluated(), []
        if self.recalibrates:
            norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        kept = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
        if norms:
            with torch.random.fork_rng():  # dropout must not move the generator of the training
                update_bn(islice(inputs, RECALIBRATION), model)
        yield model
        for norm, buffers in zip(norms, kept, strict=True):
            norm.load_state_dict(buffers, strict=False)
        self.train()

    @property
    def posterior(self) -> list[float] | None:
        return self.model.posterior.tolist() if isinstance(self.model, alrao.Alrao) else None

    @property
    def found_rate(self) -> float | None:
        """The learning rate that Auto has found for the network so far; None for other methods."""
        if not isinstance(self.optimizer, alrao.Auto):
            return None
        return float(self.optimizer.rates(next(self.model.parameters())).flatten()[0])

    @property
    def rates(self) -> list[float] | None:
        if not isinstance(self.model, alrao.Alrao) or not isinstance(self.optimizer, alrao.AlraoOptimizer):
            return None
        return self.optimizer.copy_rates().tolist()

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


WARM_UP = 0.05
"""The part of the training in which ``warmup``, ``wsd`` and ``ramp`` raise the rates."""
AFTER = {"warmup": "cosine", "warmup-2%": "cosine", "wsd": "decay", "ramp": "none"}
"""The schedules with a warm-up, and what follows it."""
DECAY = 0.2
"""The part of the training at whose end ``wsd`` lowers the rates to zero."""


def warm_up_steps(steps: int, part: float = WARM_UP) -> int:
    """Return the steps of a warm-up over a part of the training."""
    return max(1, round(part * steps))


def _factor(schedule: str, steps: int) -> Callable[[int], float]:
    if schedule in AFTER:
        warm = warm_up_steps(steps, 0.02 if schedule == "warmup-2%" else WARM_UP)
        after = _factor(AFTER[schedule], steps)
        return lambda step: (step + 1) / (warm + 1) if step < warm else after(step)
    if schedule == "none":
        return lambda step: 1.0
    if schedule == "decay":
        return lambda step: min(1.0, max(0.0, (1 - step / steps) / DECAY))
    if schedule == "cosine":
        return lambda step: 0.5 * (1 + cos(pi * min(1.0, step / steps)))
    if schedule == "linear":
        return lambda step: max(0.0, 1 - step / steps)
    # step: a tenth after half of the steps, a hundredth after three quarters
    return lambda step: 1.0 if step < 0.5 * steps else 0.1 if step < 0.75 * steps else 0.01


class Mechanic(Learner):
    """Mechanic: its state has an entry for each parameter, under the parameter itself."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        own = self.optimizer.state.get("_mechanic", {})  # type: ignore[call-overload]
        entries = [own.get(p, {}) for p in self.model.parameters()]
        rest = {name: value for name, value in own.items() if isinstance(name, str)}
        packed = {name: value for name, value in state["optimizer"]["state"].items() if name != "_mechanic"}
        state["optimizer"] = {**state["optimizer"], "state": packed}
        return {**state, "mechanic": rest, "entries": entries}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["mechanic"]:
            own = dict(zip(self.model.parameters(), state["entries"], strict=True))
            self.optimizer.state["_mechanic"] = {**state["mechanic"], **own}  # type: ignore[index]


class ScheduleFree(Learner):
    """Schedule-Free: the optimizer steps and evaluates at different weights, and must be told which."""

    recalibrates = True

    def train(self) -> None:
        super().train()
        self.optimizer.train()  # type: ignore[attr-defined]

    def evaluated(self) -> nn.Module:
        self.optimizer.eval()  # type: ignore[attr-defined]
        return super().evaluated()


class Polyak(ScheduleFree):
    """A Schedule-Free optimizer whose rate follows from the loss, which it must be told."""

    def step(self, loss: Tensor, clip: float | None = None) -> None:
        self.optimizer.loss = loss.item()  # type: ignore[attr-defined]
        super().step(loss, clip)
