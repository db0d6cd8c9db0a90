"""A short environment and agents for it: shared by the tests of Stable-Baselines3."""

import pytest

pytest.importorskip("stable_baselines3", reason="the extra alrao[rl] is not installed")
pytest.importorskip("gymnasium", reason="the extra alrao[rl] is not installed")

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from alrao.integrations.sb3 import AlraoDQN

COPIES = 4


class Corridor(gym.Env):
    """Walk to the right end; three actions, ten steps at most."""

    def __init__(self, observations=None, actions=None):
        self.observation_space = observations or spaces.Box(-1, 1, (3,))
        self.action_space = actions or spaces.Discrete(3)

    def _observe(self):
        if not isinstance(self.observation_space, spaces.Box) or self.observation_space.shape != (3,):
            return self.observation_space.sample()
        return np.array([self.at / 5, np.sin(self.at), self.time / 10], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = float(self.np_random.uniform(-2, 2)), 0
        return self._observe(), {}

    def step(self, action):
        self.at += float(np.sum(action)) - 1
        self.time += 1
        return self._observe(), self.at / 3, abs(self.at) > 5, self.time >= 10, {}


def agent(kind=AlraoDQN, env=None, **options):
    options = {
        "learning_starts": 20,
        "batch_size": 16,
        "train_freq": 2,
        "target_update_interval": 2,
        "tau": 0.1,
        "reward_scale": 0.5,
        "buffer_size": 1000,
        "seed": 0,
        "device": "cpu",
        **options,
    }
    if kind is AlraoDQN:
        options.setdefault("copies", COPIES)
        options.setdefault("learning_rate", (1e-5, 10.0))  # the paper's method; None: Auto
    options.setdefault("policy_kwargs", {"net_arch": [8, 8]})
    return kind("MlpPolicy", env or Corridor(), **options)


def trained_agent(steps=60, **options):
    return agent(**options).learn(steps)
