"""Every method of the workbench against plain loops written with the optimizer's own package."""

import copy
import math
import sys
from dataclasses import asdict
from importlib.util import find_spec
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from lab_support.runs import settings, tiny
from torch import nn

from alrao_lab.errors import LabError
from alrao_lab.learner import Learner
from alrao_lab.methods import GRID, METHODS, expand, learner, settle, usual_methods
from alrao_lab.peers import ScheduleFreePlus
from alrao_lab.resolve import resolve
from alrao_lab.seeds import seed_of
from alrao_lab.settings import Interval, MethodSpec, Settings
from alrao_lab.store import RunDirectory
from alrao_lab.zoo.small import TransformerLM

CPU = torch.device("cpu")
RATES = {"sgd": "sgd@0.1", "frozen": "frozen@0.1:0.5"}


def problem_and_net(**changes):
    """The data and the network as a run has them at its start."""
    task, resolved = resolve(settings(**changes))
    problem = task.load(resolved, CPU)
    torch.manual_seed(seed_of(resolved.seed, "network"))
    return problem, problem.network(), resolved


def cross_entropy(model, problem, part):
    """The loss on a part of the data, without the workbench's evaluation."""
    model.eval()
    with torch.no_grad():
        sums = [F.cross_entropy(model(x), y, reduction="sum") for x, y in problem.evaluation(part)]
    return sum(float(each) for each in sums) / len(problem.parts[part])


def plain_loop(problem, net, optimizer, *, clip=None, scheduler=None, after=None, evaluated=None):
    """Two epochs as one would write them; the mean training losses, and the losses on validation."""
    train, valid = [], []
    for epoch in (1, 2):
        net.train()
        losses = []
        for x, y in problem.batches(epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
            if after:
                after()
            losses.append(loss.item())
        train.append(sum(losses) / len(losses))
        model = evaluated(epoch) if evaluated else net
        valid.append(cross_entropy(model, problem, "valid"))
    return train, valid


def run_loop(tmp_path, **changes):
    lines = tiny(tmp_path, **changes).metrics()
    return [line["train"]["loss"] for line in lines], [line["valid"]["loss"] for line in lines]


@pytest.mark.parametrize(
    ("changes", "build"),
    [
        ({"method": "sgd@0.1"}, lambda p: torch.optim.SGD(p, 0.1)),
        (
            {"method": "sgd@0.05", "momentum": 0.9, "weight_decay": 0.01, "model": "cnn"},
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
        ),
        ({"method": "adam"}, lambda p: torch.optim.Adam(p)),
        (
            {"method": "adam@0.01", "momentum": 0.5, "weight_decay": 0.1},
            lambda p: torch.optim.Adam(p, 0.01, betas=(0.5, 0.999), weight_decay=0.1),
        ),
    ],
)
def test_baselines_are_torch_s_to_the_bit(tmp_path, changes, build):
    problem, net, _ = problem_and_net(**changes)
    assert run_loop(tmp_path, **changes) == plain_loop(problem, net, build(net.parameters()))


def test_clipping_is_torch_s(tmp_path):
    changes = {"method": "sgd@0.5", "clip": 0.2}
    problem, net, _ = problem_and_net(**changes)
    theirs = plain_loop(problem, net, torch.optim.SGD(net.parameters(), 0.5), clip=0.2)
    assert run_loop(tmp_path, **changes) == theirs
    assert theirs != run_loop(tmp_path, method="sgd@0.5")


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_dog_is_evaluated_at_its_average(tmp_path, model):
    from dog import DoG, PolynomialDecayAverager

    problem, net, _ = problem_and_net(model=model)
    averager = PolynomialDecayAverager(net)
    theirs = plain_loop(
        problem, net, DoG(net.parameters()), after=averager.step, evaluated=lambda _: averager.averaged_model
    )
    assert run_loop(tmp_path, method="dog", model=model) == theirs


def with_new_statistics(model, problem, epoch):
    """A copy of the model, with BatchNorm statistics of its weights as they are."""
    there = copy.deepcopy(model).train()
    for module in there.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for x, _ in list(problem.batches(epoch))[:50]:
            there(x)
    return there


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_an_average_of_the_weights_for_any_method(tmp_path, model):
    from dog import PolynomialDecayAverager

    problem, net, _ = problem_and_net(model=model)
    averager = PolynomialDecayAverager(net)
    theirs = plain_loop(
        problem, net, torch.optim.SGD(net.parameters(), 0.5), after=averager.step,
        evaluated=lambda epoch: with_new_statistics(averager.averaged_model, problem, epoch),
    )  # fmt: skip
    assert run_loop(tmp_path, method="sgd@0.5", model=model, average=True) == theirs
    assert theirs != run_loop(tmp_path, method="sgd@0.5", model=model)


@pytest.mark.parametrize("method", ["dog", "schedulefree"])
def test_methods_with_an_average_take_no_other(method):
    with pytest.raises(LabError, match=f"{method} averages its weights itself: leave --average out"):
        resolve(settings(method=method, average=True))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_schedule_free_is_told_when_it_is_evaluated(tmp_path, model):
    from schedulefree import AdamWScheduleFree

    problem, net, _ = problem_and_net(model=model)
    optimizer = AdamWScheduleFree(net.parameters())
    optimizer.train()

    def evaluated(epoch):
        """At the averaged weights, with BatchNorm statistics of these, as the package's README has it."""
        optimizer.eval()
        there = with_new_statistics(net, problem, epoch)
        optimizer.train()
        return there

    assert run_loop(tmp_path, method="schedulefree", model=model) == plain_loop(
        problem, net, optimizer, evaluated=evaluated
    )


def test_the_small_cnn_has_what_schedule_free_must_recalibrate():
    # Of the test above: else it would show nothing.
    _, net, _ = problem_and_net(model="cnn")
    assert any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())


def factors(schedule, steps, build=None):
    """The rates of a schedule over the steps, ours or torch's own."""
    p = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], 0.1)
    ours = Learner(nn.Module(), optimizer)
    if build is None:
        ours.follow(schedule, steps)
    scheduler = ours.schedulers[0] if build is None else build(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("schedule", "build"),
    [
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20)),
        ("linear", lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=20)),
        ("step", lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [10, 15], gamma=0.1)),
    ],
)
def test_schedules_are_torch_s(schedule, build):
    assert factors(schedule, 20) == pytest.approx(factors(schedule, 20, build), rel=1e-9, abs=1e-12)


def test_a_schedule_spans_the_whole_run(tmp_path):
    changes = {"method": "sgd@0.5", "schedule": "cosine"}
    problem, net, _ = problem_and_net(**changes)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: 0.5 * (1 + math.cos(math.pi * t / (2 * problem.steps)))
    )
    assert run_loop(tmp_path, **changes) == plain_loop(problem, net, optimizer, scheduler=scheduler)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_learns(tmp_path, name):
    slow = ("dog", "dog-suggested", "dadapt-sgd", "dadapt-adam")
    epochs = 15 if name in slow else 3  # these begin with tiny steps
    kept = []
    for seed in range(3):  # one run of D-Adaptation may diverge by rounding
        lines = tiny(tmp_path, method=RATES.get(name, name), epochs=epochs, seed=seed).metrics()
        first, *others = [line["train"]["loss"] for line in lines]
        kept.append(min(others) / first)
    assert median(kept) < 1


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.momentum != "never"])
def test_momentum_and_decay_reach_the_optimizer(name):
    problem, net, resolved = problem_and_net(method=RATES.get(name, name), momentum=0.7, weight_decay=0.125)
    for group in learner(net, resolved, problem).optimizer.param_groups:
        assert (group["betas"][0] if "betas" in group else group["momentum"]) == 0.7
        assert group["weight_decay"] == 0.125


def test_published_defaults():
    expected = {"adam": 1e-3, "prodigy": 1.0, "dadapt-sgd": 1.0, "dadapt-adam": 1.0, "dog": 1.0}
    expected |= {"schedulefree": 0.0025, "prodigy-plus": 1.0, "mechanic": 1.0}
    expected |= {"schedulefree+": 1.0, "ademamix": 1e-3, "soap": 3e-3}
    expected |= {"nadamw-calibrated": 0.00175, "schedulefree-calibrated": 0.0025}
    for name, lr in expected.items():
        problem, net, resolved = problem_and_net(method=name)
        [group] = learner(net, resolved, problem).optimizer.param_groups
        assert group["lr"] == lr


def test_what_authors_recommend():
    for model, first in (("mlp", 1e-6), ("cnn", 1e-4)):
        problem, net, resolved = problem_and_net(method="dog-suggested", model=model)
        trained = learner(net, resolved, problem)
        assert trained.optimizer.param_groups[0]["reps_rel"] == first
        assert trained.averager is not None
    problem, net, resolved = problem_and_net(method="ademamix-warm")
    [group] = learner(net, resolved, problem).optimizer.param_groups
    assert (group["t_alpha_beta3"], group["lr"]) == (resolved.epochs * problem.steps, 1e-3)


def test_auto_is_the_default_and_first_in_a_comparison(monkeypatch):
    assert Settings().method == MethodSpec("auto")
    installed = {"prodigy": "prodigyopt", "schedulefree": "schedulefree"}
    peers = [name for name, module in installed.items() if find_spec(module)]
    assert usual_methods() == ["auto", "sgd", "adam", *peers]
    for module in installed.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "path", [])
    assert usual_methods() == ["auto", "sgd", "adam"], "the peers only where they are installed"


def test_a_warm_up_is_followed_by_a_cosine():
    problem, net, resolved = problem_and_net(method="sgd@2")
    trained = learner(net, resolved, problem)
    trained.follow("warmup", 100)
    seen = []
    for _ in range(100):
        seen.append(trained.optimizer.param_groups[0]["lr"])
        trained.optimizer.step()
        trained.schedulers[0].step()
    assert seen[:5] == pytest.approx([2 * step / 6 for step in (1, 2, 3, 4, 5)])
    assert seen[5:] == pytest.approx([1 + math.cos(math.pi * step / 100) for step in range(5, 100)])


def test_muon_trains_the_hidden_matrices_and_adamw_the_rest():
    problem, net, resolved = problem_and_net(method="muon")
    hidden, rest = learner(net, resolved, problem).optimizer.param_groups
    assert [tuple(p.shape) for p in hidden["params"]] == [(128, 128)]
    assert [tuple(p.shape) for p in rest["params"]] == [(128, 64), (128,), (128,), (10, 128), (10,)]
    assert (hidden["lr"], rest["lr"]) == (0.02, 3e-4), "its published defaults"
    problem, net, resolved = problem_and_net(method="muon@0.01", model="cnn")
    hidden, rest = learner(net, resolved, problem).optimizer.param_groups
    assert (hidden["lr"], rest["lr"], rest["weight_decay"]) == (0.01, 0.01, 0.01)
    assert [tuple(p.shape) for p in hidden["params"]] == [(32, 16, 3, 3), (64, 32, 3, 3)], "kernels too"


def test_muon_leaves_embeddings_to_adamw():
    net = TransformerLM(7)
    hidden, rest = learner(net, settings(method="muon@0.01"), None).optimizer.param_groups
    tables = {net.embedding.weight, net.positions.weight, net.decoder.weight}
    assert tables <= set(rest["params"])
    assert len(hidden["params"]) == 8, "the four matrices of each of the two layers"


def test_schedulefree_plus_is_the_algorithm_of_its_paper():
    torch.manual_seed(0)
    start, data = torch.randn(4, dtype=torch.double), torch.randn(3, 4, dtype=torch.double)
    p = torch.nn.Parameter(start.clone())
    optimizer = ScheduleFreePlus([p], last_warm_up=1)
    x, z, m, v, largest, total = start.clone(), start.clone(), 0, 0, 0.0, 0.0
    for step, row in enumerate(data, 1):
        loss = (row @ p - 1).square() + 0.3
        optimizer.zero_grad()
        loss.backward()
        optimizer.loss = loss.item()
        y = 0.9 * x + 0.1 * z
        torch.testing.assert_close(p.detach(), y)
        g = 2 * (row @ y - 1) * row
        value = (row @ y - 1) ** 2 + 0.3 + 0.9 * (g @ (z - x))
        rate = max(0, value) / (math.sqrt(math.pi / 2) * g.abs().sum())
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        z = z - rate * (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
        largest = max(largest, float(rate))
        total += largest**2 if step > 1 else 0
        c = largest**2 / total if step > 1 else 1
        x = (1 - c) * x + c * z
        optimizer.step()
    optimizer.eval()
    torch.testing.assert_close(p.detach(), x)
    optimizer.train()
    torch.testing.assert_close(p.detach(), 0.9 * x + 0.1 * z)
    optimizer.eval()
    with pytest.raises(RuntimeError, match="train"):
        optimizer.step()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("wsd", {0: 1 / 6, 4: 5 / 6, 5: 1.0, 79: 1.0, 80: 1.0, 90: 0.5, 99: 0.05}),
        ("ramp", {0: 1 / 6, 5: 1.0, 99: 1.0}),
        ("warmup-2%", {0: 1 / 3, 1: 2 / 3, 50: 0.5}),
    ],
)
def test_schedules_with_a_warm_up(schedule, expected):
    problem, net, resolved = problem_and_net(method="sgd@1")
    trained = learner(net, resolved, problem)
    trained.follow(schedule, 100)
    factor = trained.schedulers[0].lr_lambdas[0]
    assert {step: factor(step) for step in expected} == pytest.approx(expected)


def test_a_momentum_that_a_method_cannot_have():
    with pytest.raises(LabError, match="dog has no momentum: leave --momentum out"):
        resolve(settings(method="dog", momentum=0.9))
    with pytest.raises(LabError, match="above 0"):
        resolve(settings(method="schedulefree", momentum=0.0))


def test_adamw_decays_weights_as_torch_does():
    for method, decay, expected in (("adamw", 0.0, (0.001, 0.01)), ("adamw@0.1", 0.5, (0.1, 0.5))):
        problem, net, resolved = problem_and_net(method=method, weight_decay=decay)
        optimizer = learner(net, resolved, problem).optimizer
        group = optimizer.param_groups[0]
        assert isinstance(optimizer, torch.optim.AdamW)
        assert (group["lr"], group["weight_decay"]) == expected


@pytest.mark.parametrize("method", ["alrao", "alrao-adam"])
def test_alrao_takes_interval_and_copies(method):
    problem, net, resolved = problem_and_net(method=method, lr="1e-4:1e-2", copies=5)
    made = learner(net, resolved, problem)
    assert made.rates == pytest.approx([1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2])
    rates = torch.cat([made.optimizer.rates(p).flatten() for p in made.model.parameters()])
    assert 1e-4 <= rates.min() < rates.max() <= 1e-2
    assert sum(made.posterior) == pytest.approx(1)


def test_frozen_trains_a_fraction_of_the_features(tmp_path):
    [body, *_] = tiny(tmp_path, method="frozen@0.1:0.5", epochs=1).features()
    moved, trained = torch.tensor(body["moved"]) > 0, torch.tensor(body["rates"]) > 0
    assert not moved[~trained].any()
    assert moved[trained].float().mean() > 0.9  # a feature that is never active has no gradient
    assert 0.3 < trained.float().mean() < 0.7


def test_an_interval_of_one_rate():
    problem, net, resolved = problem_and_net(method="alrao", lr="0.1", copies=1)
    assert resolved.lr == Interval(0.1, 0.1)
    made = learner(net, resolved, problem)
    rates = [float(rate) for p in made.model.parameters() for rate in made.optimizer.rates(p).flatten()]
    assert rates == pytest.approx([0.1] * len(rates))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (("sgd", "0.10"), "sgd@0.1"),
        (("sgd@1e-1", None), "sgd@0.1"),
        (("sgd@.1", None), "sgd@0.1"),
        (("adam@0.00001", None), "adam@1e-05"),
        (("frozen@0.10:.5", None), "frozen@0.1:0.5"),
        (("sgd@0.123456789", None), "sgd@0.123456789"),
        (("adam", None), "adam"),
    ],
)
def test_one_spelling(said, name):
    assert tuple(map(str, settled(*said))) == (name, "None")


def settled(method, lr):
    return settle(MethodSpec.parse(method), None if lr is None else Interval.parse(lr))


def test_a_comparison_s_grid():
    assert expand("sgd") == [MethodSpec("sgd", rate) for rate in GRID]
    assert pytest.approx([10**k for k in range(-5, 2)]) == GRID
    assert expand("adam@.01") == [MethodSpec("adam", 0.01)]


@pytest.mark.parametrize(
    ("method", "lr", "message"),
    [
        ("sdg@0.1", None, "did you mean sgd"),
        ("sgd", None, "sgd needs a rate: sgd@0.1"),
        ("frozen", None, "frozen needs a rate: frozen@0.1:0.5"),
        ("frozen@0.1", None, "fraction of trained features"),
        ("frozen@0.1:2", None, "at most 1, got 2"),
        ("sgd@0", None, "must be positive, got 0"),
        ("sgd@-1", None, "got -1"),
        ("sgd@nan", None, "finite"),
        ("sgd@1e999", None, "finite"),
        ("sgd@fast", None, "must be a number, got 'fast'"),
        ("sgd@0.1:0.5", None, "only frozen takes a fraction"),
        ("sgd@0.1", "0.2", "given twice"),
        ("sgd", "0.1:0.2", "sgd takes one rate, got the interval --lr 0.1:0.2"),
        ("alrao@0.1", None, "--lr 1e-5:10"),
        ("alrao", "10:1e-5", "from low to high"),
        ("alrao", "1:2:3", "must be a number, got '2:3'"),
        ("alrao", "", "must be a number"),
    ],
)
def test_names_and_rates_that_are_none(method, lr, message):
    with pytest.raises(LabError, match=message):
        settled(method, lr)


def test_intervals():
    assert Interval.parse("1e-5:10") == Interval(1e-5, 10.0)
    assert Interval.parse("0.1") == Interval(0.1, 0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "frozen@0.1:0.5"},
        {"method": "adam", "seed": 3},
        {"method": "alrao-adam", "lr": "1e-6:0.1", "evidence": "sum"},
    ],
)
def test_settings_come_back_from_json(tmp_path, changes):
    wanted = settings(**changes)
    directory = RunDirectory(tmp_path)
    directory.write("config", {"settings": asdict(wanted)})
    assert Settings(**directory.config["settings"]) == wanted


@pytest.mark.parametrize("value", [3, [1], {"rate": 1}, {"low": 1}])
def test_a_value_that_cannot_be_read(value):
    with pytest.raises(LabError, match="is no Interval"):
        Settings(lr=value)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("dog", "dog", "dog-optimizer"), ("prodigy", "prodigyopt", "prodigyopt"), ("schedulefree",) * 3],
)
def test_a_peer_that_is_not_installed(monkeypatch, name, module, package):
    problem, net, resolved = problem_and_net(method=name)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(LabError, match=rf"needs the package {package}, .*pip install 'alrao-lab\[peers\]'"):
        learner(net, resolved, problem)
