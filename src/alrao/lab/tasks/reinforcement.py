"""Reinforcement learning: Pendulum and LunarLander by deep Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..data.places import short_digest
from ..errors import LabError, missing
from ..settings import Settings
from .task import Budget, Task, Trainable

if TYPE_CHECKING:
    from ..run import Watch
    from ..store import RunDirectory

__all__ = ["Control", "LunarLander", "Pendulum", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Deep Q-learning on an environment, the same for every method."""

    environment: str
    """Its name in gymnasium."""
    levels: int | None = None
    """Values of each component of a continuous action."""
    reward_scale: float = 1.0
    """Multiplies the rewards that are learnt from; returns are reported without it."""
    gamma: float = 0.99
    """The discount."""
    hidden: int = 64
    """Units of each of the two hidden layers."""
    replay: int = 1_000_000
    """Transitions remembered."""
    warmup: int = 1000
    """Steps of random actions before the first update."""
    train_every: int = 1
    """Steps of the environment for one update of the network, and one of the target network."""
    exploration: float = 0.2
    """Part of the training in which the probability of a random action falls from 1 to its last value."""
    last_epsilon: float = 0.05


class Control(Trainable):
    """An environment to master.

    Args:
        recipe: of the Q-learning.
        settings: of the run.
        budget: steps of an epoch (``train``), evaluation episodes (``valid``), last episodes (``test``).
    """

    likelihood = "gaussian"
    measures = ("return",)

    def __init__(self, recipe: Recipe, settings: Settings, budget: Budget) -> None:
        self.recipe = recipe
        self.steps = settings.train_size or budget.train or 10_000
        self.episodes = {"valid": budget.valid or 10, "test": budget.test or 100}
        self.identity = short_digest(sorted(asdict(recipe).items()), sorted(self.episodes.items()))
        self.about: Mapping[str, Any] = {
            "source": f"gymnasium's {recipe.environment}",
            **self.episodes,
            "steps": self.steps,
            "recipe": asdict(recipe),
        }

    def train(
        self, settings: Settings, directory: RunDirectory, device: torch.device, watch: Watch | None
    ) -> None:
        """Train an agent to the end, from the checkpoint if there is one, and write the result."""
        from ..reinforce import train

        train(self, settings, directory, device, watch)


class _Reinforcement(Task):
    """Deep Q-learning; an epoch is a number of steps, followed by evaluation episodes."""

    models = ("mlp",)
    options = frozenset({"width", "tau"})
    defaults: ClassVar = {"tau": 0.1}
    examples = "steps an epoch"
    recipe: ClassVar[Recipe]

    def load(self, settings: Settings, device: torch.device) -> Control:
        """The environment and how to learn it."""
        if settings.tau is not None and settings.tau > 1:
            raise LabError(f"--tau must be at most 1, got {settings.tau}")
        try:
            import alrao.integrations.sb3  # noqa: F401
        except ModuleNotFoundError as error:
            raise missing(error.name or "stable-baselines3", "rl", f"the task {self.name}") from None
        return Control(self.recipe, settings, self.budgets[settings.budget])


class Pendulum(_Reinforcement):
    """Swing a pendulum up and keep it there; the torque takes one of five values."""

    name = "pendulum"
    summary = "gymnasium's Pendulum-v1, five torques, by deep Q-learning; the measure is the return"
    budgets: ClassVar = {
        "mini": Budget(epochs=20, batch=64, seeds=3, train=1000, valid=10, test=100),
        "paper": Budget(epochs=100, batch=64, seeds=10, train=2000, valid=20, test=100),
    }
    recipe = Recipe("Pendulum-v1", levels=5, reward_scale=0.02, gamma=0.98, warmup=500)


class LunarLander(_Reinforcement):
    """Land a spacecraft with four engines on or off."""

    name = "lunarlander"
    summary = "gymnasium's LunarLander-v3 by deep Q-learning; the measure is the return"
    budgets: ClassVar = {
        "mini": Budget(epochs=20, batch=128, seeds=3, train=6000, valid=10, test=100),
        "paper": Budget(epochs=100, batch=128, seeds=10, train=10_000, valid=20, test=100),
    }
    recipe = Recipe("LunarLander-v3", reward_scale=0.02, train_every=2, exploration=0.3)
