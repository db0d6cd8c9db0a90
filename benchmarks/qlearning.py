"""Deep Q-learning with `AlraoDQN`: Auto at its training weights, at its averages, and the paper's method.

Two tasks with small networks; the mean return of 10 episodes half-way and at the end. Usage:
python benchmarks/qlearning.py [--seeds 2]
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3.common.evaluation import evaluate_policy

from alrao.integrations.sb3 import AlraoDQN, DiscreteActions

TASKS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"steps": 8_000, "train_freq": 1, "reward_scale": 0.02},
    "CartPole-v1": {"steps": 12_000, "train_freq": 2, "reward_scale": 0.1},
}
METHODS: dict[str, dict[str, Any]] = {
    "SGD": {"learning_rate": (1e-5, 10.0)},
    "Auto": {},
    "Auto, averaged": {"policy_kwargs": {"optimizer_kwargs": {"swap": True}}},
}


def returns(task: str, method: str, seed: int) -> list[int]:
    """Train an agent and return its mean returns half-way and at the end."""
    env = gym.make(task)
    options = {**TASKS[task], **METHODS[method]}
    steps = options.pop("steps")
    options["policy_kwargs"] = {"net_arch": [64, 64], **options.get("policy_kwargs", {})}
    agent = AlraoDQN(
        "MlpPolicy",
        env if isinstance(env.action_space, gym.spaces.Discrete) else DiscreteActions(env, 5),
        tau=0.1,
        target_update_interval=1,
        batch_size=64,
        learning_starts=500,
        gamma=0.98,
        exploration_fraction=0.2,
        buffer_size=100_000,
        seed=seed,
        **options,
    )
    found = []
    for _ in range(2):
        agent.learn(steps // 2, reset_num_timesteps=False)
        mean, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=10)
        found.append(round(float(mean)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in TASKS:
        for method in METHODS:
            print(task, method, [returns(task, method, seed) for seed in range(args.seeds)], flush=True)


if __name__ == "__main__":
    main()
