"""Deep Q-learning: Stable-Baselines3's, trained by any method of the workbench."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor, nn
from torch.optim import Optimizer

from alrao.integrations.sb3 import DiscreteActions, LearnerPolicy, LikelihoodDQN

from ..learner import Learner
from ..seeds import seed_of
from ..settings import Settings
from ..tasks.task import Learn
from .tasks import Recipe

AT_ONCE = 10
"""Evaluation episodes played in parallel."""
COUNTERS = ("num_timesteps", "_n_calls", "_n_updates", "_episode_num", "exploration_rate")
REPLAYED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class Episodes(gym.Wrapper[Any, Any, Any, Any]):
    """An environment in which episode number n starts from its own seed, made of a name and n.

    An episode is then determined by its number and its actions. Repeating these restores the environment,
    which cannot be saved itself.
    """

    def __init__(self, env: gym.Env[Any, Any], *name: object) -> None:
        super().__init__(env)
        self._name = name
        self.number = 0
        self.actions: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin the next episode; the ``seed`` is ignored."""
        self.number += 1
        self.actions = []
        return self.env.reset(seed=seed_of(*self._name, self.number), options=options)

    def step(self, action: Any) -> Any:
        self.actions.append(int(action))
        return self.env.step(action)


def make_environment(recipe: Recipe) -> gym.Env[Any, Any]:
    """Make the environment, with numbered actions and unscaled rewards."""
    env = gym.make(recipe.environment)
    return env if recipe.levels is None else DiscreteActions(env, recipe.levels)


class Agent(LikelihoodDQN):
    """Q-learning with the optimizer steps of a learner of the workbench."""

    learner: Learner

    def __init__(self, learn: Learn, recipe: Recipe, settings: Settings, device: torch.device) -> None:
        self.episodes = Episodes(make_environment(recipe), settings.seed, "episode")
        self.clip = settings.clip
        self.update_loss: float | None = None
        hidden = max(1, round(recipe.hidden * settings.width))

        agent = self

        class Policy(LearnerPolicy):
            def learner(self, net: nn.Module, rate: float) -> tuple[nn.Module, Optimizer]:
                agent.learner = learn(net.to(device))
                return agent.learner.model, agent.learner.optimizer

        self.monitor = Monitor(cast(Any, self.episodes))
        super().__init__(
            Policy,
            self.monitor,
            reward_scale=recipe.reward_scale,
            buffer_size=recipe.replay,
            learning_starts=recipe.warmup,
            batch_size=settings.batch,
            tau=settings.tau,
            gamma=recipe.gamma,
            train_freq=recipe.train_every,
            target_update_interval=recipe.train_every,
            exploration_fraction=recipe.exploration,
            exploration_final_eps=recipe.last_epsilon,
            policy_kwargs={"net_arch": [hidden, hidden]},
            device=device,
        )
        self.learner.train()
        set_random_seed(seed_of(settings.seed, "exploration") % 2**32)
        self.action_space.seed(seed_of(settings.seed, "actions"))

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self._n_updates

    def _update_learning_rate(self, optimizers: Any) -> None:
        """Leave the rates to the learner and its schedule."""

    def rollouts(self, until: int, total: int) -> Iterator[tuple[int, float | None]]:
        """Act and learn in turn, as :meth:`learn` does, up to a step of the training.

        Yields the number of steps made, and the loss of the update that followed, if there was one. The
        schedule of the exploration is over ``total`` steps.
        """
        _, callback = self._setup_learn(total - self.num_timesteps, reset_num_timesteps=False)
        env, frequency, replay = cast(Any, (self.env, self.train_freq, self.replay_buffer))
        while self.num_timesteps < until:
            before, self.update_loss = self.num_timesteps, None
            self.collect_rollouts(env, callback, frequency, replay, learning_starts=self.learning_starts)
            if self.num_timesteps > self.learning_starts:
                self.train(self.gradient_steps, self.batch_size)
            yield self.num_timesteps - before, self.update_loss

    def descend(self, loss: Tensor) -> None:
        self.update_loss = loss.item()
        if isfinite(self.update_loss):
            self.learner.step(loss, self.clip)

    def state_dict(self) -> dict[str, Any]:
        """The state between two rollouts, except the learner's and torch's generators."""
        buffer = cast(Any, self.replay_buffer)
        rows = len(buffer.observations) if buffer.full else buffer.pos
        name, keys, *rest = cast(Any, np.random.get_state())  # noqa: NPY002, the replay's
        return {
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "episode": self.episodes.number,
            "actions": list(self.episodes.actions),
            "target": self.q_net_target.state_dict(),
            "replay": {name: torch.from_numpy(getattr(buffer, name)[:rows]) for name in REPLAYED},
            "replay_position": [buffer.pos, buffer.full],
            "random": {
                "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest],
                "actions": json.dumps(self.action_space.np_random.bit_generator.state),
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; the last episode is played again up to its last action."""
        for name in COUNTERS:
            setattr(self, name, state["counters"][name])
        self.q_net_target.load_state_dict(state["target"])
        buffer = cast(Any, self.replay_buffer)
        for name in REPLAYED:
            rows = state["replay"][name].cpu().numpy()
            getattr(buffer, name)[: len(rows)] = rows
        buffer.pos, buffer.full = state["replay_position"]
        env = cast(Any, self.env).envs[0]
        self.episodes.number = state["episode"] - 1
        observation, _ = env.reset()
        for action in state["actions"]:
            observation = env.step(action)[0]
        self._last_obs = observation[None].copy()
        self._last_episode_starts = np.array([not state["actions"]])
        name, keys, *rest = state["random"]["numpy"]
        np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
        self.action_space.np_random.bit_generator.state = json.loads(state["random"]["actions"])


@torch.no_grad()
def play(model: nn.Module, recipe: Recipe, seeds: Sequence[int], device: torch.device) -> list[float]:
    """Return the returns of the greedy policy, one for each seed of an episode."""
    returns: list[float] = []
    environments = [make_environment(recipe) for _ in seeds[:AT_ONCE]]
    for start in range(0, len(seeds), AT_ONCE):
        part = seeds[start : start + AT_ONCE]
        observations = [env.reset(seed=seed)[0] for env, seed in zip(environments, part, strict=False)]
        totals, running = [0.0] * len(part), list(range(len(part)))
        while running:
            batch = torch.from_numpy(np.stack([observations[i] for i in running])).to(device)
            chosen = model(batch).argmax(1).tolist()
            for i, action in zip(list(running), chosen, strict=True):
                observations[i], reward, terminated, truncated, _ = environments[i].step(action)
                totals[i] += float(reward)
                if terminated or truncated:
                    running.remove(i)
        returns += totals
    for env in environments:
        env.close()
    return returns
