"""The optimizers on plain networks: no copies, any loss, a rate for every feature."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.stepping import deep_mlp, same
from torch import nn

import alrao
from alrao.contrib.zoom import Zoom

OPTIMIZERS = {
    "SGD": lambda net: alrao.SGD(net, lr=(1e-3, 0.3), momentum=0.9),
    "Adam": lambda net: alrao.Adam(net, lr=(1e-4, 0.1)),
    "AdamW": lambda net: alrao.AdamW(net, lr=(1e-4, 0.1)),
    "Auto": lambda net: alrao.Auto(net, steps=30),
    "NAdam": lambda net: alrao.PerFeature(torch.optim.NAdam, net, lr=(1e-4, 0.1)),
}


@pytest.fixture(params=OPTIMIZERS)
def build(request):
    def build(seed=0):
        torch.manual_seed(seed)
        net = deep_mlp()
        return net, OPTIMIZERS[request.param](net)

    return build


def contrast(net, x):
    """A loss that is no likelihood: pairs of noisy views, each to find the other one."""
    a, b = F.normalize(net(x)), F.normalize(net(x + 0.1 * x.roll(1, 0)))
    return F.cross_entropy(4 * a @ b.T, torch.arange(len(x))) - 0.1 * a.std(0).mean()


def batch(step, dtype=torch.float32):
    return torch.randn(12, 6, generator=torch.Generator().manual_seed(step), dtype=dtype)


def train(net, optimizer, start, stop, loss=contrast):
    losses = []
    for step in range(start, stop):
        optimizer.zero_grad()
        value = loss(net, batch(step, next(net.parameters()).dtype))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def equal(one, other):
    return all(map(torch.equal, one, other))


# Learning, and the same as torch's.


def test_any_loss_decreases(build):
    losses = train(*build(), 0, 60)
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (alrao.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}),
        (alrao.Adam, torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (alrao.AdamW, torch.optim.AdamW, {"lr": 0.01}),
    ],
)
def test_with_one_rate_it_is_torchs_to_the_bit(ours, theirs, options):
    net = deep_mlp()
    twin = copy.deepcopy(net)
    assert train(net, ours(net, **options), 0, 8) == train(
        twin, theirs(twin.parameters(), foreach=False, **options), 0, 8
    )
    assert equal(weights(net), weights(twin))


def test_per_feature_with_one_rate_is_torchs_to_the_bit():
    net = deep_mlp()
    twin = copy.deepcopy(net)
    train(net, alrao.PerFeature(torch.optim.NAdam, net, lr=0.01), 0, 8)
    train(twin, torch.optim.NAdam(twin.parameters(), lr=0.01), 0, 8)
    assert equal(weights(net), weights(twin))


def test_every_feature_has_its_rate():
    """Against one step of plain SGD: the displacement of each row is its rate times the gradient."""
    net = deep_mlp().double()
    optimizer = alrao.SGD(net, lr=(1e-3, 1.0))
    before = weights(net)
    contrast(net, batch(0, torch.float64)).backward()
    optimizer.step()
    rates = [optimizer.rates(p) for p in net.parameters()]
    for p, was, rate in zip(net.parameters(), before, rates, strict=True):
        torch.testing.assert_close(p, was - rate * p.grad)
    assert len(torch.cat([rate.flatten() for rate in rates]).unique()) == 16 + 16 + 3
    assert torch.equal(rates[0][:, 0], rates[1]), "a row and its bias share a rate"


def test_auto_starts_at_a_tiny_rate_and_finds_one_without_copies():
    net = deep_mlp()
    optimizer = alrao.Auto(net)
    assert optimizer.interval() == pytest.approx((6e-6, 6e-6))
    train(net, optimizer, 0, 100)
    low, high = optimizer.interval()
    assert 1e-4 < low == high


# Several modules, named parameters.


def test_several_modules_are_as_one_that_contains_them():
    def parts():
        torch.manual_seed(3)
        return nn.Linear(6, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 3))

    (encoder, decoder), both = parts(), nn.Sequential(*parts())
    torch.manual_seed(0)
    of_parts = alrao.Auto([encoder, decoder])
    torch.manual_seed(0)
    of_both = alrao.Auto(both)
    train(nn.Sequential(encoder, decoder), of_parts, 0, 60)
    train(both, of_both, 0, 60)
    assert equal([*weights(encoder), *weights(decoder)], weights(both))
    encoder.eval()
    assert equal([*weights(encoder), *weights(decoder)], weights(both)), "one is still in training mode"
    decoder.eval()
    assert equal([*weights(encoder), *weights(decoder)], weights(both.eval()))


def test_named_parameters_are_as_the_module_of_linear_layers():
    nets = [copy.deepcopy(net) for net in [deep_mlp()] * 2]
    optimizers = []
    for net, given in zip(nets, [nets[0], nets[1].named_parameters()], strict=True):
        torch.manual_seed(0)
        optimizers.append(alrao.Auto(given))
        train(net, optimizers[-1], 0, 60)
    assert equal(*map(weights, nets))
    nets[1].eval()
    assert equal(*map(weights, nets)), "nothing ties the parameters to a module"
    nets[0].eval()
    optimizers[1].eval()
    assert equal(*map(weights, nets))
    optimizers[1].train()
    assert not equal(*map(weights, nets))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: [("weight", 3)], "take a model.*got tuple"),
        (lambda: [("w", nn.Parameter(torch.zeros(3)))] * 2, "its own name, got 'w' twice"),
        (lambda: nn.ModuleDict({"inner": alrao.Alrao(deep_mlp())}), r"contains the Alrao model 'inner'"),
        (
            lambda: [deep_mlp(), alrao.Alrao(deep_mlp())],
            r"contains the Alrao model '1'.*convert all modules as one",
        ),
        (lambda: nn.LazyLinear(3), "lazy layers"),
    ],
)
def test_what_cannot_be_trained_is_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        alrao.Auto(given())


def test_parameters_of_another_network_are_refused():
    net = deep_mlp()
    with pytest.raises(ValueError, match=r"not the model's.*\[encoder, decoder\]"):
        alrao.Auto(net, params=deep_mlp().parameters())


def test_what_needs_copies_is_refused_with_the_remedy():
    optimizer = alrao.Adam(deep_mlp())
    with pytest.raises(ValueError, match=r"a plain network.*alrao\.Alrao\(net"):
        Zoom(optimizer, steps=10)
    with pytest.raises(ValueError, match=r"no copies.*interval\(\)"):
        optimizer.copy_rates()


# Checkpoints and copies.


def test_a_checkpoint_continues_to_the_same_bits(build):
    net, optimizer = build()
    train(net, optimizer, 0, 20)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    losses = train(net, optimizer, 20, 35)
    for first in ("net", "optimizer"):
        twin, its_optimizer = build(seed=1)
        file.seek(0)
        saved = torch.load(file)
        for part in (first, *({"net", "optimizer"} - {first})):
            (twin if part == "net" else its_optimizer).load_state_dict(saved[part])
        assert train(twin, its_optimizer, 20, 35) == losses
        assert equal(weights(twin), weights(net))
        assert same(its_optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_of_both_continue_alike(build, copied):
    net, optimizer = build()
    train(net, optimizer, 0, 15)
    twin, its_optimizer = copied((net, optimizer))
    assert train(twin, its_optimizer, 15, 25) == train(net, optimizer, 15, 25)
    assert equal(weights(twin.eval()), weights(net.eval()))
