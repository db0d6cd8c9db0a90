"""Reinforcement learning: Pendulum and LunarLander by deep Q-learning. Needs the extra ``rl``."""

from __future__ import annotations

from dataclasses import dataclass


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
