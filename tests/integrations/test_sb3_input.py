"""Deep Q-learning by Stable-Baselines3: what is refused, and continuous actions made discrete."""

import doctest
import importlib
import sys

import pytest
import torch

pytest.importorskip("stable_baselines3", reason="the extra alrao[rl] is not installed")
pytest.importorskip("gymnasium", reason="the extra alrao[rl] is not installed")

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.dqn import policies as plain
from support.sb3_agents import Corridor, agent, trained_agent

from alrao.integrations import sb3
from alrao.integrations.sb3 import AlraoDQN, DiscreteActions

# Bad input.


def test_continuous_actions_need_the_wrapper():
    with pytest.raises(ValueError, match=r"needs discrete actions, got Box.*DiscreteActions"):
        AlraoDQN("MlpPolicy", "Pendulum-v1")
    with pytest.raises(ValueError, match="needs discrete actions"):
        AlraoDQN("MlpPolicy", make_vec_env("Pendulum-v1"))
    with pytest.raises(ValueError, match="its actions are one number"):
        agent(env=Corridor(actions=spaces.MultiDiscrete([2, 2])))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (36, 36, 3), np.uint8),
        spaces.Box(0, 1, (36, 36, 3)),
        spaces.Box(0, 255, (3, 9, 9), np.uint8),
    ],
)
def test_images_need_a_convolutional_network(space):
    with pytest.raises(ValueError, match=r"observations are images.*'CnnPolicy'"):
        agent(env=Corridor(space))


def test_a_checkpoint_of_another_environment(tmp_path):
    trained_agent(25).save(tmp_path / "agent.zip")
    for other in (Corridor(spaces.Box(-1, 1, (4,))), Corridor(actions=spaces.Discrete(2))):
        with pytest.raises(
            ValueError, match=r"agent\.zip is the checkpoint of an agent for another environment"
        ):
            AlraoDQN.load(tmp_path / "agent.zip", env=other)


def test_a_checkpoint_of_plain_dqn(tmp_path):
    DQN("MlpPolicy", Corridor(), buffer_size=10).save(tmp_path / "agent.zip")
    with pytest.raises(TypeError, match=r"a subclass of .*AlraoPolicy"):
        AlraoDQN.load(tmp_path / "agent.zip", env=Corridor())


def test_wrong_arguments():
    with pytest.raises(ValueError, match="reward_scale must be positive"):
        agent(reward_scale=0.0)
    with pytest.raises(TypeError, match=r"pass a schedule as factor="):
        agent(learning_rate=lambda remaining: 0.1)
    with pytest.raises(TypeError, match="lr must be an interval"):
        agent(learning_rate="fast")
    with pytest.raises(TypeError, match=r"a subclass of .*AlraoPolicy"):
        AlraoDQN(plain.MlpPolicy, Corridor())
    with pytest.raises(TypeError, match=r"one of alrao.*got SGD"):
        agent(policy_kwargs={"optimizer_class": torch.optim.SGD})


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "alrao.integrations.sb3")
    with pytest.raises(ModuleNotFoundError, match=r"needs the package stable_baselines3.*alrao\[rl\]"):
        importlib.import_module("alrao.integrations.sb3")


def test_doctests():
    assert doctest.testmod(sb3).failed == 0


# Discrete actions.


def test_levels_of_a_continuous_action():
    env = DiscreteActions(Corridor(actions=spaces.Box(-1, 2, (1,))), levels=4)
    assert env.action_space == spaces.Discrete(4)
    np.testing.assert_allclose([env.action(i) for i in range(4)], [[-1], [0], [1], [2]])
    assert env.action(np.int64(3)).dtype == np.float32
    env.reset(seed=0)
    env.step(2)


def test_levels_of_several_components():
    env = DiscreteActions(
        Corridor(actions=spaces.Box(np.array([-1, 0]), np.array([1, 4]), dtype=np.float32)), 3
    )
    assert env.action_space == spaces.Discrete(9)
    np.testing.assert_allclose([env.action(i) for i in (0, 1, 3, 8)], [[-1, 0], [-1, 2], [0, 0], [1, 4]])


def test_pendulum_trains_with_the_wrapper():
    trained = agent(env=DiscreteActions(gym.make("Pendulum-v1"), 3)).learn(40)
    assert trained.q_net.head.out_features == 3


@pytest.mark.parametrize(
    ("space", "levels", "message"),
    [
        (spaces.Discrete(3), 3, "Box of continuous actions"),
        (spaces.Box(-np.inf, 1, (1,)), 3, "finite bounds"),
        (spaces.Box(-1, 1, (1,)), 1, "at least 2"),
        (spaces.Box(-1, 1, (1,)), 2.5, "at least 2"),
        (spaces.Box(-1, 1, (8,)), 5, "give 390,625 actions"),
    ],
)
def test_levels_that_cannot_be(space, levels, message):
    with pytest.raises(ValueError, match=message):
        DiscreteActions(Corridor(actions=space), levels)
