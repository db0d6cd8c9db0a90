"""The copies of the output layer: how they start, and how they become a plain layer again."""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp, observe, target_for
from torch import nn

import alrao

CRITERIA = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}


# How they start.


def test_fresh_copies_differ_and_keep_the_scheme():
    net = nn.Sequential(nn.Linear(4, 200), nn.Linear(200, 100))
    nn.init.normal_(net[1].weight, 0, 0.01)
    nn.init.zeros_(net[1].bias)
    weight = alrao.Alrao(net, 4).head.weight.detach().flatten(1)
    assert torch.equal(net[1].bias, torch.zeros(4, 100))
    torch.testing.assert_close(weight.std(1), torch.full((4,), 0.01), rtol=0.03, atol=0)
    assert weight.mean(1).abs().max() < 4 * 0.01 / weight.shape[1] ** 0.5
    # Independent: correlations between copies are of the order of one over the root of the number of entries.
    between = torch.corrcoef(weight) - torch.eye(4)
    assert between.abs().max() < 4 / weight.shape[1] ** 0.5


def test_the_scheme_may_be_anything():
    net = mlp(50)
    nn.init.uniform_(net[2].weight, 3.0, 4.0)
    weight = alrao.Alrao(net, 5).head.weight.detach()
    assert 3.0 <= weight.min() < 3.1
    assert 3.9 < weight.max() <= 4.0
    assert len({tuple(copy.flatten().tolist()) for copy in weight}) == 5


def test_keep_output_starts_every_copy_from_the_trained_layer():
    net = mlp()
    trained, x = net[2], torch.randn(5, 4)
    expected = F.log_softmax(net(x), -1)
    model = alrao.Alrao(net, 4, keep_output=True)
    assert all(torch.equal(copy, trained.weight) for copy in model.head.weight)
    assert all(torch.equal(copy, trained.bias) for copy in model.head.bias)
    torch.testing.assert_close(model(x).as_subclass(torch.Tensor), expected)


def test_the_other_modules_are_used_as_they_are():
    net = nn.Sequential(nn.Embedding(7, 5), nn.GRU(5, 6), nn.Linear(6, 7))
    modules = {name: module for name, module in net.named_modules() if name != "2"}
    parameters = {name: p for name, p in net.named_parameters() if not name.startswith("2.")}
    alrao.Alrao(net)
    assert all(net.get_submodule(name) is module for name, module in modules.items())
    assert all(net.get_parameter(name) is p for name, p in parameters.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_copies_have_the_type_of_the_layer_and_the_posterior_a_wide_one(dtype):
    model = alrao.Alrao(mlp().to(dtype), 4)
    assert model.head.weight.dtype == model.head.bias.dtype == dtype
    assert model.posterior.dtype == torch.promote_types(dtype, torch.float32)
    assert model.to(torch.bfloat16).posterior.dtype == torch.float32


# Collapsing.


def trained(likelihood, net=None, steps=5):
    model = alrao.Alrao(net or mlp(), 4, likelihood=likelihood)
    optimizer = alrao.SGD(model, lr=(1e-3, 1.0))
    for _ in range(steps):
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        CRITERIA[likelihood](model(x), target_for(likelihood, x)).backward()
        optimizer.step()
    observe(model, -1.0, 0.5, -0.3, 0.0)
    return model.eval()


@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_collapse_to_the_winner(likelihood):
    model, x = trained(likelihood), torch.randn(6, 4)
    winner = int(model.posterior.argmax())
    plain = model.collapse()
    expected = F.linear(model.net[:2](x), model.head.weight[winner], model.head.bias[winner])
    torch.testing.assert_close(plain(x), expected)
    assert [type(module) for module in plain.modules()] == [nn.Sequential, nn.Linear, nn.Tanh, nn.Linear]
    assert type(plain(x)) is torch.Tensor


@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_collapse_to_the_mixture(likelihood):
    model, x = trained(likelihood), torch.randn(6, 4)
    out = model.collapse(mixture=True)(x)
    assert type(out) is torch.Tensor
    torch.testing.assert_close(out, model(x).as_subclass(torch.Tensor))
    # And by hand, since both of these are ours.
    z, a = model.net[:2](x).double(), model.posterior.double()
    each = torch.stack([z @ w.double().T + b.double() for w, b in zip(*model.head.parameters(), strict=True)])
    if likelihood == "categorical":
        expected = torch.einsum("c,cnk->nk", a, each.softmax(-1)).log()
    elif likelihood == "gaussian":
        expected = torch.einsum("c,cnk->nk", a, each)
    else:
        expected = torch.einsum("c,cnk->nk", a, each.sigmoid()).logit()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mixture", [False, True])
def test_collapse_of_a_segmentation_network(mixture):
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    model, x = alrao.Alrao(net, 4), torch.randn(2, 2, 5, 6)
    observe(model, -1.0, 0.5, -0.3, 0.0)
    out = model.collapse(mixture=mixture)(x)
    assert out.shape == (2, 3, 5, 6)
    if mixture:
        torch.testing.assert_close(out, model(x).as_subclass(torch.Tensor))
    else:
        expected = F.conv2d(net[:2](x), model.head.weight[1][..., None, None], model.head.bias[1])
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("mixture", [False, True])
def test_collapse_leaves_out_a_dead_copy(mixture):
    model, x = trained("categorical"), torch.randn(6, 4)
    observe(model, -0.1, -math.inf, -0.2, -0.3)
    with torch.no_grad():
        model.head.weight[1] = math.nan
    out = model.collapse(mixture=mixture)(x)
    assert out.isfinite().all()
    if mixture:
        torch.testing.assert_close(out, model(x).as_subclass(torch.Tensor))


@pytest.mark.parametrize("mixture", [False, True])
def test_collapse_is_independent(mixture):
    model, x = trained("categorical"), torch.randn(6, 4)
    plain = model.collapse(mixture=mixture)
    before, expected = copy.deepcopy(model.state_dict()), plain(x)
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    plain = model.collapse(mixture=mixture)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    torch.testing.assert_close(plain(x), expected)
    assert not plain.training


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_collapse_exports(likelihood, mixture):
    model, x = trained(likelihood), torch.randn(6, 4)
    plain = model.collapse(mixture=mixture)
    exported = torch.export.export(plain, (x,)).module()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.trace(_method)?` is deprecated")
        traced = torch.jit.trace(plain, (x,))
    torch.testing.assert_close(exported(x), plain(x))
    torch.testing.assert_close(traced(x), plain(x))
