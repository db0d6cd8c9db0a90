"""Training from batches of inputs and targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from .methods import learner as make_learner
from .seeds import seed_of
from .settings import Settings
from .tasks.task import Supervised
from .training import Measures, Training


class SupervisedTraining(Training):
    """A supervised problem in training."""

    def __init__(self, problem: Supervised, settings: Settings, device: torch.device) -> None:
        torch.manual_seed(seed_of(settings.seed, "network"))
        self.problem, self.device, self.clip = problem, device, settings.clip
        self.learner = make_learner(problem.network().to(device), settings, problem)
        self.learner.follow(settings.schedule, (settings.epochs or 1) * problem.steps)
        self.learner.train()
        self.carry: Any = None

    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        for inputs, targets in self.problem.batches(number, start):
            outputs, self.carry = self.problem.forward(self.learner.model, inputs.to(self.device), self.carry)
            loss = self.problem.loss(outputs, targets.to(self.device))
            value = loss.item()
            if isfinite(value):
                self.learner.step(loss, self.clip)
            yield 1, value

    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        valid, test = (evaluate(self.problem, model, part, self.device) for part in ("valid", "test"))
        return valid, test

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        return (inputs.to(self.device) for inputs, _ in self.problem.batches(epoch))

    def end_epoch(self) -> Measures:
        self.carry = None
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.carry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.carry = state["carry"]


@torch.no_grad()
def evaluate(problem: Supervised, model: nn.Module, part: str, device: torch.device) -> Measures:
    """Return the measures of a model on a part of the data."""
    sums: dict[str, float] = {}
    carry = None
    for inputs, targets in problem.evaluation(part):
        outputs, carry = problem.forward(model, inputs.to(device), carry)
        for name, value in problem.score(outputs, targets.to(device)).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return {**problem.measure(sums)}
