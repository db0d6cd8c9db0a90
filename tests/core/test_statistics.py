"""Running statistics after a batch that is not finite are those before it, whatever put them there."""

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_compile
from support.stepping import batches
from torch import nn

import alrao


def used(seed=0):
    """A network whose statistics are those of data."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    for _ in range(5):
        net(3 + 5 * torch.randn(12, 6))
    return net


def train(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y).backward()
        optimizer.step()


WILD = [(torch.full((12, 6), torch.nan), torch.zeros(12, dtype=torch.long))]


def changing(change):
    def changed(model, optimizer):
        change(model)
        return model, optimizer

    return changed


def norm_of(model):
    return getattr(model, "net", model)[1]


def replacing(change):
    """A change that puts other parameters into the model, which need an optimizer of their own."""

    def changed(model, optimizer):
        change(model)
        return model, type(optimizer)(model)

    return changed


CHANGES = {
    "load": changing(lambda model: model.load_state_dict(used(1).state_dict())),
    "load, assigned": replacing(lambda model: model.load_state_dict(used(1).state_dict(), assign=True)),
    "load of a layer": changing(lambda model: norm_of(model).load_state_dict(used(1)[1].state_dict())),
    "load through a module": changing(
        lambda model: nn.ModuleList([model]).load_state_dict(nn.ModuleList([used(1)]).state_dict())
    ),
    "reset": changing(lambda model: norm_of(model).reset_running_stats()),
    "deepcopy": lambda *pair: copy.deepcopy(pair),
    "pickle": lambda *pair: pickle.loads(pickle.dumps(pair)),
    "load into a copy": lambda *pair: CHANGES["load"](*copy.deepcopy(pair)),
    "a device and back": replacing(
        lambda model: model.to("meta").to_empty(device="cpu").load_state_dict(used(1).state_dict())
    ),
}
EDITS = {
    "edit": lambda model: norm_of(model).running_var.mul_(3.0),
    "new tensor": lambda model: setattr(norm_of(model), "running_mean", torch.full((16,), 2.0)),
}


def after_a_wild_batch(model, optimizer):
    """Statistics before, and after a step with a batch that is not finite."""
    layer = norm_of(model)
    before = layer.running_mean.clone(), layer.running_var.clone()
    train(model, optimizer, WILD)
    return before, (layer.running_mean, layer.running_var)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [alrao.SGD, alrao.Auto])
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_first_batch_after_a_change_leaves_the_statistics_as_they_were(change, kind, wrapped):
    model = alrao.Alrao(used()) if wrapped else used()
    optimizer = kind(model)
    train(model, optimizer, batches(3, 6))
    model, optimizer = CHANGES[change](model, optimizer)
    torch.testing.assert_close(*after_a_wild_batch(model, optimizer), rtol=0, atol=0)


@pytest.mark.parametrize("edit", EDITS)
def test_so_does_the_first_batch_after_an_edit_by_hand(edit):
    model = alrao.Alrao(used())
    optimizer = alrao.SGD(model)
    train(model, optimizer, batches(3, 6))
    EDITS[edit](model)
    torch.testing.assert_close(*after_a_wild_batch(model, optimizer), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [alrao.SGD, alrao.Auto])
@pytest.mark.parametrize("wrapped", [True, False])
def test_so_does_the_first_batch_after_a_cast(kind, wrapped):
    model = alrao.Alrao(used()) if wrapped else used()
    model.double()
    torch.testing.assert_close(*after_a_wild_batch(model, kind(model)), rtol=0, atol=0)
    model.float()
    torch.testing.assert_close(*after_a_wild_batch(model, kind(model)), rtol=0, atol=0)


@needs_compile
@pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
)
def test_so_does_the_first_batch_of_a_compiled_model():
    model = alrao.Alrao(used())
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = alrao.SGD(model)
    train(compiled, optimizer, batches(3, 6))
    model.load_state_dict(used(1).state_dict())
    before = norm_of(model).running_var.clone()
    train(compiled, optimizer, WILD)
    assert torch.equal(norm_of(model).running_var, before)


@pytest.mark.parametrize("wrapped", [True, False])
def test_loaded_statistics_that_are_not_finite_become_those_before(wrapped):
    model = alrao.Alrao(used()) if wrapped else used()
    optimizer = alrao.SGD(model)
    state = used(1).state_dict()
    before = norm_of(model).running_mean.clone()
    state["1.running_mean"][3] = torch.nan
    model.load_state_dict(state)
    train(model, optimizer, WILD)
    assert norm_of(model).running_mean[3] == before[3]
    assert torch.equal(norm_of(model).running_mean[4:], state["1.running_mean"][4:])


def test_nothing_is_left_in_the_layers_after_the_optimizer():
    net = used()
    before = [set(vars(module)) for module in net.modules()]
    optimizer = alrao.SGD(net)
    train(net, optimizer, batches(3, 6))
    del optimizer
    gc.collect()
    assert [set(vars(module)) for module in net.modules()] == before
