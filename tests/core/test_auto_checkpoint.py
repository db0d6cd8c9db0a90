"""Auto's checkpoints: either mode, either order, any step, to the bit; weights loaded without a state."""

import copy
import io
import subprocess
import sys
import warnings
from functools import cache

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from support.auto_runs import batch, build, equal, small, train, weights
from support.stepping import same
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import alrao

END = 75
AT = [30, 50, 60]  # in the search, at its end, behind it


def save(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def load(model, optimizer, saved, order="model first"):
    parts = [(model, saved["model"]), (optimizer, saved["optimizer"])]
    for each, state in parts if order == "model first" else reversed(parts):
        each.load_state_dict(state)


def finish(model, optimizer, start, stop=END):
    """Train to the end; all that a run is, in both modes."""
    model.train()
    train(model, optimizer, start, stop)
    model.train()
    training = weights(model)
    model.eval()
    return training + weights(model) + [model.posterior, torch.tensor(optimizer.interval())]


@cache
def uninterrupted():
    return finish(*build(norm=True), 0)


ORDERS = ["model first", "optimizer first"]
UNKNOWN = ".*the averaged weights, which should be evaluated, are not known"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("loading", ["training", "evaluating"])
@pytest.mark.parametrize("saving", ["training", "evaluating"])
@pytest.mark.parametrize("at", AT)
def test_resumed_to_the_bit(at, saving, loading, order):
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, at)
    model.train(saving == "training")
    saved = save(model, optimizer)
    other = build(1, norm=True)  # other weights and rates, until they are loaded
    other[0].train(loading == "training")
    load(*other, saved, order)
    assert equal(finish(*other, at), uninterrupted())


@pytest.mark.parametrize("training", [True, False])
def test_saving_changes_nothing(training):
    model, optimizer = build(norm=True)
    for step in range(60):
        model.train()
        train(model, optimizer, step, step + 1)
        model.train(training)
        save(model, optimizer)
    assert equal(finish(model, optimizer, 60), uninterrupted())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("loading", ["training", "evaluating"])
@pytest.mark.parametrize("saving", ["training", "evaluating"])
def test_resumed_by_a_run_under_way(saving, loading, order):
    """Its averages and saved weights are those of another run, and must not come back."""
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, 60)
    model.train(saving == "training")
    saved = save(model, optimizer)
    other = build(1, norm=True)
    train(*other, 0, 70)
    other[0].train(loading == "training")
    load(*other, saved, order)
    assert equal(finish(*other, 60), uninterrupted())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("saving", ["training", "evaluating"])
def test_evaluations_between_the_loads_do_no_harm(saving, order):
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, 60)
    model.eval()
    x = batch(99)[0]
    expected = model(x)
    model.train(saving == "training")
    saved = save(model, optimizer)
    other, its_optimizer = build(1, norm=True)
    train(other, its_optimizer, 0, 55)
    parts = [(other, saved["model"]), (its_optimizer, saved["optimizer"])]
    for each, state in parts if order == "model first" else reversed(parts):
        other.eval()
        other(x)
        each.load_state_dict(state)
        other.train()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", UNKNOWN)  # evaluated before the optimizer's state came
            other.eval()
    assert torch.equal(other(x), expected)
    assert equal(finish(other, its_optimizer, 60), uninterrupted())


def without_optimizer(model):
    return alrao.Alrao(copy.deepcopy(model.collapse()), 5).eval()


def test_the_model_alone_is_what_its_mode_says():
    model, optimizer = build()
    train(model, optimizer, 0, 60)
    in_training = save(model, optimizer)["model"]
    in_evaluation = save(model.eval(), optimizer)["model"]
    x = batch(99)[0]
    plain = without_optimizer(model)
    plain.load_state_dict(in_evaluation)
    assert torch.equal(plain(x), model(x))
    plain.load_state_dict(in_training)
    with pytest.warns(UserWarning, match=UNKNOWN):
        out = plain(x)
    assert not torch.equal(out, model(x))
    assert torch.equal(plain(x), model.train()(x)), "and warned of once"


@pytest.mark.parametrize("by", ["eval", "forward", "collapse"])
@pytest.mark.parametrize("through", ["the model", "a wrapper", "the network"])
def test_training_weights_without_their_averages_are_not_evaluated_in_silence(through, by):
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, 60)
    other = without_optimizer(model)
    if through == "the model":
        other.load_state_dict(model.state_dict())
    elif through == "a wrapper":
        state = torch.nn.ModuleDict({"module": model}).state_dict()
        torch.nn.ModuleDict({"module": other}).load_state_dict(state)
    else:
        other.net.load_state_dict(model.net.state_dict())
    if by == "collapse":
        other.train()
    with pytest.warns(UserWarning, match=UNKNOWN):
        {"eval": other.eval, "forward": lambda: other(batch(0)[0]), "collapse": other.collapse}[by]()


def test_weights_of_the_search_have_an_average_too():
    model, optimizer = build()
    train(model, optimizer, 0, 30)
    other = without_optimizer(model)
    other.load_state_dict(save(model, optimizer)["model"])
    with pytest.warns(UserWarning, match=UNKNOWN):
        out = other(batch(0)[0])
    assert torch.equal(out, model(batch(0)[0]))


def test_a_model_saved_in_training_mode_and_an_optimizer_saved_in_evaluation_mode():
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, 60)
    of_model = copy.deepcopy(model.state_dict())
    saved = {"model": of_model, "optimizer": save(model.eval(), optimizer)["optimizer"]}
    for order in ORDERS:
        other = build(1, norm=True)
        load(*other, saved, order)
        assert equal(finish(*other, 60), uninterrupted())


# Weights without a state.


@pytest.mark.parametrize("by", ["the model", "a wrapper", "the network"])
@pytest.mark.parametrize("mode", ["training", "evaluating"])
@pytest.mark.parametrize("at", [30, 70])
def test_a_restored_best_epoch_is_not_overwritten(at, mode, by):
    model, optimizer = build()
    train(model, optimizer, 0, at - 10)
    best = copy.deepcopy(model.eval().state_dict())
    model.train()
    train(model, optimizer, at - 10, at)
    model.train(mode == "training")
    if by == "the model":
        model.load_state_dict(best)
    elif by == "a wrapper":
        wrapper = torch.nn.ModuleDict({"module": model})
        wrapper.load_state_dict({f"module.{key}": value for key, value in best.items()})
    else:
        model.net.load_state_dict({key.removeprefix("net."): value for key, value in best.items()})
    loaded = weights(model)
    assert equal(loaded, [best[name] for name, _ in model.named_parameters()])
    for training in (True, False, True):
        assert equal(weights(model.train(training)), loaded)
    train(model, optimizer, at, at + 5)
    for p, q in zip(model.parameters(), loaded, strict=True):
        way = (p - q).abs().max()
        assert 0 < way < 1.0, "some steps away: hidden matrices move at every fifth"
    train(model, optimizer, at + 5, at + 30)
    model.eval()
    x, y = batch(99)
    assert F.cross_entropy(model(x), y) < 1.0


def test_weights_set_by_hand_in_evaluation_mode_stay():
    model, optimizer = build()
    train(model, optimizer, 0, 60)
    model.eval()
    with torch.no_grad():
        model.net[0].weight.fill_(0.25)
    model.train()
    assert bool((model.net[0].weight == 0.25).all())
    assert optimizer.state[model.net[0].weight]["k"] == 0
    assert optimizer.state[model.head.weight]["k"] == 10, "the others go on"


@pytest.mark.parametrize("training", [True, False])
def test_a_load_that_fails_changes_nothing(training):
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, 60)
    model.train(training)
    strange = {**build(1, norm=True)[0].state_dict(), "unknown": torch.zeros(1)}
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(strange)
    assert model.head.training_weights == training
    assert equal(finish(model, optimizer, 60), uninterrupted())


def test_a_state_for_other_weights_starts_the_average_again():
    model, optimizer = build()
    train(model, optimizer, 0, 60)
    saved = save(model, optimizer)
    other, its_optimizer = build(1)
    before = weights(other)
    its_optimizer.load_state_dict(saved["optimizer"])
    for training in (False, True):
        assert equal(weights(other.train(training)), before), "the weights may still come"
    assert equal([p.detach() for p in other.collapse().parameters()][:2], before[:2])
    with pytest.warns(UserWarning, match="from the same checkpoint"):
        train(other, its_optimizer, 0, 1)
    for p, q in zip(other.parameters(), before, strict=True):
        assert its_optimizer.state[p]["k"] == 1
        torch.testing.assert_close(p.detach(), its_optimizer.state[p]["z"])
        assert torch.equal(p, q) == ("exp_avg" in its_optimizer.state[p]), "matrices move at every fifth"


def test_a_state_that_was_saved_before_its_weights_came_is_the_same_state():
    model, optimizer = build()
    train(model, optimizer, 0, 60)
    saved = save(model.eval(), optimizer)
    other, its_optimizer = build(1)
    its_optimizer.load_state_dict(saved["optimizer"])
    assert same(save(other, its_optimizer)["optimizer"], saved["optimizer"])


# Other ways to save.


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("at", [30, 60])
def test_torchs_distributed_checkpoints(at, training):
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, at)
    model.train(training)
    states = copy.deepcopy(get_state_dict(model, optimizer))
    other, its_optimizer = build(1, norm=True)
    set_state_dict(other, its_optimizer, model_state_dict=states[0], optim_state_dict=states[1])
    assert equal(finish(other, its_optimizer, at), uninterrupted())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("at", [30, 60])
@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable):UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
def test_torchs_distributed_checkpoints_in_files(at, training, tmp_path):
    """They write into the tensors of a new run's state, and leave out what that does not have."""
    model, optimizer = build(norm=True)
    train(model, optimizer, 0, at)
    expected = weights(model) + weights(model.eval())
    model.train(training)
    if at == 30:  # in the search there is no room for the average, which starts again
        expected = 2 * weights(model)
    dcp.save(dict(zip("mo", get_state_dict(model, optimizer), strict=True)), checkpoint_id=tmp_path)
    other, its_optimizer = build(1, norm=True)
    states = dict(zip("mo", get_state_dict(other, its_optimizer), strict=True))
    dcp.load(states, checkpoint_id=tmp_path)
    set_state_dict(other, its_optimizer, model_state_dict=states["m"], optim_state_dict=states["o"])
    found = weights(other.train()) + weights(other.eval())
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    if training and at != 30:
        assert equal(finish(other, its_optimizer, at), uninterrupted())


@pytest.mark.parametrize("at", [30, 60])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_narrow_and_wide_weights_resume_too(dtype, at):
    model, optimizer = build(dtype=dtype)
    train(model, optimizer, 0, at)
    saved = save(model.eval(), optimizer)
    other = build(1, dtype=dtype)
    load(*other, saved)
    assert equal(finish(*other, at), finish(*build(dtype=dtype), 0))


SCRIPT = """
import os, signal, sys
import torch
sys.path[:0] = sys.argv[3:]
from support.auto_runs import build, train
torch.set_num_threads(1)
path, stop = sys.argv[1], int(sys.argv[2])
model, optimizer = build(norm=True)
start = 0
if os.path.exists(path):
    saved = torch.load(path, weights_only=True)
    optimizer.load_state_dict(saved["optimizer"])
    model.load_state_dict(saved["model"])
    start = saved["step"]
for step in range(start, 75):
    if step == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    model.train()
    train(model, optimizer, step, step + 1)
    model.eval()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
    torch.save(saved, path + ".new")
    os.replace(path + ".new", path)
"""


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    path = tmp_path / "checkpoint.pt"
    (tmp_path / "script.py").write_text(SCRIPT)
    for stop in (31, 58, END):
        command = [sys.executable, tmp_path / "script.py", path, str(stop), *sys.path]
        code = subprocess.run(command, check=False, timeout=100).returncode
        assert code == (0 if stop == END else -9)
    model, optimizer = build(1, norm=True)
    load(model, optimizer, torch.load(path, weights_only=True))
    assert equal(finish(model, optimizer, END), uninterrupted())


def test_the_state_of_another_optimizer_is_refused_with_nothing_changed():
    model, optimizer = build()
    train(model, optimizer, 0, 60)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="another optimizer than Auto"):
        optimizer.load_state_dict(alrao.Adam(model).state_dict())
    with pytest.raises(ValueError, match="not the state of an alrao optimizer"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    assert same(optimizer.state_dict(), before)


def test_a_state_before_the_first_step():
    model, optimizer = build()
    states = save(model, optimizer)
    other = build(1)
    load(*other, states)
    assert equal(finish(*other, 0), finish(model, optimizer, 0))


# States saved before the first step, and at the step at which the search ends.


def resumed(model, optimizer, make):
    """The same run in new objects, through files."""
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    twin, its_optimizer = make()
    of_model, of_optimizer = torch.load(file, weights_only=False)
    twin.load_state_dict(of_model)
    its_optimizer.load_state_dict(of_optimizer)
    return twin, its_optimizer


@pytest.mark.parametrize("frozen", [False, True], ids=["all trained", "a layer frozen across the end"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_run_saved_when_the_search_ends_resumes_to_the_same_bits(dtype, frozen):
    def make():
        return build(dtype=dtype)

    model, optimizer = make()
    train(model, optimizer, 0, 45)
    model.net[0].weight.requires_grad_(not frozen)
    train(model, optimizer, 45, 50)
    assert optimizer.search.over
    twin, its_optimizer = resumed(model, optimizer, make)
    for each, its in ((model, optimizer), (twin, its_optimizer)):
        each.net[0].weight.requires_grad_(True)
        train(each, its, 50, 70)
    assert equal(weights(model), weights(twin))
    assert equal(weights(model.eval()), weights(twin.eval()))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "with copies"])
def test_a_round_trip_before_the_first_step_changes_nothing(plain):
    def make():
        torch.manual_seed(0)
        net = small()
        model = net if plain else alrao.Alrao(net, 5)
        return model, alrao.Auto(model, steps=167)

    one, other = make(), make()
    other[1].load_state_dict(copy.deepcopy(other[1].state_dict()))
    other = resumed(*other, make)
    for each in (one, other):
        train(*each, 0, 60)
    assert equal(weights(one[0]), weights(other[0]))


def test_what_concerns_the_whole_optimizer_is_saved_once():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = alrao.Auto(net, params=[{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    groups = optimizer.state_dict()["param_groups"]
    assert ["auto" in group for group in groups] == [True, False]
    assert groups[0]["auto"].keys() == {"search", "evaluating"}
