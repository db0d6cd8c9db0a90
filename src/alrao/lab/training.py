"""Problems in training: the interface to the training loop, and training from inputs and targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from math import isfinite, nan
from typing import Any, Self

import torch
from torch import Tensor, nn

from .learner import Learner
from .methods import learner as make_learner
from .seeds import seed_of
from .settings import Settings
from .tasks.task import Problem, Supervised
from .team import Team

Measures = dict[str, float | None]


class Training(ABC):
    """A problem in training. The loop decides when to evaluate, to save and to stop."""

    learner: Learner

    @abstractmethod
    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        """Train epoch ``number`` (from 1), of which ``start`` steps are done already.

        Yields:
            After each update, the number of steps made and the loss: None for steps without an update, and
            not finite for an update that was not made.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        """Return the measures on the validation data and on the test data."""

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        """Return training inputs, for BatchNorm statistics that belong to the weights evaluated."""
        return ()

    def end_epoch(self) -> Measures:
        """End an epoch: return the measures of its training, beside the loss."""
        return {}

    def status(self, loss: float | None) -> str:
        """Return a text for the progress bar, given the mean loss of the epoch so far."""
        return f"loss {nan if loss is None else loss:.4g}"

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, except the learner's and torch's generators."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def conclude(self, best: dict[str, Tensor] | None) -> dict[str, Any]:
        """Return further entries of the result, given the best weights."""
        return {}


class Trainable(Problem, Training):
    """A problem with its own kind of training steps."""

    @abstractmethod
    def start(self, settings: Settings, device: torch.device) -> Self:
        """Prepare the training, with a fresh network."""


class SupervisedTraining(Training):
    """A supervised problem in training."""

    def __init__(self, problem: Supervised, settings: Settings, team: Team) -> None:
        torch.manual_seed(seed_of(settings.seed, "network"))
        self.problem, self.team, self.seed, self.clip = problem, team, settings.seed, settings.clip
        self.learner = make_learner(team.prepare(problem.network().to(team.device)), settings, problem)
        self.learner.follow(settings.schedule, (settings.epochs or 1) * problem.steps)
        self.learner.train()
        self.model = team.wrap(self.learner.model)
        self.carry: Any = None

    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        team = self.team
        for step, batch in enumerate(self.problem.batches(number, start), start):
            inputs, targets, factor = team.share(*batch)
            with team.own_random_numbers(self.seed, number, step):
                outputs, self.carry = self.problem.forward(self.model, inputs, self.carry)
            loss = self.problem.loss(outputs, targets)
            if factor != 1:
                loss = loss * factor
            value = team.mean(loss.item())
            if isfinite(value):
                self.learner.step(loss, self.clip)
            yield 1, value

    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        valid, test = (evaluate(self.problem, model, part, self.team) for part in ("valid", "test"))
        return valid, test

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        return (self.team.share(*batch)[0] for batch in self.problem.batches(epoch))

    def end_epoch(self) -> Measures:
        self.carry = None
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.team.join_carry(self.carry)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.carry = self.team.split_carry(state["carry"])


@torch.no_grad()
def evaluate(problem: Supervised, model: nn.Module, part: str, team: Team) -> Measures:
    """Return the measures of a model on a part of the data."""
    sums: dict[str, float] = {}
    carry = None
    for batch in problem.evaluation(part):
        inputs, targets, factor = team.share(*batch)
        outputs, carry = problem.forward(model, inputs, carry)
        for name, value in problem.score(outputs, targets).items():
            sums[name] = sums.get(name, 0.0) + (float(value) if factor else 0.0)
    return {**problem.measure(team.add(sums))}
