"""Nothing non-finite gets out, whatever the rates, the gradients or the batch."""

import copy
from functools import cache, partial
from math import inf, log, nan
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from support.stepping import batches, deep_mlp, make, same
from torch import nn

import alrao

SEEDS = range(10)


def digits_mlp(activation, *, norm=False):
    layers = []
    for inputs, outputs in [(64, 128), (128, 128)]:
        layers += [nn.Linear(inputs, outputs), *[nn.BatchNorm1d(outputs)] * norm, activation()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def digits_cnn(*, norm=False):
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1), *[nn.BatchNorm2d(8)] * norm, nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), *[nn.BatchNorm2d(16)] * norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


NETS = {
    "relu": lambda: digits_mlp(nn.ReLU),
    "tanh": lambda: digits_mlp(nn.Tanh),
    "relu with batchnorm": lambda: digits_mlp(nn.ReLU, norm=True),
    "cnn": digits_cnn,
    "cnn with batchnorm": lambda: digits_cnn(norm=True),
}


@cache
def digits():
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def not_finite(model, optimizer):
    """What is not finite: in the body, its running statistics, its optimizer's state, the posterior."""
    head = f"{model.output_name}."
    tensors = {name: value for name, value in model.state_dict().items() if not name.startswith(head)}
    tensors["posterior"] = model.posterior
    for p in model.body_parameters():
        tensors |= {f"{key} of {tuple(p.shape)}": value for key, value in optimizer.state[p].items()}
    return [name for name, value in tensors.items() if not bool(torch.as_tensor(value).isfinite().all())]


def run(net, seed, steps, lr, optimizer=alrao.SGD, **options):
    """Train on the digits, checking at every step; the losses."""
    torch.manual_seed(seed)
    x, y = digits()
    model = alrao.Alrao(NETS[net]())
    chosen = optimizer(model, lr=lr, **options)
    losses = []
    for step in range(steps):
        rows = torch.randint(len(x), (32,))
        dead = torch.stack([~p.isfinite().flatten(1).all(1) for p in model.head.parameters()]).any(0)
        chosen.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        chosen.step()
        losses.append(loss.item())
        assert abs(losses[-1]) < inf, f"the loss at step {step}"
        assert bool((model.posterior[dead] == 0).all()), f"a dead copy has weight after step {step}"
        if step % 20 == 0 or step == steps - 1:
            assert not_finite(model, chosen) == []
    assert model.posterior.sum().item() == pytest.approx(1)
    model.eval()
    with torch.no_grad():
        assert bool(model(x[:100]).isfinite().all())
    return losses


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("net", NETS)
def test_rates_up_to_ten_thousand_leave_everything_finite(net, seed):
    losses = run(net, seed, 40, (1e-5, 1e4))
    assert len(losses) == 40


LEARNS = [("relu", 1e2), ("tanh", 1e2), ("relu with batchnorm", 1e4), ("cnn with batchnorm", 1e4)]


def median_loss(net, highest, seeds):
    """At the end of training. Single runs are chaotic: another processor's rounding gives another loss."""
    return median(sum(run(net, seed, 400, (1e-5, highest))[-50:]) / 50 for seed in seeds)


@pytest.mark.parametrize(("net", "highest"), LEARNS[::2])
def test_it_also_learns(net, highest):
    assert median_loss(net, highest, SEEDS[:3]) < 0.5 * log(10)  # half of what guessing costs


@pytest.mark.slow
@pytest.mark.parametrize(("net", "highest"), LEARNS)
def test_it_also_learns_from_most_seeds(net, highest):
    assert median_loss(net, highest, SEEDS) < 0.3 * log(10)


@pytest.mark.parametrize("net", ["relu", "cnn with batchnorm"])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (alrao.SGD, {"momentum": 0.9}),
        (alrao.SGD, {"weight_decay": 0.01}),
        (alrao.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (alrao.Adam, {"weight_decay": 0.1}),
        (alrao.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_momentum_and_decay_at_such_rates_leave_everything_finite(optimizer, options, net):
    losses = run(net, 0, 80, (1e-5, 1e4), optimizer, **options)
    assert len(losses) == 80


# Single copies, gradients and batches that are not finite.


@pytest.mark.parametrize("value", [nan, inf, -inf, 1e38])
def test_a_wrecked_copy_is_out_and_the_others_go_on(value):
    model, optimizer = make()
    model.head.weight.data[2] = value
    model.head.bias.data[2] = value
    for x, y in batches(3, 6):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        assert bool(loss.isfinite())
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
        if value != 1e38:
            assert bool((model.head.weight.grad[2] == 0).all())
        optimizer.step()
        assert not_finite(model, optimizer) == []
        assert bool(model.head.weight[[0, 1, 3]].isfinite().all())
    if value != 1e38:
        assert model.posterior[2] == 0
    assert model.posterior.sum().item() == pytest.approx(1)


BAD = [nan, inf, -inf, 3e38]


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(alrao.SGD, {}), (alrao.SGD, {"momentum": 0.9}), (alrao.Adam, {"amsgrad": True}), (alrao.AdamW, {})],
)
@pytest.mark.filterwarnings("ignore:the copies of the head have gradients")  # set by hand
def test_a_gradient_that_is_not_finite_enters_nothing(optimizer, options, bad, foreach):
    model, chosen = make(optimizer, lr=(1e-3, 1e-1), foreach=foreach, **options)
    weight = model.net[0].weight
    for step in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        if step == 1:
            weight.grad[3, 2] = bad
        before = weight.detach().clone()
        chosen.step()
        assert not_finite(model, chosen) == []
        moved = weight != before
        moved[3, 2] = True
        assert bool(moved.all()), "the gradient's other entries count"


@pytest.mark.parametrize("bad", BAD)
def test_a_hook_that_ruins_the_gradient_of_the_body(bad):
    model, optimizer = make(momentum=0.9)
    model.net[2].weight.register_hook(lambda grad: torch.full_like(grad, bad))
    before = model.net[2].weight.detach().clone()
    for x, y in batches(3, 6):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert not_finite(model, optimizer) == []
    assert torch.equal(model.net[2].weight, before)


@pytest.mark.parametrize("bad", BAD)
def test_a_sparse_gradient_that_is_not_finite_enters_nothing(bad):
    model = alrao.Alrao(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3)))
    optimizer = alrao.SGD(model)
    model.net[0].weight.register_hook(lambda grad: grad * bad)
    F.cross_entropy(model(torch.randint(9, (5, 2))), torch.randint(3, (5,))).backward()
    optimizer.step()
    assert not_finite(model, optimizer) == []


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("size", [1e10, 1e18, 1e25, 1e37, 3e38, inf])
def test_an_absurd_feature_does_not_kill_every_copy(size, classes):
    body = nn.Linear(6, 16)
    model = alrao.Alrao(nn.Sequential(body, nn.Linear(16, classes)))
    body.bias.data[5] = size
    optimizer = alrao.SGD(model)
    for x, y in batches(4, 6, classes=classes):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        assert bool(loss.isfinite())
    alive = torch.stack([p.isfinite().flatten(1).all(1) for p in model.head.parameters()]).all(0)
    assert bool((alive & (model.posterior > 0)).any())


@pytest.mark.parametrize("mend", ["step", "eval"])
@pytest.mark.parametrize("bad", [nan, inf])
def test_a_batch_that_is_not_finite_leaves_the_statistics_as_they_were(mend, bad):
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model = alrao.Alrao(net)
    optimizer = alrao.SGD(model)
    for x, y in batches(3, 6):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    mean, variance = net[1].running_mean.clone(), net[1].running_var.clone()
    wild = torch.randn(12, 6)
    wild[4] = bad
    optimizer.zero_grad()
    loss = F.cross_entropy(model(wild), torch.randint(3, (12,)))
    assert bool(loss.isfinite())
    assert not bool(net[1].running_mean.isfinite().all()), "or the batch is not wild at all"
    if mend == "step":
        loss.backward()
        optimizer.step()
    else:
        model.eval()
    assert torch.equal(net[1].running_mean, mean)
    assert torch.equal(net[1].running_var, variance)
    assert not_finite(model, optimizer) == []


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_batch_that_is_not_finite_without_batchnorm(bad):
    model = alrao.Alrao(deep_mlp())
    optimizer = alrao.SGD(model)
    wild = torch.randn(12, 6)
    wild[4] = bad
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(wild), torch.randint(3, (12,)))
        loss.backward()
        optimizer.step()
        assert bool(loss.isfinite())
        assert not_finite(model, optimizer) == []


# One nan, after which torch's clipping makes every gradient nan.

EVERY = {
    "SGD": alrao.SGD,
    "SGD with momentum": partial(alrao.SGD, momentum=0.9, weight_decay=0.01),
    "Adam": alrao.Adam,
    "AdamW": alrao.AdamW,
    "Auto": alrao.Auto,
    "PerFeature": partial(alrao.PerFeature, torch.optim.NAdam),
}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("apart", [False, True], ids=["one group", "the head in its own group"])
@pytest.mark.parametrize("name", EVERY)
def test_one_nan_in_a_batch_and_torchs_clipping_change_no_weight(name, apart, capturable):
    model = alrao.Alrao(deep_mlp())
    groups = [{"params": list(model.body_parameters())}, {"params": list(model.head.parameters())}]
    optimizer = EVERY[name](model, params=groups if apart else None, capturable=capturable)
    for step, (x, y) in enumerate(batches(6, 6)):
        if step == 3:
            x[4, 2] = nan
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        weights = [p.detach().clone() for p in model.parameters()]
        states = [copy.deepcopy(optimizer.state[p]) for p in model.parameters()]
        optimizer.step()
        stays = [torch.equal(p, was) for p, was in zip(model.parameters(), weights, strict=True)]
        assert all(stays) if step == 3 else not any(stays)
        if step == 3:
            assert all(bool(p.grad.isnan().all()) for p in model.parameters()), "or torch clips differently"
            for p, was in zip(model.parameters(), states, strict=True):
                counted: set[str] = set()
                for key in was.keys() - counted:
                    assert same(optimizer.state[p][key], was[key]), key
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert all(bool(p.isfinite().all()) for p in model.collapse().parameters())
