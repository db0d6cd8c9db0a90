"""Checkpoints continue to the same bits; copies and pickles are complete; what does not fit is refused."""

import copy
import pickle
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from support.stepping import same
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import alrao

# Run by the test itself and, after a restart, by a new process.
SCRIPT = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
import alrao

def build(kind, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    averaging = alrao.paper.BayesianAverage(5) if kind == "bayes" else alrao.Switch(5)
    model = alrao.Alrao(net, 5, averaging=averaging)
    optimizer = {
        "sgd": lambda: alrao.SGD(model, momentum=0.9, weight_decay=0.01),
        "bayes": lambda: alrao.SGD(model, lr=(1e-3, 1.0), momentum=0.9, nesterov=True),
        "redrawn": lambda: alrao.SGD(model, lr=alrao.paper.Redrawn((1e-3, 1.0))),
        "adam": lambda: alrao.Adam(model),
        "adamw": lambda: alrao.AdamW(model, amsgrad=True),
    }[kind]()
    return model, optimizer

def train(model, optimizer, start, stop):
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 4, generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()

def state(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, stop = sys.argv[1], int(sys.argv[2])
    for kind, start in (argument.split("=") for argument in sys.argv[3:]):
        model, optimizer = build(kind, seed=1234)  # other weights and other rates, until they are loaded
        saved = torch.load(f"{folder}/{kind}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train(model, optimizer, int(start), stop)
        torch.save(state(model, optimizer), f"{folder}/{kind}-continued.pt")
"""
script: dict = {"__name__": "script"}
exec(SCRIPT, script)
build, train, state = script["build"], script["train"], script["state"]


def flat(tree, path=()):
    """The leaves of nested dicts and lists, by their path."""
    if isinstance(tree, dict | list | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {key: leaf for name, branch in items for key, leaf in flat(branch, (*path, name)).items()}
    return {path: tree}


def assert_same_bits(one, other):
    one, other = flat(one), flat(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[path].dtype, path
            assert torch.equal(value, other[path]), path
        else:
            assert value == other[path], path


def small(outputs=3, hidden=8, inputs=4):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def one_step(model, optimizer):
    x = torch.randn(8, model.net[0].in_features, dtype=model.net[0].weight.dtype)
    F.cross_entropy(model(x), torch.randint(3, (8,))).backward()
    optimizer.step()
    optimizer.zero_grad()


# Continuing.


KINDS = ["sgd", "bayes", "redrawn", "adam", "adamw"]


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """States after 12 steps, by kind: of uninterrupted runs, and of those that a new process took up."""
    folder, uninterrupted, starts = tmp_path_factory.mktemp("runs"), {}, []
    for kind in KINDS:
        start = random.Random(kind).randrange(2, 9)
        starts.append(f"{kind}={start}")
        model, optimizer = build(kind, seed=0)
        train(model, optimizer, 0, start)
        torch.save(state(model, optimizer), folder / f"{kind}.pt")
        train(model, optimizer, start, 12)
        uninterrupted[kind] = state(model, optimizer)
    (folder / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, folder / "script.py", folder, "12", *starts], check=True, timeout=100)
    return uninterrupted, {
        kind: torch.load(folder / f"{kind}-continued.pt", weights_only=True) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_process_continues_to_the_same_bits(kind, continued):
    uninterrupted, resumed = (states[kind] for states in continued)
    assert_same_bits(resumed, uninterrupted)
    model, _ = build(kind, seed=5)
    model.load_state_dict(resumed["model"])
    assert abs(model.posterior.sum().item() - 1) < 1e-6
    assert kind == "bayes" or model.head.averaging.t == 13


@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_model_and_optimizer_copied_together_continue_to_the_same_bits(kind, by):
    pair = build(kind, seed=0)
    train(*pair, 0, 4)
    twin = copy.deepcopy(pair) if by == "deepcopy" else pickle.loads(pickle.dumps(pair))
    before = copy.deepcopy(state(*twin))
    train(*pair, 4, 8)
    assert_same_bits(state(*twin), before)  # independent
    train(*twin, 4, 8)
    assert_same_bits(state(*twin), state(*pair))


@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
def test_a_model_copied_alone(by):
    model, optimizer = build("sgd", seed=0)
    train(model, optimizer, 0, 4)
    twin = copy.deepcopy(model) if by == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert_same_bits(twin.state_dict(), model.state_dict())
    assert twin.net[3] is twin.head
    x = torch.randn(5, 4)
    assert torch.equal(twin.eval()(x), model.eval()(x))
    assert str(twin) == str(model)
    # It is trained by an optimizer of its own, and the first is left alone.
    before = copy.deepcopy(model.state_dict())
    train(twin.train(), alrao.SGD(twin), 4, 6)
    assert_same_bits(model.state_dict(), before)
    assert twin.head.averaging.t == 7


@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
def test_a_copied_model_has_neither_gradients_nor_evidence(by):
    model, _ = build("sgd", seed=0)
    F.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
    twin = copy.deepcopy(model) if by == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert all(p.grad is None for p in twin.parameters())  # torch's rule
    alrao.SGD(twin).step()
    assert twin.head.averaging.t == 1


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("by", ["deepcopy", "pickle"])
def test_an_optimizer_copied_alone(by, scheduled):
    model, optimizer = build("sgd", seed=0)
    if scheduled:  # schedulers wrap the method step of the one optimizer they drive
        torch.optim.lr_scheduler.StepLR(optimizer, 3)
    train(model, optimizer, 0, 4)
    twin = copy.deepcopy(optimizer) if by == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
    assert_same_bits(twin.state_dict(), optimizer.state_dict())
    before = copy.deepcopy(state(model, optimizer))
    train(twin.model, twin, 4, 6)
    assert_same_bits(state(model, optimizer), before)
    train(model, optimizer, 4, 6)
    assert_same_bits(state(twin.model, twin), state(model, optimizer))


# The rates.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [alrao.SGD, alrao.Adam])
def test_rates_are_loaded_as_they_were_saved(kind, dtype, tmp_path):
    model = alrao.Alrao(small().to(dtype), 5)
    optimizer = kind(model, lr=(1e-4, 3.0))
    one_step(model, optimizer)
    rates = [optimizer.rates(p) for p in model.parameters()]
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    other = kind(model, lr=(1e-2, 1.0))
    other.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for p, rate in zip(model.parameters(), rates, strict=True):
        assert torch.equal(other.rates(p), rate)
        assert other.rates(p).dtype == torch.promote_types(dtype, torch.float32)
    one_step(model, other)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:lr=0.1 gives all 5 copies")
@pytest.mark.parametrize("saved_lr", [0.1, (1e-4, 3.0)])
@pytest.mark.parametrize("lr", [0.1, (1e-2, 1.0)])
def test_the_saved_law_replaces_the_one_given(saved_lr, lr):
    # As torch's optimizers take the learning rate from the state.
    model = alrao.Alrao(small(), 5)
    saving = alrao.SGD(model, lr=saved_lr)
    loading = alrao.SGD(model, lr=lr)
    loading.load_state_dict(saving.state_dict())
    assert all(torch.equal(loading.rates(p), saving.rates(p)) for p in model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(8, 4)
    F.cross_entropy(model(x), torch.randint(3, (8,))).backward()
    loading.step()
    for p, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old - saving.rates(p) * p.grad)


def test_a_state_brings_its_intervals():
    model = alrao.Alrao(small(), 5)
    saving = alrao.SGD(model, lr=(1e-4, 3.0))
    saving.set_interval(body=(1e-3, 1e-2))
    optimizer = alrao.SGD(model, lr=(1e-2, 1.0))
    optimizer.load_state_dict(saving.state_dict())
    assert optimizer.interval() == (1e-3, 1e-2)
    assert optimizer.interval(copies=True) == optimizer.interval(initial=True) == (1e-4, 3.0)
    assert optimizer.copy_rates()[[0, -1]].tolist() == [1e-4, 3.0]
    for p in model.parameters():
        assert torch.equal(optimizer.rates(p), saving.rates(p))


class Linear(alrao.RateDistribution):
    def quantile(self, u):
        return 0.1 * u


def test_a_distribution_of_the_users_is_not_in_the_state():
    model = alrao.Alrao(small(), 5)
    saving = alrao.SGD(model, lr=Linear())
    alike = alrao.SGD(model, lr=Linear())
    alike.load_state_dict(saving.state_dict())
    assert all(torch.equal(alike.rates(p), saving.rates(p)) for p in model.parameters())
    other = alrao.SGD(model)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"drawn from Linear.*build the optimizer with the same lr"):
        other.load_state_dict(saving.state_dict())
    assert same(other.state_dict(), before)


# The format, and what is refused.


def test_both_formats_carry_a_version():
    model = alrao.Alrao(small(), 5)
    assert alrao.SGD(model).state_dict()["alrao"] == 5
    assert model.state_dict()._metadata[""]["version"] == 1


def other_state(change):
    """A state that does not fit an ``SGD(momentum=0.9)`` of ``Alrao(small(), 5)``, and what is said of it."""
    if change == "torch's SGD":
        optimizer = torch.optim.SGD(small().parameters(), lr=0.1, momentum=0.9)
        return optimizer.state_dict(), "not the state of an alrao optimizer"
    nets = {
        "hidden": small(hidden=9),
        "inputs": small(inputs=5),
        "depth": nn.Sequential(nn.Linear(4, 8), small(inputs=8)),
    }
    model = alrao.Alrao(nets.get(change, small()), 4 if change == "copies" else 5)
    optimizer = alrao.SGD(model, momentum=0.9)
    if change != "depth":
        one_step(model, optimizer)
    saved = optimizer.state_dict()
    if change == "version":
        return {**saved, "alrao": 99}, "format 99.*upgrade"
    return saved, {"depth": "doesn't match the size"}.get(change, "is of another model")


@pytest.mark.parametrize("change", ["torch's SGD", "hidden", "inputs", "depth", "copies", "version"])
def test_a_state_that_does_not_fit_is_refused_with_nothing_changed(change):
    model = alrao.Alrao(small(), 5)
    optimizer = alrao.SGD(model, momentum=0.9)
    one_step(model, optimizer)
    before = copy.deepcopy(state(model, optimizer))
    saved, message = other_state(change)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert_same_bits(state(model, optimizer), before)
    one_step(model, optimizer)
    assert model.head.averaging.t == 3


def test_a_model_with_another_number_of_copies_is_refused_by_torch():
    with pytest.raises(RuntimeError, match="size mismatch"):
        alrao.Alrao(small(), 5).load_state_dict(alrao.Alrao(small(), 4).state_dict())


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_the_state_of_torchs_distributed_checkpoints(kind):
    """They keep the groups and the parameters' state, by name, and nothing else."""
    model, optimizer = build(kind, seed=0)
    train(model, optimizer, 0, 5)
    states = copy.deepcopy(get_state_dict(model, optimizer))
    other, of_other = build(kind, seed=1)
    set_state_dict(other, of_other, model_state_dict=states[0], optim_state_dict=states[1])
    train(model, optimizer, 5, 10)
    train(other, of_other, 5, 10)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())
