"""What every optimizer, likelihood and averaging method must do. A new one joins by a line in a table."""

import copy
import io
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from support.stepping import same, snapshot
from torch import nn

import alrao

OPTIMIZERS = {
    "SGD": lambda model: alrao.SGD(model, lr=(1e-3, 1.0)),
    "SGD with momentum": lambda model: alrao.SGD(model, lr=(1e-4, 0.1), momentum=0.9, weight_decay=1e-3),
    "Adam": lambda model: alrao.Adam(model, lr=(1e-4, 0.1)),
    "Adam on sums": lambda model: alrao.Adam(model, lr=(1e-4, 0.1), evidence="sum"),
    "AdamW": lambda model: alrao.AdamW(model, lr=(1e-4, 0.1)),
    "Auto": lambda model: alrao.Auto(model, steps=3),  # copies are alike in its search, of one step here
    "PerFeature NAdam": lambda model: alrao.PerFeature(torch.optim.NAdam, model, lr=(1e-4, 0.1)),
    "PerFeature Adafactor": lambda model: alrao.PerFeature(torch.optim.Adafactor, model, lr=(1e-4, 0.1)),
}

AVERAGING = {
    "Switch": alrao.Switch,
    "BayesianAverage": alrao.paper.BayesianAverage,
}


class Likelihood(NamedTuple):
    """What differs between the kinds of output: the last layer, the targets, the loss."""

    output: Callable[[], nn.Module]
    targets: Callable[[torch.Tensor], torch.Tensor]
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    name: str | None = None


def adaptive_softmax():
    return nn.AdaptiveLogSoftmaxWithLoss(8, 6, cutoffs=[3], div_value=2.0)


LIKELIHOODS = {
    "categorical": Likelihood(
        output=lambda: nn.Linear(8, 3),
        targets=lambda x: x[:, :3].argmax(1),
        loss=lambda model, x, y: F.cross_entropy(model(x), y),
    ),
    "gaussian": Likelihood(
        output=lambda: nn.Linear(8, 2),
        targets=lambda x: x[:, :2].sin() + x[:, 2:],
        loss=lambda model, x, y: alrao.MixtureMSELoss()(model(x), y),
        name="gaussian",
    ),
    "bernoulli": Likelihood(
        output=lambda: nn.Linear(8, 2),
        targets=lambda x: (x[:, :2] > x[:, 2:]).to(x.dtype),
        loss=lambda model, x, y: alrao.MixtureBCELoss()(model(x), y),
        name="bernoulli",
    ),
    "adaptive": Likelihood(
        output=adaptive_softmax,
        targets=lambda x: x[:, :3].argmax(1) + 3 * (x[:, 3] > 0.5),
        loss=lambda model, x, y: model(x, y).loss,
    ),
}


class Net(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.output = output

    def forward(self, x, *target):
        return self.output(self.hidden(x).tanh(), *target)


class Setup(NamedTuple):
    """One combination: how to build it, and its data."""

    likelihood: Likelihood
    build: Callable[..., tuple[alrao.Alrao, torch.optim.Optimizer]]
    x: torch.Tensor
    y: torch.Tensor

    def train(self, model, optimizer, steps):
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self.likelihood.loss(model, self.x, self.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


@pytest.fixture(params=AVERAGING)
def averaging(request):
    return AVERAGING[request.param]


@pytest.fixture(params=LIKELIHOODS)
def likelihood(request):
    return LIKELIHOODS[request.param]


@pytest.fixture(params=OPTIMIZERS)
def setup(request, likelihood, averaging):
    def build(seed=0, dtype=torch.float32):
        torch.manual_seed(seed)
        net = Net(likelihood.output()).to(dtype)
        model = alrao.Alrao(net, 4, likelihood=likelihood.name, averaging=averaging(4))
        return model, OPTIMIZERS[request.param](model)

    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(8))
    return Setup(likelihood, build, x, likelihood.targets(x))


def test_the_loss_decreases(setup):
    losses = setup.train(*setup.build(), 200)
    assert losses[-1] < 0.85 * losses[0]


def test_the_posterior_is_a_probability_and_moves(setup):
    model, optimizer = setup.build()
    assert torch.equal(model.posterior, torch.full((4,), 0.25, dtype=torch.float64))
    setup.train(model, optimizer, 10)
    assert model.head.averaging.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert bool((model.posterior >= 0).all())
    assert (model.posterior - 0.25).abs().max() > 1e-3


def test_two_runs_are_the_same(setup):
    runs = [setup.build(), setup.build()]
    losses = [setup.train(*run, 6) for run in runs]
    assert losses[0] == losses[1]
    assert same(snapshot(*runs[0]), snapshot(*runs[1]))


def test_a_checkpoint_continues_to_the_same_bits(setup):
    model, optimizer = setup.build()
    setup.train(model, optimizer, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    setup.train(model, optimizer, 4)

    again, its_optimizer = setup.build(seed=1)  # other weights, other rates
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    setup.train(again, its_optimizer, 4)
    assert same(snapshot(again, its_optimizer), snapshot(model, optimizer))


def test_a_deepcopy_continues_to_the_same_bits(setup):
    model, optimizer = setup.build()
    setup.train(model, optimizer, 4)
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    at_copy = snapshot(twin, its_optimizer)
    setup.train(model, optimizer, 4)
    assert same(snapshot(twin, its_optimizer), at_copy), "the twin is independent"
    setup.train(twin, its_optimizer, 4)
    assert same(snapshot(twin, its_optimizer), snapshot(model, optimizer))


@pytest.mark.parametrize("of", ["optimizer", "model"])
def test_zero_grad_clears_the_evidence(setup, of):
    model, optimizer = setup.build()
    setup.train(model, optimizer, 2)
    before = copy.deepcopy(dict(model.state_dict()))
    setup.likelihood.loss(model, setup.x, setup.y).backward()
    assert bool((model.head.evidence.grad != 0).any())
    (optimizer if of == "optimizer" else model).zero_grad()
    optimizer.step()
    assert same(dict(model.state_dict()), before), "nothing was left to learn from"


def test_a_schedule_at_zero_holds_the_parameters_still(setup):
    model, optimizer = setup.build()
    setup.train(model, optimizer, 2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = copy.deepcopy(dict(model.named_parameters()))
    posterior = model.posterior
    setup.train(model, optimizer, 2)
    scheduler.step()
    assert same(dict(model.named_parameters()), before)
    assert not torch.equal(model.posterior, posterior), "what is seen still counts as evidence"


def test_a_schedule_is_a_common_factor_on_all_rates(setup):
    model, optimizer = setup.build()
    setup.train(model, optimizer, 1)
    factors = []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = [optimizer.rates(p) for p in model.parameters()]
    for _ in range(3):
        factors.append(optimizer.param_groups[0]["lr"])
        setup.train(model, optimizer, 1)
        scheduler.step()
    assert factors == [1.0, 0.5, 0.25]
    assert all(map(torch.equal, rates, [optimizer.rates(p) for p in model.parameters()]))


def test_two_half_batches_are_the_whole_batch(setup):
    whole, whole_optimizer = setup.build(dtype=torch.float64)
    halves, halves_optimizer = setup.build(dtype=torch.float64)
    x = setup.x.double()
    y = setup.likelihood.targets(x)
    for _ in range(4):
        whole_optimizer.zero_grad()
        setup.likelihood.loss(whole, x, y).backward()
        whole_optimizer.step()
        halves_optimizer.zero_grad()
        for part in (slice(0, 12), slice(12, 24)):
            (setup.likelihood.loss(halves, x[part], y[part]) / 2).backward()
        halves_optimizer.step()
    for p, q in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(whole.posterior, halves.posterior, rtol=1e-6, atol=1e-8)


def test_collapse_gives_a_plain_independent_network(setup):
    model, optimizer = setup.build()
    setup.train(model, optimizer, 3)
    plain = model.collapse()
    fresh = Net(setup.likelihood.output())
    assert type(plain) is Net
    assert type(plain.output) is type(fresh.output)
    assert [p.shape for p in plain.parameters()] == [p.shape for p in fresh.parameters()]
    needs_target = isinstance(fresh.output, nn.AdaptiveLogSoftmaxWithLoss)
    before = plain(setup.x, setup.y).loss if needs_target else plain(setup.x)
    setup.train(model, optimizer, 1)
    after = plain(setup.x, setup.y).loss if needs_target else plain(setup.x)
    assert bool(before.isfinite().all())
    assert torch.equal(before, after), "training goes on without it"
