"""Deep Q-learning in the training loop.

An epoch is a number of steps of the environment. After each, the greedy policy plays evaluation episodes, on
which the best epoch is chosen; at the end, the weights of that epoch play new episodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from statistics import mean
from typing import Any

import torch
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor, nn

from ..data.files import short_digest
from ..seeds import seed_of
from ..settings import Settings
from ..tasks.task import Budget
from ..training import Measures, Trainable, Training
from . import Recipe
from .agent import Agent, play


class QLearning(Trainable):
    """An environment, with the steps and episodes of a budget."""

    likelihood = "gaussian"
    measures = ("return",)
    higher_is_better = True

    def __init__(self, recipe: Recipe, settings: Settings, budget: Budget) -> None:
        self.recipe = recipe
        self.steps = settings.train_size or budget.train or 10_000
        self.episodes = {"valid": budget.valid or 10, "test": budget.test or 100}
        self.identity = short_digest(sorted(asdict(recipe).items()), sorted(self.episodes.items()))
        self.about = {
            "source": f"gymnasium's {recipe.environment}",
            **self.episodes,
            "steps": self.steps,
            "recipe": asdict(recipe),
        }

    def start(self, settings: Settings, device: torch.device) -> Training:
        return _QTraining(self, settings, device)


class _QTraining(Training):
    """An agent in training."""

    def __init__(self, problem: QLearning, settings: Settings, device: torch.device) -> None:
        self.problem, self.recipe, self.seed, self.device = problem, problem.recipe, settings.seed, device
        torch.manual_seed(seed_of(self.seed, "network"))
        self.agent = Agent(problem, problem.recipe, settings, device)
        self.learner = self.agent.learner
        self.total = (settings.epochs or 1) * problem.steps
        updates = max(1, (self.total - self.recipe.warmup) // self.recipe.train_every)
        self.learner.follow(settings.schedule, updates)
        set_random_seed(seed_of(self.seed, "exploration") % 2**32)
        self.agent.action_space.seed(seed_of(self.seed, "actions"))
        self.returns: list[float] = []  # of the episodes that ended in this epoch

    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        for steps, loss in self.agent.rollouts(number * self.problem.steps, self.total):
            self.returns += self.agent.ended_episodes()
            yield steps, loss

    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        seeds = [seed_of("valid", i) for i in range(self.problem.episodes["valid"])]
        return {"return": mean(play(model, self.recipe, seeds, self.device))}, {"return": None}

    def end_epoch(self) -> Measures:
        returns, self.returns = self.returns, []
        return {"return": mean(returns) if returns else None}

    def status(self, loss: float | None) -> str:
        shown = "random actions" if loss is None else f"loss {loss:.4g}"
        return f"return {mean(self.returns[-10:]):.1f}  {shown}" if self.returns else shown

    def state_dict(self) -> dict[str, Any]:
        return {"agent": self.agent.state_dict(), "returns": self.returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.agent.load_state_dict(state["agent"])
        self.returns = state["returns"]

    def conclude(self, best: dict[str, Tensor] | None) -> dict[str, Any]:
        returns: list[float] = []
        if best is not None:
            seeds = [seed_of(self.seed, "test", i) for i in range(self.problem.episodes["test"])]
            with self.learner.evaluating(()) as model:
                chosen = deepcopy(model)
                chosen.load_state_dict(best)
                returns = play(chosen, self.recipe, seeds, self.device)
        return {
            "higher_is_better": True,
            "updates": self.agent._n_updates,
            "test": {"return": mean(returns)} if returns else None,
            "test_returns": [round(value, 3) for value in returns],
        }
