"""Auto as the optimizer of Stable-Baselines3's own policies: the policy that acts is the one that learns."""

import pytest
import torch
from support.stepping import same
from torch import nn

pytest.importorskip("stable_baselines3", reason="the extra alrao[rl] is not installed")
pytest.importorskip("gymnasium", reason="the extra alrao[rl] is not installed")

from gymnasium import spaces
from stable_baselines3 import A2C, PPO, SAC
from support.sb3_agents import Corridor

import alrao
from alrao.integrations.sb3 import PolicyAuto

POLICY = {"optimizer_class": PolicyAuto, "net_arch": [8], "optimizer_kwargs": {"steps": 40}}


def agent(kind=PPO, **options):
    options = {"n_steps": 32, "batch_size": 16, "n_epochs": 4, "seed": 0, "device": "cpu", **options}
    return kind("MlpPolicy", Corridor(), learning_rate=1.0, policy_kwargs=POLICY, **options)


class FirstRatios(PPO):
    """Keeps the ratios of new to old probabilities before the first update of a rollout."""

    def train(self):
        rollout = next(self.rollout_buffer.get(self.n_steps))
        self.policy.set_training_mode(True)
        with torch.no_grad():
            _, log_prob, _ = self.policy.evaluate_actions(rollout.observations, rollout.actions.flatten())
        self.ratios = [*getattr(self, "ratios", []), (log_prob - rollout.old_log_prob).exp()]
        self.averaging = [state.get("k", 0) for state in self.policy.optimizer.state.values()]
        super().train()


@pytest.mark.parametrize("optimizer", ["PolicyAuto", "Auto without swap", "Auto"])
def test_the_ratio_is_1_before_the_first_update_of_each_rollout(optimizer):
    """Not under Auto's default for networks that are evaluated, which is why PolicyAuto has another."""
    acting = agent(FirstRatios)
    if optimizer != "PolicyAuto":
        acting.policy.optimizer = alrao.Auto(acting.policy, steps=40, swap=optimizer == "Auto")
    acting.learn(128)
    assert min(acting.averaging) > 0, "averages differ from the weights"
    differs = [not torch.allclose(ratio, torch.ones(32)) for ratio in acting.ratios]
    assert any(differs) is (optimizer == "Auto")


@pytest.mark.parametrize(
    ("kind", "env", "options"),
    [
        (A2C, Corridor(), {}),
        (SAC, Corridor(actions=spaces.Box(-1, 1, (1,))), {"learning_starts": 16, "batch_size": 8}),
    ],
)
def test_other_agents_train(kind, env, options):
    policy = {"optimizer_class": PolicyAuto, "net_arch": [8]}
    trained = kind(
        "MlpPolicy", env, learning_rate=1.0, policy_kwargs=policy, seed=0, device="cpu", **options
    ).learn(64)
    assert all(p.isfinite().all() for p in trained.policy.parameters())


def test_an_agent_is_saved_and_loaded(tmp_path):
    trained = agent().learn(128)
    trained.save(tmp_path / "agent")
    again = PPO.load(tmp_path / "agent", Corridor(), device="cpu")
    assert same(again.policy.state_dict(), trained.policy.state_dict())
    assert same(again.policy.optimizer.state_dict(), trained.policy.optimizer.state_dict())
    again.learn(32)


def test_a_learning_rate_where_a_factor_belongs_is_refused():
    with pytest.raises(ValueError, match=r"learning_rate=0.0003 is a factor.*learning_rate=1\.0"):
        PPO("MlpPolicy", Corridor(), policy_kwargs=POLICY)


def test_all_parameters_have_one_rate():
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 2))
    optimizer = PolicyAuto(net.parameters())
    assert {optimizer.rates(p).item() for p in net.parameters()} == {optimizer.rates(net[0].weight).item()}
