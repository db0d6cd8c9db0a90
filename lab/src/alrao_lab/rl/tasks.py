"""The tasks of reinforcement learning, and what an epoch and an evaluation are there."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib import import_module
from statistics import mean
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..errors import missing
from ..seeds import seed_of
from ..settings import Settings
from ..tasks.files import short_digest
from ..tasks.task import Budget, Learn, Measures, Task
from ..team import Team


@dataclass(frozen=True)
class Recipe:
    """Deep Q-learning on an environment, the same for every method."""

    environment: str
    """Its name in gymnasium."""
    levels: int | None = None
    """Values of each component of a continuous action."""
    reward_scale: float = 1.0
    """Multiplies the rewards in the targets; returns are reported without it."""
    gamma: float = 0.99
    """The discount."""
    hidden: int = 64
    """Units of each of the two hidden layers."""
    replay: int = 1_000_000
    """Transitions in the replay buffer."""
    warmup: int = 1000
    """Steps of random actions before the first update."""
    train_every: int = 1
    """Steps of the environment per update of the network and of the target network."""
    exploration: float = 0.2
    """Fraction of the training in which the probability of a random action falls from 1 to its last value."""
    last_epsilon: float = 0.05
    """That last value."""


class Control(Task):
    """Deep Q-learning on an environment.

    An epoch is a number of steps of the environment. After each, the greedy policy plays evaluation episodes,
    on which the best epoch is chosen; at the end, the weights of that epoch play new episodes. Of a budget,
    ``train`` is the steps of an epoch, ``valid`` the episodes after it, ``test`` those at the end.
    """

    models = ("mlp",)
    options = frozenset({"width", "tau"})
    defaults: ClassVar = {"tau": 0.1}
    unit = " steps"
    likelihood = "gaussian"
    measures = ("return",)
    higher_is_better = True
    recipe: ClassVar[Recipe]

    def load(self, settings: Settings, device: torch.device) -> Self:
        try:
            self.qlearning: Any = import_module(".qlearning", __package__)
        except ModuleNotFoundError as error:
            raise missing(error.name or "stable-baselines3", "rl", f"the task {self.name}") from None
        recipe, budget = asdict(self.recipe), self.budgets[settings.budget]
        self.steps = settings.train_size or budget.train or 10_000
        self.episodes = {"valid": budget.valid or 10, "test": budget.test or 100}
        self.identity = short_digest(sorted(recipe.items()), sorted(self.episodes.items()))
        source = {"source": f"gymnasium's {self.recipe.environment}"}
        self.about = {**source, **self.episodes, "steps": self.steps, "recipe": recipe}
        return self

    def start(self, settings: Settings, team: Team, learn: Learn) -> None:
        self.seed, self.device = settings.seed, team.device
        torch.manual_seed(seed_of(self.seed, "network"))
        self.agent = self.qlearning.Agent(learn, self.recipe, settings, team.device)
        self.learner = self.agent.learner
        self.total = (settings.epochs or 1) * self.steps
        updates = max(1, (self.total - self.recipe.warmup) // self.recipe.train_every)
        self.learner.follow(settings.schedule, updates)
        self.returns: list[float] = []  # of the episodes that ended in this epoch

    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        for steps, loss in self.agent.rollouts(number * self.steps, self.total):
            ended = self.agent.monitor.episode_returns
            self.returns += [round(value, 6) for value in ended]
            ended.clear()
            yield steps, loss

    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        return {"return": mean(self._play(model, "valid"))}, {"return": None}

    def _play(self, model: nn.Module, part: str, *name: object) -> list[float]:
        seeds = [seed_of(*name, part, i) for i in range(self.episodes[part])]
        returns: list[float] = self.qlearning.play(model, self.recipe, seeds, self.device)
        return returns

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
            with self.learner.evaluating(()) as model:
                chosen = deepcopy(model)
                chosen.load_state_dict(best)
                returns = self._play(chosen, "test", self.seed)
        return {
            "higher_is_better": True,
            "updates": self.agent.updates,
            "test": {"return": mean(returns)} if returns else None,
            "test_returns": [round(value, 3) for value in returns],
        }


class Pendulum(Control):
    """gymnasium's Pendulum-v1 with five torques, deep Q-learning."""

    mini = Budget(epochs=20, batch=64, seeds=3, train=1000, valid=10, test=100)
    paper = Budget(epochs=100, batch=64, seeds=10, train=2000, valid=20, test=100)
    recipe = Recipe("Pendulum-v1", levels=5, reward_scale=0.02, gamma=0.98, warmup=500)


class LunarLander(Control):
    """gymnasium's LunarLander-v3, deep Q-learning."""

    mini = Budget(epochs=20, batch=128, seeds=3, train=6000, valid=10, test=100)
    paper = Budget(epochs=100, batch=128, seeds=10, train=10_000, valid=20, test=100)
    recipe = Recipe("LunarLander-v3", reward_scale=0.02, train_every=2, exploration=0.3)
