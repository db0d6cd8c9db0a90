"""Stable-Baselines3: deep Q-learning with copies, and Auto as the optimizer of its own policies."""

import doctest
import importlib
import re
import sys
from copy import deepcopy

import pytest
import torch
from support.reference import ReferenceSwitch
from support.stepping import same
from support.tools import ROOT
from torch import nn

pytest.importorskip("stable_baselines3", reason="the extra alrao[rl] is not installed")
pytest.importorskip("gymnasium", reason="the extra alrao[rl] is not installed")

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.dqn import policies as plain

import alrao
from alrao.integrations import sb3
from alrao.integrations.sb3 import AlraoDQN, DiscreteActions, LikelihoodDQN, PolicyAuto

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


def next_batch(trained):
    """The batch that the next update will see."""
    state = np.random.get_state()  # noqa: NPY002
    batch = trained.replay_buffer.sample(trained.batch_size)
    np.random.set_state(state)  # noqa: NPY002
    return batch


def target_of(batch, gamma, target_net):
    with torch.no_grad():
        return (
            0.5 * batch.rewards
            + (1 - batch.dones) * gamma * target_net(batch.next_observations).max(1).values[:, None]
        )


# One update.


def test_one_update_is_the_one_of_the_definition():
    trained = trained_agent(learning_rate=(1e-4, 0.1))
    model, batch = trained.q_net, next_batch(trained)
    head, rates = model.head, trained.policy.optimizer.rates
    a = model.posterior.double()

    body = deepcopy(model.net.q_net[:-1]).double()
    layers = []
    for j in range(COPIES):
        layer = nn.Linear(8, 3).double()
        layer.load_state_dict({"weight": head.weight[j], "bias": head.bias[j]})
        layers.append(layer)
    old_target = deepcopy(trained.q_net_target)
    y = target_of(batch, trained.gamma, lambda x: old_target(x).as_subclass(torch.Tensor))[:, 0].double()
    rows, actions = torch.arange(len(y)), batch.actions[:, 0]
    z = body(batch.observations.double())

    log_p, log_likelihood = [], []
    for j, layer in enumerate(layers):  # each copy: its own loss, at the action taken alone
        own = ((layer(z.detach())[rows, actions] - y) ** 2 / 2).mean()
        log_likelihood.append(-own.detach())
        grads = torch.autograd.grad(own, [layer.weight, layer.bias])
        log_p.append(-((layer(z)[rows, actions] - y) ** 2) / 2)
        with torch.no_grad():
            layer.after = [
                p - rates(of)[j].double() * grad
                for p, of, grad in zip(
                    (layer.weight, layer.bias), (head.weight, head.bias), grads, strict=True
                )
            ]
    mixture = -torch.logsumexp(torch.stack(log_p) + a.log()[:, None], 0).mean()
    grads = torch.autograd.grad(mixture, list(body.parameters()))
    body_after = [
        p - rates(of).double() * grad
        for p, of, grad in zip(body.parameters(), model.net.q_net[:-1].parameters(), grads, strict=True)
    ]
    switch = ReferenceSwitch(COPIES)
    state = head.averaging._state
    switch.wa, switch.wb, switch.t = state[COPIES : 2 * COPIES], state[2 * COPIES : -1], head.averaging.t
    switch.update(torch.stack(log_likelihood))

    trained.train(1, trained.batch_size)
    for p, expected in zip(model.net.q_net[:-1].parameters(), body_after, strict=True):
        torch.testing.assert_close(p.double(), expected, rtol=1e-4, atol=1e-6)
    for j, layer in enumerate(layers):
        torch.testing.assert_close(head.weight[j].double(), layer.after[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(head.bias[j].double(), layer.after[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(head.averaging.weights, switch.weights, rtol=1e-4, atol=1e-7)
    assert not torch.equal(model.posterior.double(), a)


def test_actions_not_taken_learn_nothing():
    trained = trained_agent()
    trained.replay_buffer.actions[:] = 1
    before = deepcopy(trained.q_net.head.weight)
    trained.train(1, 16)
    after = trained.q_net.head.weight
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before[:, 1], after[:, 1])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_plain_network_learns_by_the_squared_error(kind):
    options = {"learning_rate": 0.01, "policy_kwargs": {"net_arch": [8, 8], "optimizer_class": kind}}
    trained = agent(LikelihoodDQN, **options).learn(60)
    net, target_net = deepcopy(trained.q_net), deepcopy(trained.q_net_target)
    optimizer = kind(net.parameters(), lr=0.01)
    optimizer.load_state_dict(deepcopy(trained.policy.optimizer.state_dict()))
    for _ in range(5):
        batch = next_batch(trained)
        y = target_of(batch, trained.gamma, target_net)
        optimizer.zero_grad()
        (nn.functional.mse_loss(net(batch.observations).gather(1, batch.actions), y) / 2).backward()
        optimizer.step()
        trained.train(1, trained.batch_size)
    for p, expected in zip(trained.q_net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-5, atol=1e-7)


def test_one_copy_at_one_rate_is_plain_sgd():
    alone = agent(learning_rate=0.01, copies=1)
    options = {"net_arch": [8, 8], "optimizer_class": torch.optim.SGD}
    other = agent(LikelihoodDQN, learning_rate=0.01, policy_kwargs=options)
    for ours, theirs in ((alone.q_net, other.q_net), (alone.q_net_target, other.q_net_target)):
        theirs.load_state_dict(ours.collapse().state_dict())
    for each in (alone, other):
        each.set_random_seed(3)
        each.learn(80)
    for p, expected in zip(alone.q_net.collapse().parameters(), other.q_net.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_clipped_only_when_asked():
    huge = Corridor()
    huge.step = lambda action: (huge.observation_space.sample(), 1e4, False, False, {})
    options = {"learning_rate": 1.0, "policy_kwargs": {"net_arch": [8], "optimizer_class": torch.optim.SGD}}
    for norm, moves in ((1e-3, False), (float("inf"), True)):
        trained = agent(LikelihoodDQN, huge, max_grad_norm=norm, **options)
        before = torch.cat([p.detach().flatten() for p in trained.q_net.parameters()])
        trained.learn(22)
        after = torch.cat([p.detach().flatten() for p in trained.q_net.parameters()])
        assert ((after - before).norm() > 1) == moves
    trained = trained_agent(max_grad_norm=0.1)
    assert all(p.isfinite().all() for p in trained.q_net.parameters())


# Auto, the default.


def autos(steps=200, **options):
    return trained_agent(steps, **{"learning_rate": None, **options})


def test_acting_learning_and_target_weights_agree():
    trained = autos()
    optimizer, model = trained.policy.optimizer, trained.q_net
    assert isinstance(optimizer, alrao.Auto)
    assert optimizer.search.over
    assert trained._n_updates > 60
    x = torch.rand(5, 3)
    trained.policy.set_training_mode(True)
    learning, before = model(x).detach().clone(), [p.detach().clone() for p in model.parameters()]
    trained.predict(np.zeros((1, 3), dtype=np.float32), deterministic=True)
    assert not model.training
    assert torch.equal(model(x).detach(), learning)
    trained.tau = 1.0
    trained._n_calls = 1
    trained._on_step()
    assert torch.equal(trained.q_net_target(x), learning)
    assert all(map(torch.equal, before, trained.q_net_target.parameters()))
    assert any("z" in state and not torch.equal(p, state["z"]) for p, state in optimizer.state.items())


def continued(trained, folder):
    """Save and load an agent, and train both on."""
    trained.save(folder / "agent.zip")
    trained.save_replay_buffer(folder / "replay.pkl")
    loaded = AlraoDQN.load(folder / "agent.zip", env=Corridor())
    loaded.load_replay_buffer(folder / "replay.pkl")
    trained.set_env(Corridor())
    for each in (trained, loaded):
        each.set_random_seed(5)
        each.learn(40, reset_num_timesteps=False)
    return loaded


def test_a_saved_agent_with_auto_goes_on_to_the_same_bits(tmp_path):
    trained = autos()
    loaded = continued(trained, tmp_path)
    assert loaded.policy.optimizer.search.over
    assert same(trained.policy.state_dict(), loaded.policy.state_dict())
    assert same(trained.policy.optimizer.state_dict(), loaded.policy.optimizer.state_dict())


# What Stable-Baselines3 does behind one's back.


def test_the_factor_on_the_rates_stays_1():
    trained = agent()
    drawn = [trained.policy.optimizer.rates(p) for p in trained.q_net.parameters()]
    trained.learn(60)
    assert trained._n_updates > 0
    assert [group["lr"] for group in trained.policy.optimizer.param_groups] == [1.0]
    assert same(drawn, [trained.policy.optimizer.rates(p) for p in trained.q_net.parameters()])


def test_the_factor_may_follow_a_schedule():
    trained = trained_agent(factor=lambda remaining: remaining)
    (group,) = trained.policy.optimizer.param_groups
    assert group["lr"] == pytest.approx(0.0, abs=0.05)


def test_the_posterior_moves_and_the_targets_follows():
    trained = trained_agent(target_update_interval=10)
    uniform = torch.full((COPIES,), 1 / COPIES)
    posterior = trained.q_net.posterior
    assert (posterior - uniform).abs().max() > 0.01
    assert not torch.equal(trained.q_net_target.posterior, uniform)
    trained._n_calls = 8
    trained._on_step()  # not yet
    assert not torch.equal(trained.q_net_target.posterior, posterior)
    trained._on_step()
    assert torch.equal(trained.q_net_target.posterior, posterior)
    assert trained.q_net_target.head.averaging.t == trained.q_net.head.averaging.t


def test_the_targets_weights_go_part_of_the_way():
    trained = trained_agent()
    online, before = trained.q_net.head.weight, trained.q_net_target.head.weight.clone()
    trained._n_calls = 1
    trained._on_step()
    torch.testing.assert_close(trained.q_net_target.head.weight, 0.9 * before + 0.1 * online)


def test_stable_baselines_alone_would_leave_the_targets_posterior_behind():
    trained = agent(target_update_interval=10**6).learn(60)  # no update of ours
    trained.target_update_interval = 1
    DQN._on_step(trained)
    assert torch.equal(trained.q_net_target.posterior, torch.full((COPIES,), 1 / COPIES))


# Everyday use.


def test_save_and_load(tmp_path):
    trained = trained_agent()
    trained.save(tmp_path / "agent.zip")
    loaded = AlraoDQN.load(tmp_path / "agent.zip", env=Corridor())
    assert same(trained.policy.state_dict(), loaded.policy.state_dict())
    assert torch.equal(trained.q_net.posterior, loaded.q_net.posterior)
    for p, q in zip(trained.q_net.parameters(), loaded.q_net.parameters(), strict=True):
        assert torch.equal(trained.policy.optimizer.rates(p), loaded.policy.optimizer.rates(q))
    without_env = AlraoDQN.load(tmp_path / "agent.zip")
    observation = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    assert (
        without_env.predict(observation, deterministic=True)[0]
        == trained.predict(observation, deterministic=True)[0]
    )


def test_a_loaded_agent_goes_on_as_the_other(tmp_path):
    trained = trained_agent()
    loaded = continued(trained, tmp_path)
    assert loaded.num_timesteps == trained.num_timesteps == 100
    assert same(trained.policy.state_dict(), loaded.policy.state_dict())


def test_the_policy_alone_may_be_saved(tmp_path):
    trained = trained_agent()
    trained.policy.save(tmp_path / "policy.pt")
    loaded = sb3.MlpPolicy.load(tmp_path / "policy.pt")
    assert same(trained.policy.state_dict(), loaded.state_dict())


@pytest.mark.parametrize("kind", [None, pytest.param(SubprocVecEnv, marks=pytest.mark.slow)])
def test_several_environments_at_once(kind):
    env = make_vec_env(Corridor, n_envs=3, seed=0, vec_env_cls=kind)
    trained = agent(env=env, target_update_interval=3).learn(90)
    env.close()
    assert trained.num_timesteps == 90
    assert not torch.equal(trained.q_net_target.posterior, torch.full((COPIES,), 1 / COPIES))


def test_evaluation_during_training(tmp_path):
    evaluation = EvalCallback(
        Monitor(Corridor()), eval_freq=30, n_eval_episodes=2, best_model_save_path=str(tmp_path), verbose=0
    )
    agent().learn(90, callback=evaluation)
    assert len(evaluation.evaluations_results) == 0  # only stored with a log path
    assert evaluation.best_mean_reward > -np.inf
    assert AlraoDQN.load(tmp_path / "best_model").q_net.head.copies == COPIES


def test_another_optimizer_and_average():
    trained = trained_agent(
        learning_rate=(1e-6, 1e-1),
        averaging=alrao.paper.BayesianAverage(COPIES),
        policy_kwargs={"optimizer_class": alrao.Adam, "optimizer_kwargs": {"betas": (0.8, 0.99)}},
    )
    assert isinstance(trained.policy.optimizer, alrao.Adam)
    assert isinstance(trained.q_net.head.averaging, alrao.paper.BayesianAverage)
    assert trained.policy.optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    assert trained.policy.optimizer.copy_rates()[-1].item() == pytest.approx(0.1)


OTHER_OBSERVATIONS = {
    "CnnPolicy": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "MultiInputPolicy": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
}


@pytest.mark.parametrize("policy", OTHER_OBSERVATIONS)
def test_other_observations(policy):
    env = Corridor(OTHER_OBSERVATIONS[policy])
    trained = AlraoDQN(policy, env, copies=2, learning_starts=4, batch_size=4, buffer_size=50, seed=0).learn(
        12
    )
    assert trained.policy.optimizer.search.steps > 0


def test_observations_of_several_axes_may_be_flattened_by_name():
    env = Corridor(spaces.Box(-1, 1, (2, 3)))
    assert agent(env=env).q_net.net.features_dim == 6


def test_large_rewards_are_scaled_by_default():
    env = DiscreteActions(gym.make("Pendulum-v1"), 3)
    trained = AlraoDQN("MlpPolicy", env, tau=0.1, target_update_interval=1, train_freq=1, seed=0).learn(400)
    values = trained.q_net(torch.zeros(1, 3))
    assert values.abs().max() < 100


@pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU:UserWarning")
def test_the_code_on_the_page_runs_for_fewer_steps(tmp_path, monkeypatch):
    pytest.importorskip("Box2D", reason="LunarLander needs Box2D")
    text = (ROOT / "docs/integrations/reinforcement-learning.md").read_text("utf-8")
    first, second = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, steps in ((first, "200_000"), (second, "20_000")):
        assert f"agent.learn({steps})" in code
        exec(compile(code.replace(steps, "300"), "reinforcement-learning.md", "exec"), names)
        assert type(names["agent"].policy.optimizer).__name__ in ("Auto", "PolicyAuto")


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


# Auto as the optimizer of Stable-Baselines3's own policies: the policy that acts is the one that learns.


POLICY = {"optimizer_class": PolicyAuto, "net_arch": [8], "optimizer_kwargs": {"steps": 40}}


def policy_agent(kind=PPO, **options):
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
    acting = policy_agent(FirstRatios)
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
    trained = policy_agent().learn(128)
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
