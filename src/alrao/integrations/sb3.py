"""Deep Q-learning with Stable-Baselines3: ``AlraoDQN`` is ``DQN`` without a learning rate.

Needs ``pip install 'alrao[rl]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import inf, prod
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import alrao
from alrao.integrations._sb3_auto import PolicyAuto
from alrao.optim import AlraoOptimizer
from alrao.rates import Rate, as_distribution

try:
    import gymnasium as gym
    from gymnasium import spaces
    from stable_baselines3 import DQN
    from stable_baselines3.common.base_class import maybe_make_env
    from stable_baselines3.common.policies import BasePolicy
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from stable_baselines3.common.utils import FloatSchedule, polyak_update
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.dqn import policies as plain
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"alrao.integrations.sb3 needs the package {error.name}, which is not installed: "
        "pip install 'alrao[rl]'",
        name=error.name,
    ) from error

__all__ = ["AlraoDQN", "DiscreteActions", "LikelihoodDQN", "PolicyAuto"]


class DiscreteActions(gym.ActionWrapper[Any, Any, Any]):
    r"""Discretise a continuous action space into a grid of numbered actions.

    Each component of the action takes ``levels`` evenly spaced values from its lowest to its highest, both
    included: with :math:`n` levels, action :math:`i` is :math:`l + i\,(h - l)/(n - 1)`. With several
    components, the actions are all combinations, the last component varying fastest.

    Args:
        env: an environment whose actions are a :class:`gymnasium.spaces.Box` with finite bounds.
        levels: the number of values per component, at least 2; an odd number includes the middle.

    Example:
        >>> import gymnasium
        >>> env = DiscreteActions(gymnasium.make("Pendulum-v1"), levels=5)
        >>> env.action_space
        Discrete(5)
        >>> [float(env.action(i)[0]) for i in range(5)]
        [-2.0, -1.0, 0.0, 1.0, 2.0]
    """

    MOST = 10_000

    def __init__(self, env: gym.Env[Any, Any], levels: int = 5) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"DiscreteActions needs a Box of continuous actions, got {space}: remove it")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ValueError(f"DiscreteActions needs finite bounds, got {space}: rescale the actions first")
        if isinstance(levels, bool) or not isinstance(levels, int) or levels < 2:
            raise ValueError(f"levels must be a whole number of at least 2, got {levels!r}")
        self._shape = [levels] * prod(space.shape)
        count = levels ** len(self._shape)
        if count > self.MOST:
            raise ValueError(
                f"{levels} levels of {len(self._shape)} components give {count:,} actions, more than the "
                f"limit of {self.MOST:,}: use fewer levels"
            )
        self._box, self._levels = space, levels
        self.action_space = spaces.Discrete(count)

    def action(self, action: Any) -> Any:
        """Return the continuous action with this number."""
        place = np.stack(np.unravel_index(int(action), self._shape)).reshape(self._box.shape)
        low, high = self._box.low.astype(np.float64), self._box.high.astype(np.float64)
        return (low + place * ((high - low) / (self._levels - 1))).astype(self._box.dtype)


class LearnerPolicy(plain.DQNPolicy):
    """A policy whose Q-network and optimizer are built by :meth:`learner`.

    The target network starts as a copy of the Q-network.
    """

    def learner(self, net: nn.Module, rate: float) -> tuple[nn.Module, Optimizer]:
        """Return the model to train in place of ``net``, and its optimizer."""
        return net, self.optimizer_class(net.parameters(), lr=rate, **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        model, self.optimizer = self.learner(self.make_q_net(), lr_schedule(1))
        self.q_net = cast(plain.QNetwork, model)
        self.q_net_target = deepcopy(self.q_net)
        self.q_net_target.train(False)

    def set_training_mode(self, mode: bool) -> None:
        """Put the Q-network into training or evaluation mode."""
        if self.q_net.training != mode:
            self.q_net.train(mode)
        self.training = mode


class AlraoPolicy(LearnerPolicy):
    """A policy whose Q-network is an Alrao model; each copy of its head is a Normal of variance 1.

    Args:
        *args: as in Stable-Baselines3.
        rates: the interval of learning rates, or a rate distribution; by default the optimizer's.
        copies: the number of copies of the head.
        averaging: the posterior; :class:`alrao.Switch` by default.
        optimizer_class: an optimizer of alrao; by default :class:`alrao.Auto`, or :class:`alrao.SGD` if there
            are ``rates``.
        **kwargs: as in Stable-Baselines3; ``optimizer_kwargs`` go to the optimizer.
    """

    def __init__(
        self,
        *args: Any,
        rates: Rate | None = None,
        copies: int = 10,
        averaging: alrao.Posterior | None = None,
        optimizer_class: type[AlraoOptimizer] | None = None,
        **kwargs: Any,
    ) -> None:
        if optimizer_class is None:
            optimizer_class = alrao.Auto if rates is None else alrao.SGD
        if not issubclass(optimizer_class, AlraoOptimizer):
            raise TypeError(
                "the optimizer_class of an Alrao policy must be one of alrao's, got "
                f"{optimizer_class.__name__}: use alrao.Auto, alrao.SGD, alrao.Adam or alrao.AdamW"
            )
        if issubclass(optimizer_class, alrao.Auto) and rates is not None:
            raise ValueError(
                f"Auto finds the rates itself, got the rates {rates!r}: leave them out, or choose another "
                "optimizer_class"
            )
        self._alrao: dict[str, Any] = {"rates": rates, "copies": copies, "averaging": deepcopy(averaging)}
        super().__init__(*args, **{**kwargs, "optimizer_class": optimizer_class})

    def learner(self, net: nn.Module, rate: float) -> tuple[nn.Module, Optimizer]:
        """Return an Alrao model of the network and its optimizer; ``rate`` is the factor on its rates."""
        averaging = deepcopy(self._alrao["averaging"])
        model = alrao.Alrao(net, self._alrao["copies"], likelihood="gaussian", averaging=averaging)
        kind: Any = self.optimizer_class
        rates = self._alrao["rates"]
        options = {} if rates is None else {"lr": rates}
        if issubclass(kind, alrao.Auto):
            options["swap"] = False  # it acts with the weights that it trains, and the target follows them
        optimizer = kind(model, **{**options, **self.optimizer_kwargs})
        for group in optimizer.param_groups:
            group["lr"] = rate
        return model, optimizer

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._alrao}


class MlpPolicy(AlraoPolicy):
    """An Alrao policy for vector observations."""


class CnnPolicy(AlraoPolicy, plain.CnnPolicy):
    """An Alrao policy for image observations."""


class MultiInputPolicy(AlraoPolicy, plain.MultiInputPolicy):
    """An Alrao policy for dictionary observations."""


class LikelihoodDQN(DQN):
    r"""Vanilla deep Q-learning with a negative log-likelihood as loss, for any network and optimizer.

    A Normal of variance 1 predicts the Q-value of the action taken. The loss at the bootstrapped target
    :math:`y = c\,r + \gamma \max_b Q_\text{target}(s', b)` is :class:`alrao.MixtureMSELoss`: the squared
    error for a plain network, the mixture's loss for an Alrao model. Other actions
    have no target and contribute neither gradient nor evidence.

    ``DQN`` of Stable-Baselines3 differs: it clips the error (smooth L1) and the gradient, and it does not
    copy buffers, such as the posterior of an Alrao model, to the target network.

    Args:
        policy: as in Stable-Baselines3.
        env: an environment, or its name; actions must be discrete, see :class:`DiscreteActions`.
        learning_rate: of the optimizer.
        reward_scale: factor on the rewards in the target. The best action does not depend on it, and reported
            returns are unscaled.
        max_grad_norm: the largest norm of the gradient; unlimited by default. For an Alrao model, the body
            and each copy are clipped separately.
        **kwargs: as in :class:`stable_baselines3.DQN`.
    """

    policy: Any
    q_net: Any
    q_net_target: Any

    def __init__(
        self,
        policy: str | type[plain.DQNPolicy],
        env: Any,
        learning_rate: Any = 1e-4,
        *,
        reward_scale: float = 1.0,
        max_grad_norm: float = inf,
        **kwargs: Any,
    ) -> None:
        if env is not None:
            env = maybe_make_env(env, kwargs.get("verbose", 0))
            kind = self._get_policy_from_name(policy) if isinstance(policy, str) else policy
            _check_spaces(env, kind, kwargs.get("policy_kwargs") or {})
        if not 0 < reward_scale < inf:
            raise ValueError(f"reward_scale must be positive and finite, got {reward_scale!r}")
        self.reward_scale = reward_scale
        self.criterion = alrao.MixtureMSELoss()
        super().__init__(policy, env, learning_rate, max_grad_norm=max_grad_norm, **kwargs)

    @classmethod
    def load(cls, path: Any, env: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Load an agent stored by :meth:`save`, as in Stable-Baselines3."""
        try:
            return super().load(path, env, *args, **kwargs)
        except ValueError as error:
            if "spaces do not match" not in str(error):
                raise
            raise ValueError(
                f"{path} is the checkpoint of an agent for another environment ({error}): pass an "
                "environment with the spaces that it was trained with"
            ) from error

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps on samples from the replay buffer."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        assert self.replay_buffer is not None
        for _ in range(gradient_steps):
            loss = self.loss(self.replay_buffer.sample(batch_size, env=self._vec_normalize_env))
            losses.append(loss.item())
            self.descend(loss)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", float(np.mean(losses)))

    def loss(self, batch: Any) -> Tensor:
        """Return the mean negative log-likelihood of the targets of the actions taken."""
        discounts = self.gamma if batch.discounts is None else batch.discounts
        with torch.no_grad():
            following = self.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
            target = self.reward_scale * batch.rewards + (1 - batch.dones) * discounts * following
        chosen = self.q_net(batch.observations).gather(1, batch.actions.long())
        loss: Tensor = self.criterion(chosen, target)
        return loss

    def descend(self, loss: Tensor) -> None:
        """Take one step of the optimizer."""
        optimizer, model = self.policy.optimizer, self.q_net
        optimizer.zero_grad()
        loss.backward()
        if self.max_grad_norm < inf:
            if isinstance(model, alrao.Alrao):
                model.clip_grad_norm_(self.max_grad_norm)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)
        optimizer.step()

    def _on_step(self) -> None:
        self._n_calls += 1
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            update_target(self.q_net, self.q_net_target, self.tau)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)


def update_target(online: nn.Module, target: nn.Module, tau: float) -> None:
    """Move the target network's parameters towards the online network's, and copy the buffers.

    The posterior of an Alrao model is a buffer, so the target uses the current posterior.
    """
    polyak_update(online.parameters(), target.parameters(), tau)
    for buffer, of_target in zip(online.buffers(), target.buffers(), strict=True):
        of_target.copy_(buffer)


class AlraoDQN(LikelihoodDQN):
    """``DQN`` of Stable-Baselines3, trained by Alrao without a learning rate. Experimental.

    Callbacks, evaluation, ``save`` and ``load``, replay buffers and vectorised environments are those of
    Stable-Baselines3. The head of the Q-network has several copies, each a Normal of variance 1 around its
    value. The posterior ``agent.q_net.posterior`` weights them; the target network receives it too.

    Args:
        policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, or a subclass of
            :class:`AlraoPolicy`.
        env: an environment, or its name; actions must be discrete, see :class:`DiscreteActions`.
        learning_rate: by default :class:`alrao.Auto` finds it. An interval of rates or a rate distribution
            trains with :class:`alrao.SGD`.
        copies: the number of copies of the head.
        averaging: the posterior; :class:`alrao.Switch` by default.
        reward_scale: factor on the rewards in the target. The likelihood has variance 1, and large errors at
            high rates diverge: choose it so that the learnt values (discounted returns times this factor) are
            between about 1 and 10. The default suits returns of some hundreds.
        factor: factor on all rates: a number, or a function of the remaining progress (from 1 to 0), as the
            schedules of Stable-Baselines3.
        max_grad_norm: the largest norm of the gradients of the body and of each copy; unlimited by default.
        policy_kwargs: as in Stable-Baselines3; ``optimizer_class`` may be another optimizer of alrao.
        **kwargs: as in :class:`stable_baselines3.DQN`, with its defaults.

    Example:
        >>> from alrao.integrations.sb3 import AlraoDQN
        >>> agent = AlraoDQN("MlpPolicy", "CartPole-v1", learning_starts=50, seed=0).learn(200)
        >>> len(agent.q_net.posterior)
        10
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[AlraoPolicy],
        env: Any,
        learning_rate: Rate | None = None,
        copies: int = 10,
        *,
        averaging: alrao.Posterior | None = None,
        reward_scale: float = 0.02,
        factor: float | Callable[[float], float] = 1.0,
        max_grad_norm: float = inf,
        policy_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if callable(learning_rate):
            raise TypeError(
                "learning_rate must be an interval such as (1e-5, 10) or a rate distribution, got a "
                "function: pass a schedule as factor=, which multiplies all rates"
            )
        if learning_rate is not None:
            as_distribution(learning_rate)
        if isinstance(policy, type) and not issubclass(policy, AlraoPolicy):
            raise TypeError(
                f"AlraoDQN needs a subclass of alrao.integrations.sb3.AlraoPolicy as policy, got "
                f"{policy.__name__}: pass 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy', or subclass it"
            )
        self.factor = factor
        policy_kwargs = {
            "rates": learning_rate,
            "copies": copies,
            "averaging": averaging,
            **(policy_kwargs or {}),
        }
        super().__init__(
            policy,
            env,
            1.0 if learning_rate is None else learning_rate,
            reward_scale=reward_scale,
            max_grad_norm=max_grad_norm,
            policy_kwargs=policy_kwargs,
            **kwargs,
        )

    def _setup_lr_schedule(self) -> None:
        # Stable-Baselines3 writes this into every group at each train(), where alrao has a factor.
        self.lr_schedule = FloatSchedule(self.factor)


def _check_spaces(env: Any, policy: Any, policy_kwargs: dict[str, Any]) -> None:
    actions, observations = env.action_space, env.observation_space
    if isinstance(env, VecEnv | gym.Env) and not isinstance(actions, spaces.Discrete):
        remedy = (
            "wrap the environment in alrao.integrations.sb3.DiscreteActions"
            if isinstance(actions, spaces.Box)
            else "wrap the environment so that its actions are one number"
        )
        raise ValueError(f"Q-learning needs discrete actions, got {actions}: {remedy}")
    flattens = issubclass(policy, plain.DQNPolicy) and not issubclass(
        policy, plain.CnnPolicy | plain.MultiInputPolicy
    )
    extractor = policy_kwargs.get("features_extractor_class", FlattenExtractor if flattens else None)
    image = is_image_space(observations, check_channels=False) or (
        isinstance(observations, spaces.Box) and len(observations.shape) == 3
    )
    if image and extractor is FlattenExtractor:
        raise ValueError(
            f"the observations are images, {observations}, which an MLP would flatten: use 'CnnPolicy', or "
            "pass a features_extractor_class in policy_kwargs"
        )
