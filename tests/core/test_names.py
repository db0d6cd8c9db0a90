"""A converted network has its own names: parameters, checkpoints and attributes go through the wrapper."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.stepping import same
from torch import nn
from torch.func import functional_call

import alrao


class Net(nn.Module):
    """With a bare parameter, a buffer and a plain attribute of its own."""

    def __init__(self, output=None):
        super().__init__()
        self.token = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.fc = nn.Linear(8, 3) if output is None else output
        self.scale = 1.0

    def forward(self, x, *target):
        z = self.scale * self.body(x + self.token + self.shift).tanh()
        return self.fc(z, *target)


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.b(self.a(x))


def adaptive():
    return Net(nn.AdaptiveLogSoftmaxWithLoss(8, 6, cutoffs=[3], div_value=2.0))


def train(model, optimizer, steps=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


# Names.


def test_the_names_are_those_of_the_network():
    plain, model = Net(), alrao.Alrao(Net(), 3)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert {name for name, _ in model.named_buffers()} == {
        *(name for name, _ in plain.named_buffers()), "fc.averaging._state"
    }  # fmt: skip
    assert list(model.state_dict()) == [*plain.state_dict(), "fc.averaging._state"]
    assert [name for name, _ in model.named_children()] == ["body", "fc"]
    names = [name for name, _ in model.named_modules()]
    assert names == ["", "", "body", "body.0", "body.1", "fc", "fc.averaging"]
    assert set(model.net.modules()) < set(model.modules())
    assert list(model.parameters()) == list(model.net.parameters())
    assert model.get_parameter("body.0.weight") is model.net.body[0].weight
    assert model.get_submodule("fc") is model.head


def test_rates_are_as_before_for_the_parameters_of_the_network_itself():
    model = alrao.Alrao(Net(), 3)
    optimizer = alrao.SGD(model)
    assert optimizer.rates(model.token).shape == (4,)
    train(model, optimizer)
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {id(p) for p in model.parameters()}


def test_a_network_that_changes_how_it_trains_is_respected():
    class Frozen(Net):
        def train(self, mode=True):
            super().train(mode)
            self.body[1].eval()
            return self

    model = alrao.Alrao(Frozen(), 3).train()
    assert model.training
    assert model.net.training
    assert not model.body[1].training
    model.training = False
    assert not model.net.training


# Checkpoints.


@pytest.mark.parametrize("make", [Net, Image, adaptive, lambda: nn.Linear(4, 3)])
def test_the_checkpoint_of_the_network_loads_with_its_output_layer_in_every_copy(make):
    trained, model = make(), alrao.Alrao(make(), 3)
    model.head.averaging.update(torch.tensor([0.0, -1.0, -2.0]))
    model.load_state_dict(trained.state_dict())
    assert torch.equal(model.posterior, torch.full((3,), 1 / 3))
    for copy_of in range(3):
        layer = model.head.layer(copy_of)
        expected = trained if isinstance(trained, nn.Linear) else getattr(trained, model.output_name)
        assert same(dict(layer.state_dict()), dict(expected.state_dict()))
    assert same(dict(model.collapse().state_dict()), dict(trained.state_dict()))
    holder, of_plain = nn.ModuleDict({"model": model}), nn.ModuleDict({"model": make()})
    holder.load_state_dict(of_plain.state_dict())
    assert same(dict(model.collapse().state_dict()), dict(of_plain["model"].state_dict()))


def test_a_checkpoint_with_another_output_layer_is_refused():
    model = alrao.Alrao(Net(), 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for fc"):
        model.load_state_dict(Net(nn.Linear(8, 5)).state_dict())
    incomplete = {key: value for key, value in Net().state_dict().items() if key != "token"}
    with pytest.raises(RuntimeError, match=r"Missing key.*token"):
        model.load_state_dict(incomplete)
    assert same(dict(before), dict(model.state_dict()))


def test_a_network_with_a_child_called_net():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x):
            return self.net(x)

    model = alrao.Alrao(Outer(), 2)
    assert set(model.state_dict()) == {"net.weight", "net.bias", "net.averaging._state"}
    model.load_state_dict(Outer().state_dict())
    model.load_state_dict(model.state_dict())


def test_hooks_and_overrides_of_the_network_are_called():
    seen = []

    class Extra(Net):
        def get_extra_state(self):
            return torch.tensor(7)

        def set_extra_state(self, state):
            seen.append(state)

    net = Extra()
    net.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    net.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    model = alrao.Alrao(net, 2)
    state = model.state_dict()
    assert seen == ["saved"]
    model.load_state_dict(state)
    assert torch.tensor(7) in seen
    assert "loaded" in seen


# Attributes.


def test_attributes_reach_the_network():
    model = alrao.Alrao(Net(), 2)
    x = torch.randn(6, 4)
    before = model(x)
    model.scale = 5.0
    assert model.net.scale == 5.0
    assert not torch.equal(model(x), before)
    model.body = nn.Sequential(nn.Linear(4, 8))
    assert model.net.body is model.body
    assert "body.0.weight" in dict(model.named_parameters())
    model.token = nn.Parameter(torch.zeros(4))
    assert not model.net.token.any()
    model.shift = torch.ones(4)
    assert model.net.shift.sum() == 4
    assert "shift" in model.state_dict()
    model.fresh, model._private = 1, 2
    assert model.net.fresh == 1
    assert not hasattr(model.net, "_private")
    del model.fresh, model._private
    assert not hasattr(model, "fresh")
    assert not hasattr(model, "_private")


@pytest.mark.parametrize("name", ["fc", "head"])
def test_the_output_layer_cannot_be_replaced_silently(name):
    model = alrao.Alrao(Net(), 2)
    with pytest.raises(AttributeError, match="before"):
        setattr(model, name, nn.Linear(8, 3))
    assert model.net.fc is model.head


# What other tools do with a module.


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_share_their_names_too(twin_of):
    model = alrao.Alrao(Net(), 2)
    optimizer = alrao.SGD(model)
    twin, its_optimizer = twin_of((model, optimizer))
    assert twin._modules is twin.net._modules
    assert twin.head is twin.net.fc
    assert twin.token is twin.net.token
    train(model, optimizer)
    train(twin, its_optimizer)
    assert same(dict(twin.state_dict()), dict(model.state_dict()))


def test_functions_are_applied_once():
    model = alrao.Alrao(Net(), 2)
    seen = []
    assert model.apply(seen.append) is model
    assert len(seen) == len(set(seen)) == len(list(model.net.modules()))
    assert model.double() is model
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.shift.dtype == torch.float64


def test_a_functional_call_by_names():
    model = alrao.Alrao(Net(), 2).eval()
    x = torch.randn(6, 4)
    values = {name: value + 1 for name, value in {**dict(model.named_parameters())}.items()}
    out = functional_call(model, values, (x,))
    model.load_state_dict({**model.state_dict(), **values})
    torch.testing.assert_close(out, model(x))


def test_statistics_of_a_bad_batch_are_not_saved():
    model = alrao.Alrao(Net(), 2)
    train(model, alrao.SGD(model), 1)
    model(torch.full((8, 4), torch.nan))
    assert model.net.body[1].running_mean.isnan().any()
    assert all(value.isfinite().all() for value in model.state_dict().values())
    for make in (lambda m: m.collapse(), copy.deepcopy):
        model(torch.full((8, 4), torch.nan))
        assert all(value.isfinite().all() for value in make(model).state_dict().values())


class Versioned(nn.Module):
    """A network that translates its older checkpoints, as torchvision's MNASNet does."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.versions = []

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        self.versions.append(local_metadata.get("version"))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_a_checkpoint_has_the_version_of_the_network():
    model = alrao.Alrao(Versioned(), 2)
    model.load_state_dict(model.state_dict())
    assert model.net.versions == [2]
