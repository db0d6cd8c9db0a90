"""The Alrao model as an ordinary module: what shows through it, its posterior, clipping, odd batches."""

import copy
import inspect
import math
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp, observe, target_for
from torch import nn

import alrao
from alrao.contrib.copy_parallel import CopyParallel

CRITERIA = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}


class Net(nn.Module):
    """With attributes of its own, and a forward with a signature worth keeping."""

    def __init__(self, outputs=3):
        super().__init__()
        self.config = {"labels": ["a", "b", "c"]}
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """The logits."""
        return self.last((self.first(x) * scale).tanh())

    def describe(self):
        return "a small network"


def everything(model):
    """All that a step could change."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {**state, "posterior": model.posterior}


def assert_unchanged(model, before):
    now = everything(model)
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], before[name]) for name in before)


# What shows through.


def test_attributes_of_the_network_are_reachable():
    net = Net()
    model = alrao.Alrao(net, 3)
    assert model.config is net.config
    assert model.describe() == "a small network"
    assert model.first is net.first
    with pytest.raises(AttributeError, match="no_such_thing"):
        model.no_such_thing  # noqa: B018


@pytest.mark.parametrize("how", ["itself", "deepcopy"])
def test_forward_has_the_signature_of_the_network(how):
    net = Net()
    expected = inspect.signature(net.forward)
    model = alrao.Alrao(net, 3)
    model = copy.deepcopy(model) if how == "deepcopy" else model
    assert inspect.signature(model.forward) == expected
    assert list(expected.parameters) == ["x", "scale"]


class Larger(Net):
    pass


CONVERTED = {
    "the model": lambda model: model,
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
    **{
        f"a pickle, protocol {protocol}": lambda model, protocol=protocol: pickle.loads(
            pickle.dumps(model, protocol)
        )
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "inside DataParallel": lambda model: nn.DataParallel(model).module,
    "compiled": lambda model: torch.compile(model, backend="eager")._orig_mod,
    "moved": lambda model: model.double().float(),
}


@pytest.mark.parametrize("way", CONVERTED)
def test_a_program_that_asks_for_the_class_of_its_network_finds_it(way):
    model = CONVERTED[way](alrao.Alrao(Larger(), 3))
    assert isinstance(model, Larger)
    assert isinstance(model, Net)
    assert isinstance(model, alrao.Alrao)
    assert type(model) is alrao.Alrao
    assert str(model).startswith("Alrao(")
    assert model(torch.randn(2, 4)).shape == (2, 3)
    assert not isinstance(model, nn.Linear)
    collapsed = model.collapse()
    assert type(collapsed) is Larger


def test_a_container_whose_items_the_model_does_not_have_is_not_its_class():
    model = alrao.Alrao(mlp(), 3)
    assert not isinstance(model, nn.Sequential)
    assert model.__class__ is alrao.Alrao
    assert not isinstance(alrao.Alrao(nn.Linear(4, 3)), nn.Linear)
    assert alrao.Alrao(nn.Linear(4, 3)).__class__ is alrao.Alrao


def test_a_class_that_a_tool_puts_in_front_is_in_front_of_the_model():
    model = alrao.Alrao(Net(), 3)

    class Before:
        extra = "new"

    model.__class__ = type("BeforeNet", (Before, model.__class__), {"mark": 1})
    assert model.extra == "new"
    assert model.mark == 1
    assert isinstance(model, Before)
    assert isinstance(model, alrao.Alrao)
    assert isinstance(model, Net)
    assert model(torch.randn(2, 4)).shape == (2, 3)


def test_forward_passes_keyword_arguments_on():
    model, x = alrao.Alrao(Net(), 3), torch.randn(5, 4)
    z = (model.first(x) * 2.0).tanh()
    expected = torch.stack(
        [F.linear(z, w, b).softmax(-1) for w, b in zip(*model.head.parameters(), strict=True)]
    )
    torch.testing.assert_close(model(x=x, scale=2.0).exp().as_subclass(torch.Tensor), expected.mean(0))


def test_str_and_summary_show_the_posterior_as_a_bar():
    model = alrao.Alrao(Net(), 4, averaging=alrao.paper.BayesianAverage(4))
    assert re.search(r"posterior: \|(.)\1{3}\|", str(model)), "alike at the start"
    optimizer = alrao.SGD(model, lr=(1e-4, 10.0))
    observe(model, -50.0, -50.0, 0.0, -50.0)
    (bar,) = re.findall(r"posterior: \|(.{4})\|\n", str(model))
    assert alrao.summary(model, optimizer).endswith(f"posterior of the copies: 0.0001 |{bar}| 10")
    assert alrao.summary(model).endswith(f"posterior of the copies: |{bar}|")
    assert bar[2] == "█"
    assert {bar[0], bar[1], bar[3]}.isdisjoint("▂▃▄▅▆▇█")


def test_summary_lists_layers_features_rates_and_parameters():
    model = alrao.Alrao(Net(), 5)
    optimizer = alrao.SGD(model, lr=(1e-3, 1.0))
    lines = [line.split() for line in alrao.summary(model, optimizer).splitlines()]
    rows = {line[0]: line for line in lines}
    first = optimizer.rates(model.first.weight)
    low, high = f"{first.min():.1e}", f"{first.max():.1e}"
    assert rows["first"] == ["first", "Linear", "8", low, "…", high, "40", "40"]
    assert rows["last"] == ["last", "CategoricalHead", "5", "1.0e-03", "…", "1.0e+00", "27", "135"]
    assert rows["total"] == ["total", "13", "67", "175"]


def test_summary_without_an_optimizer_has_no_rates():
    assert "e-0" not in alrao.summary(alrao.Alrao(Net(), 5))
    assert "135" in alrao.summary(alrao.Alrao(Net(), 5))


# The posterior.


def test_posterior_is_a_copy_and_sums_to_1():
    model = alrao.Alrao(mlp(), 4)
    torch.testing.assert_close(model.posterior, torch.full((4,), 0.25))
    observe(model, -1.0, -2.0, -3.0, -0.5)
    before = model.posterior
    assert abs(before.sum().item() - 1) < 1e-12
    assert before.argmax() == 3
    model.posterior.zero_()
    assert torch.equal(model.posterior, before)


@pytest.mark.parametrize("averaging", [alrao.Switch, alrao.paper.BayesianAverage])
def test_reset_posterior_returns_to_the_prior(averaging):
    model, new = alrao.Alrao(mlp(), 4, averaging=averaging(4)), averaging(4)
    observe(model, -1.0, -2.0, -3.0, -0.5)
    model.reset_posterior()
    for average in (model.head.averaging, new):
        average.update(torch.tensor([0.0, -0.1, -0.2, -0.3]))
    torch.testing.assert_close(model.head.averaging.weights, new.weights, rtol=0, atol=0)


# Clipping.


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("max_norm", [1e-3, 0.3, 1e6])
def test_body_and_every_copy_are_clipped_on_their_own(max_norm, norm_type):
    model = alrao.Alrao(mlp(), 4).double()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    for p in model.head.parameters():
        p.grad *= torch.tensor([1e-4, 1.0, 1e4, 0.0]).view([-1] + [1] * (p.ndim - 1))
    body = [p.grad.clone() for p in model.net[0].parameters()]
    copies = [[p.grad[j].clone() for p in model.head.parameters()] for j in range(4)]

    returned = model.clip_grad_norm_(max_norm, norm_type)

    def norm(grads):
        return torch.cat([g.flatten() for g in grads]).norm(norm_type)

    def assert_clipped(now, then):
        scale = min(1.0, max_norm / (norm(then).item() + 1e-6))  # torch's rule
        for a, b in zip(now, then, strict=True):
            torch.testing.assert_close(a, b * scale)

    torch.testing.assert_close(returned, norm(body))
    assert_clipped([p.grad for p in model.net[0].parameters()], body)
    for j in range(4):
        assert_clipped([p.grad[j] for p in model.head.parameters()], copies[j])


@pytest.mark.parametrize("where", ["body", "copy"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_not_finite_are_clipped_to_0(where, value):
    model = alrao.Alrao(mlp(), 4)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    spoilt = model.net[0].weight.grad[2] if where == "body" else model.head.weight.grad[1, 2]
    spoilt[0] = value
    assert model.clip_grad_norm_(1.0).isfinite()
    assert spoilt[0] == 0
    # All norms are below 1: the rest stays.
    assert sum((p.grad != 1e-3).sum().item() for p in model.parameters()) == 1


def test_clipping_without_gradients_and_with_a_bad_norm():
    model = alrao.Alrao(mlp(), 4)
    assert model.clip_grad_norm_(1.0) == 0
    with pytest.raises(ValueError, match=r"max_norm must be positive, got 0\.0"):
        model.clip_grad_norm_(0.0)


# Odd batches.


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_batches_of_size_0_and_1(likelihood, size):
    model = alrao.Alrao(mlp(), 4, likelihood=likelihood)
    optimizer = alrao.SGD(model)
    before = everything(model)
    x = torch.randn(size, 4)
    CRITERIA[likelihood](model(x), target_for(likelihood, x)).backward()
    optimizer.step()
    if size == 0:
        assert_unchanged(model, before)
    else:
        assert model.head.averaging.t == 2
        assert all(value.isfinite().all() for value in everything(model).values())


@pytest.mark.parametrize("averaging", [alrao.Switch, alrao.paper.BayesianAverage])
def test_a_batch_that_is_all_ignored_changes_nothing(averaging):
    model = alrao.Alrao(mlp(), 4, averaging=averaging(4))
    optimizer = alrao.SGD(model)
    before = everything(model)
    F.cross_entropy(model(torch.randn(5, 4)), torch.full((5,), -100)).backward()
    optimizer.step()
    assert_unchanged(model, before)


def test_a_step_without_backward_changes_nothing():
    model = alrao.Alrao(mlp(), 4)
    before = everything(model)
    alrao.SGD(model).step()
    assert_unchanged(model, before)


@pytest.mark.parametrize("target", [3, -1])
def test_targets_out_of_range_raise_and_change_nothing(target):
    model = alrao.Alrao(mlp(), 4)
    optimizer = alrao.SGD(model)
    before = everything(model)
    with pytest.raises(IndexError, match="out of bounds"):
        F.cross_entropy(model(torch.randn(2, 4)), torch.tensor([0, target])).backward()
    optimizer.step()
    assert_unchanged(model, before)


def test_inputs_of_the_wrong_size_raise():
    model = alrao.Alrao(nn.Linear(4, 3), 2)
    with pytest.raises(ValueError, match=r"takes 4 features, got an input of \(2, 5\)"):
        model(torch.randn(2, 5))


def test_a_name_that_moved_to_contrib_still_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"is alrao\.contrib\.copy_parallel\.CopyParallel now"):
        former = alrao.CopyParallel
    assert former is CopyParallel


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_network_with_computed_weights_is_collapsed():
    """The older weight normalisation keeps a weight with its graph in an attribute."""
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))
    model, x = alrao.Alrao(net), torch.randn(5, 4)
    optimizer = alrao.Auto(model)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(5) % 3).backward()
        optimizer.step()
    plain = model.collapse()
    model.eval()
    with torch.no_grad():
        assert torch.equal(plain[0](x), net[0](x))
