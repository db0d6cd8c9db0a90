"""Where Auto takes its gradients, against the definition written out with x, y and z."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import alrao
from alrao.optim.body import Shards
from alrao.optim.gradient_point import GradientPoint, PointOnDevice

SEARCH = 3
"""Steps of the search of a training of 10 steps."""


def layer():
    torch.manual_seed(1)
    net = nn.Linear(40, 100).double()
    nn.init.zeros_(net.weight)
    return net


def loss_of(net, step):
    """A slope, on which the average lags; from step 20 on slopes that swing; then a minimum, with noise."""
    if step < 20:
        return -2 * sum(p.sum() for p in net.parameters())
    if step < 50:
        return (-1) ** step * sum(p.sum() for p in net.parameters())
    noise = torch.Generator().manual_seed(step)
    parts = [p - 0.05 + torch.randn(p.shape, generator=noise, dtype=p.dtype) for p in net.parameters()]
    return sum(each.square().sum() for each in parts)


def train(net, optimizer, begin, end):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()


class Literal:
    """The averaging phase with x, y and z as separate tensors, and numbers that are read at each step."""

    def __init__(self, net, optimizer):
        self.net, self.rates = copy.deepcopy(net), [optimizer.rates(p).clone() for p in net.parameters()]
        self.y = list(self.net.parameters())
        self.v = [optimizer.state[p]["v"].clone() for p in net.parameters()]
        self.z, self.x = ([p.detach().clone() for p in self.y] for _ in range(2))
        self.part, self.slopes, self.mean, self.size, self.k = 1.0, [], 0.0, 0.0, 0
        self.share, self.likeness, self.compared, self.last = 1.0, 0.0, 0, None
        self.parts, self.shares = [], []

    def y_now(self):
        return [p.detach() for p in self.y]

    def step(self, step):
        grads = torch.autograd.grad(loss_of(self.net, step), self.y)
        slope = sum(float((g * (z - y)).sum()) for g, z, y in zip(grads, self.z, self.y_now(), strict=True))
        self.k += 1
        beta, c = 1 - self.share * (1 - 0.7 * self.part), self.k**2 / sum(i**2 for i in range(1, self.k + 1))
        now = []
        for i, g in enumerate(grads):
            self.v[i] = 0.99 * self.v[i] + 0.01 * g**2
            unbiased = self.v[i] / (1 - 0.99 ** (SEARCH + self.k))
            delta = self.rates[i] * g / (unbiased.sqrt() + 1e-8)
            now += [float(feature.sum()) for feature in delta if g.ndim > 1]
            self.z[i] = self.z[i] - delta
            self.x[i] = self.x[i] + c * (self.z[i] - self.x[i])
            self.y[i].data = (1 - beta) * self.z[i] + beta * self.x[i]
        if (self.k - 1) % 4 == 0:
            self.slopes.append(slope)
            n = min(len(self.slopes), 10)
            self.mean += (slope - self.mean) / n
            self.size += (abs(slope) - self.size) / n
            steady = self.mean / self.size if self.size else 0.0
            self.part = min(max(self.part + 0.2 * steady, 0.15), 1.0)
        if (self.k - 1) % 4 == 1:
            self.compared += 1
            cosine = float(np.dot(now, self.last) / (np.linalg.norm(now) * np.linalg.norm(self.last)))
            self.likeness += (cosine - self.likeness) / min(self.compared, 5)
            self.share = min(max(self.share * np.exp(self.likeness + 0.3), 0.1), 1.0)
        self.last = now
        self.parts.append(self.part)
        self.shares.append(self.share)


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}], ids=str)
def test_weights_are_those_of_the_definition(options):
    net = layer()
    optimizer = alrao.Auto(net, steps=10, **options)
    train(net, optimizer, 0, SEARCH)
    literal = Literal(net, optimizer)
    for step in range(SEARCH, 110):
        train(net, optimizer, step, step + 1)
        literal.step(step)
    assert min(literal.parts[:20]) < 0.5, "the average lagged"
    assert min(literal.shares[:60]) < 0.5 < literal.shares[-1], "weights swung"
    torch.testing.assert_close(float(optimizer.point.part), literal.part, rtol=1e-6, atol=0)
    torch.testing.assert_close(float(optimizer.point.share), literal.share, rtol=1e-6, atol=0)
    for p, y in zip(net.parameters(), literal.y, strict=True):
        torch.testing.assert_close(p.detach(), y.detach())
    for p, x in zip(net.eval().parameters(), literal.x, strict=True):
        torch.testing.assert_close(p.detach(), x)


@pytest.mark.parametrize("on_device", [False, True])
def test_the_part_falls_and_rises_with_the_sign_of_the_slope(on_device):
    point = GradientPoint(slopes=True)
    if on_device:
        point = PointOnDevice(point, torch.device("cpu"))
    part, mean, size = 1.0, 0.0, 0.0
    slopes = [-1.0] * 9 + [float("inf"), 0.5] + [4.0] * 12
    counted = [slope for slope in slopes if slope != float("inf")]
    seen = []
    for slope in slopes:
        for _ in range(4):
            z, y, g = [torch.tensor([slope])], [torch.zeros(1)], [torch.ones(1)]
            shards = Shards({}, (), "z")
            point.observe(z, y, g)
            point.follow(shards, shards, *([torch.tensor(True)] if on_device else []))
        seen.append(float(point.part))
    expected = []
    for n, slope in enumerate(counted, 1):
        mean, size = (old + (new - old) / min(n, 10) for old, new in ((mean, slope), (size, abs(slope))))
        part = min(max(part + 0.2 * mean / size, 0.15), 1.0)
        expected.append(part)
    assert seen[9] == seen[8], "a slope that is not finite changes nothing"
    assert seen[:9] + seen[10:] == pytest.approx(expected)
    assert (expected[0], min(expected), expected[-1]) == (0.8, 0.15, 1.0)


@pytest.mark.parametrize("capturable", [False, True])
def test_a_training_is_resumed_to_the_bit(capturable):
    ended = []
    for stops in (False, True):
        net = layer()
        optimizer = alrao.Auto(net, steps=10, capturable=capturable)
        train(net, optimizer, 0, 50)
        if stops:
            saved = io.BytesIO()
            torch.save([net.state_dict(), optimizer.state_dict()], saved)
            saved.seek(0)
            weights, state = torch.load(saved, weights_only=True)
            net = layer()
            optimizer = alrao.Auto(net, steps=10, capturable=capturable)
            net.load_state_dict(weights)
            optimizer.load_state_dict(state)
        assert optimizer.point.part < 1
        train(net, optimizer, 50, 70)
        ended.append(list(net.eval().parameters()))
    for one, other in zip(*ended, strict=True):
        assert torch.equal(one, other)


def parts(objectives, players):
    """Train each player at its objective with its own optimizer; return the parts of their averages."""
    optimizers = [alrao.Auto(player, steps=20) for player in players]
    for _ in range(300):
        for objective, optimizer in zip(objectives, optimizers, strict=True):
            optimizer.zero_grad()
            objective().backward()
            optimizer.step()
    return [float(optimizer.point.part) for optimizer in optimizers]


def test_the_average_is_left_out_of_a_game():
    torch.manual_seed(0)
    players = [nn.Linear(1, 8, bias=False) for _ in range(2)]
    a, b = (player.weight for player in players)
    assert max(parts([lambda: (a * b).sum(), lambda: -(a * b).sum()], players)) < 0.3


def test_the_average_is_kept_around_a_minimum():
    torch.manual_seed(0)
    player = nn.Linear(100, 100, bias=False)
    nn.init.zeros_(player.weight)
    noisy = lambda: (player.weight + torch.randn(100, 100)).square().sum()  # noqa: E731
    assert parts([noisy], [player]) == [1.0]


def swinging(likelihood="categorical", **options):
    """Train a model to one answer and the other by turns, and return it with its optimizer."""
    torch.manual_seed(0)
    model = alrao.Alrao(
        nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2)).double(), likelihood=likelihood
    )
    optimizer = alrao.Auto(model, steps=20, **options)
    x = torch.randn(16, 20).double()
    for step in range(60):
        optimizer.zero_grad()
        if likelihood == "categorical":
            loss = nn.functional.cross_entropy(model(x), torch.full((16,), step % 2))
        else:
            loss = alrao.MixtureMSELoss()(model(x), torch.full((16, 2), (-1.0) ** step))
        loss.backward()
        optimizer.step()
    assert optimizer.point.share < 0.9
    return model, optimizer


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_a_model_with_copies_is_stilled_except_copies_that_may_sleep(likelihood):
    model, optimizer = swinging(likelihood)
    head = set(model.head.parameters())
    assert optimizer.point.part == 1.0, "slopes are for networks without copies"
    for p, state in optimizer.state.items():
        if p in head and likelihood == "categorical":
            assert "beta" not in state
        else:
            assert 0.7 < state["beta"] <= 0.97


def test_blocks_of_a_parameter_are_stilled_as_the_whole(monkeypatch):
    whole, other_optimizer = swinging(foreach=False)
    monkeypatch.setattr(alrao.optim.blocks, "BLOCK", 64)
    parts, optimizer = swinging(foreach=False)
    assert optimizer.point.share == other_optimizer.point.share
    for one, other in zip(whole.eval().parameters(), parts.eval().parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_noise_stills_nothing():
    torch.manual_seed(0)
    player = nn.Linear(100, 100, bias=False)
    optimizer = alrao.Auto(player, steps=10)
    for _ in range(100):
        optimizer.zero_grad()
        (player.weight * torch.randn(100, 100)).sum().backward()
        optimizer.step()
    assert optimizer.point.share == 1.0


@pytest.mark.parametrize("decay", [0.0, 5.0])
def test_on_a_device_it_follows_the_same_steps(decay):
    """Groups with different factors, one with a rate of its own, and parameters that join late."""
    found = []
    for capturable in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 5), nn.Linear(5, 3)
        )
        net = net.double()
        groups = [
            {"params": list(net[0].parameters())},
            {"params": list(net[2].parameters()), "lr": 0.01},
            {"params": list(net[4].parameters())},
        ]
        optimizer = alrao.Auto(net, steps=10, params=groups, weight_decay=decay, capturable=capturable)
        data = torch.Generator().manual_seed(1)
        for step in range(80):
            if step == 30:
                optimizer.add_param_group({"params": list(net[5].parameters())})
            optimizer.param_groups[2]["lr"] *= 0.95
            x = 1 + torch.randn(8, 6, generator=data, dtype=torch.float64)
            optimizer.zero_grad()
            ((net(x) - 3 * (-1) ** step) ** 2).sum().backward()
            if step % 3 == 0:
                net[4].weight.grad = None
            optimizer.step()
        found.append((optimizer.point.read(), [p.detach().clone() for p in net.parameters()]))
    (host, weights), (device, others) = found
    assert device == pytest.approx(host, rel=1e-6)
    assert host[1] < 1
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other)
