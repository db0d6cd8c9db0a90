"""``Auto`` for the policies of Stable-Baselines3, which give an optimizer bare parameters and a rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..auto import Auto

__all__ = ["PolicyAuto"]

LOWEST = 0.1
"""A lower ``lr`` was meant as a learning rate."""


class PolicyAuto(Auto):
    """:class:`alrao.Auto` as the ``optimizer_class`` of a policy of Stable-Baselines3. Experimental.

    PPO, A2C, SAC and the others train any network by any loss with it, without a learning rate. The policy
    acts with the weights that it trains (``swap=False``), so that PPO's ratio is 1 before its first update.

    Args:
        params: the parameters of the policy.
        lr: factor on all rates, as a number: ``learning_rate=1.0`` of the agent.
        **options: those of :class:`alrao.Auto`.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from alrao.integrations.sb3 import PolicyAuto
        >>> agent = PPO("MlpPolicy", "CartPole-v1", learning_rate=1.0, n_steps=64, seed=0,
        ...             policy_kwargs={"optimizer_class": PolicyAuto})
        >>> agent.learn(128).policy.optimizer.interval()[0] > 1e-4
        True
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1.0, **options: Any) -> None:
        if not lr > LOWEST:
            raise ValueError(
                f"the agent's learning_rate={lr:g} is a factor on the rates that Auto finds: pass "
                "learning_rate=1.0, or a schedule that starts there, to the agent"
            )
        # An agent's data are new at every update: a decay would only bias what it learns.
        super().__init__(params, lr, **{"swap": False, "weight_decay": 0.0, **options})
