"""The tasks of reinforcement learning."""

from __future__ import annotations

from typing import ClassVar

import torch

from ..errors import missing
from ..settings import Settings
from ..tasks.task import Budget, Problem, Task
from . import Recipe


class _Control(Task):
    """Deep Q-learning; an epoch is a number of steps, followed by evaluation episodes.

    Of a budget, ``train`` is the steps of an epoch, ``valid`` the episodes after it, ``test`` those at the
    end.
    """

    models = ("mlp",)
    options = frozenset({"width", "tau"})
    defaults: ClassVar = {"tau": 0.1}
    unit = " steps"
    recipe: ClassVar[Recipe]

    def load(self, settings: Settings, device: torch.device) -> Problem:
        try:
            from .qlearning import QLearning
        except ModuleNotFoundError as error:
            raise missing(error.name or "stable-baselines3", "rl", f"the task {self.name}") from None
        return QLearning(self.recipe, settings, self.budgets[settings.budget])


class Pendulum(_Control):
    """gymnasium's Pendulum-v1 with five torques, deep Q-learning."""

    mini = Budget(epochs=20, batch=64, seeds=3, train=1000, valid=10, test=100)
    paper = Budget(epochs=100, batch=64, seeds=10, train=2000, valid=20, test=100)
    recipe = Recipe("Pendulum-v1", levels=5, reward_scale=0.02, gamma=0.98, warmup=500)


class LunarLander(_Control):
    """gymnasium's LunarLander-v3, deep Q-learning."""

    mini = Budget(epochs=20, batch=128, seeds=3, train=6000, valid=10, test=100)
    paper = Budget(epochs=100, batch=128, seeds=10, train=10_000, valid=20, test=100)
    recipe = Recipe("LunarLander-v3", reward_scale=0.02, train_every=2, exploration=0.3)
