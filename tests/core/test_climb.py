"""The search for rates without copies: by a literal reference, and where it goes on known problems."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits
from support.stepping import deep_mlp
from torch import nn

import alrao
from alrao.auto.search import RateSearch


def centre(optimizer):
    low, high = optimizer.interval()
    return math.sqrt(low * high)


class Reference:
    """The search as its docstring has it, feature by feature."""

    def __init__(self):
        self.log_centre, self.usual, self.step = math.log(3e-4 * 3e-3) / 2, 0.0, 0
        self.total = self.total_size = 0.0
        self.worth, self.totals = {}, {}

    def follow(self, now, log_rates):
        """Move the centre by the worth now of each feature, and its log-rate."""
        self.step += 1
        size = sum(abs(w) for w in now.values()) / len(now)
        memory = max(1, min(self.step - 1, 20))
        if self.usual == 0:
            self.usual = size
        else:
            self.usual += (min(size, 6 * self.usual) - self.usual) / memory
        part = min(1.0, 6 * self.usual / size) if size else 0.0
        for key, w in now.items():
            old = self.worth.get(key, 0.0)
            self.worth[key] = old + (part * w - old) / memory
        n = len(now)
        total = part * sum(now.values()) / n
        self.total += (total - self.total) / memory
        self.total_size += (abs(total) - self.total_size) / memory
        for name in {name for name, _ in now}:
            part_of = [key for key in now if key[0] == name]
            total = part * sum(now[key] for key in part_of) / len(part_of)
            mean, size = self.totals.get(name, (0.0, 0.0))
            self.totals[name] = (mean + (total - mean) / memory, size + (abs(total) - size) / memory)
        if self.step < 3:
            return
        pull = 0.0
        for name, (mean, size) in self.totals.items():
            worth = [self.worth[key] for key in now if key[0] == name]
            of_one = self.pull(worth, [log_rates[key] for key in now if key[0] == name])
            pull += len(worth) / n * abs(mean) / size * min(max(of_one, -1.0), 1.0)
        self.log_centre += 0.1 * abs(self.total) / self.total_size * pull

    def pull(self, worth, log_rates):
        n = len(worth)
        mean, mean_rate = sum(worth) / n, sum(log_rates) / n
        away = [rate - mean_rate for rate in log_rates]
        spread = sum(each**2 for each in away)
        slope = sum(a * w for a, w in zip(away, worth, strict=True)) / spread
        squares = sum((a * (w - mean - slope * a)) ** 2 for a, w in zip(away, worth, strict=True))
        return (slope + max(0.0, mean) / 2) / (sum(map(abs, worth)) / n + 2 * math.sqrt(squares) / spread)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_search_as_written_down(seed):
    torch.manual_seed(seed)
    net = deep_mlp().double()
    optimizer = alrao.Auto(net)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    reference = Reference()
    for step in range(1, 51):
        x = torch.randn(8, 6, dtype=torch.float64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x * (30 if step == 20 else 1)), x[:, :3].argmax(1)).backward()
        now, log_rates = {}, {}
        for name, p in net.named_parameters():
            rates = optimizer.rates(p).flatten().tolist()
            for i, rate in enumerate(rates):
                now[name, i] = -float((p.grad[i] * (p.detach()[i] - start[name][i])).sum())
                log_rates[name, i] = math.log(rate)
        reference.follow(now, log_rates)
        optimizer.step()
        assert optimizer.search.body_centre == pytest.approx(reference.log_centre, rel=1e-9), step
    assert optimizer.search.over
    assert centre(optimizer) == pytest.approx(math.exp(reference.log_centre))
    assert not any("start" in state for state in optimizer.state.values())


def minimize(scale, steps=60, noise=0.0):
    """Return where the search ends on a regression whose weights are ``scale`` times those of a usual one."""
    torch.manual_seed(0)
    net = nn.Linear(20, 50)
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    target = torch.randn(50, 20)
    optimizer = alrao.Auto(net)
    for _ in range(steps):
        x = torch.randn(32, 20)
        optimizer.zero_grad()
        (net(x) / scale - x @ target.T).square().mean().backward()
        optimizer.step()
    return centre(optimizer)


def test_the_centre_rises_where_weights_have_far_to_go():
    assert minimize(1.0) > 0.01


def test_the_centre_falls_where_the_usual_rate_is_far_too_high():
    assert minimize(1e-4) < 1e-4


def test_the_centre_stays_where_the_loss_is_noise():
    ends = []
    for seed in range(9):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))
        optimizer = alrao.Auto(net)
        for _ in range(50):
            optimizer.zero_grad()
            out = net(torch.randn(8, 6))
            (out * torch.randn_like(out)).sum().backward()
            optimizer.step()
        ends.append(centre(optimizer))
    assert 3e-4 < sorted(ends)[4] < 3e-3, ends
    assert min(ends) > 5e-5, ends
    assert max(ends) < 2e-2, ends


def test_wild_gradients_move_the_centre_no_further_than_usual_ones():
    net = deep_mlp()
    optimizer = alrao.Auto(net)
    for step in range(50):
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        if step % 7 == 3:
            for p in net.parameters():
                p.grad.mul_((1e30, -1e30, float("nan"), float("inf"))[step % 4])
        optimizer.step()
        assert math.isfinite(optimizer.search.body_centre)
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    assert 1e-6 <= centre(optimizer) <= 0.1


def test_a_search_that_is_saved_half_way_ends_with_the_same_bits():
    torch.manual_seed(0)
    net = deep_mlp()
    optimizer = alrao.Auto(net)

    def train(net, optimizer, steps):
        for step in steps:
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
            optimizer.step()

    train(net, optimizer, range(23))
    weights, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, range(23, 70))
    twin = deep_mlp()
    resumed = alrao.Auto(twin)
    twin.load_state_dict(weights)
    resumed.load_state_dict(state)
    train(twin, resumed, range(23, 70))
    assert resumed.interval() == optimizer.interval()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))


def test_with_steps_the_search_is_shorter_and_reaches_as_far():
    torch.manual_seed(0)
    net = nn.Linear(20, 50, bias=False)
    target = torch.randn(50, 20)
    optimizer = alrao.Auto(net, steps=50)
    for _ in range(15):
        x = torch.randn(32, 20)
        optimizer.zero_grad()
        (net(x) - 5 * x @ target.T).square().mean().backward()
        optimizer.step()
    assert optimizer.search.over
    assert centre(optimizer) > 0.01


@pytest.mark.parametrize(("body", "ends"), [(0.01, 1), (1, 1), (2.9, 1), (3 * 3**0.5, 3), (9, 9), (50, 50)])
def test_copies_are_believed_until_the_body_is_far_above_them(body, ends):
    search = RateSearch(50, credit=50, centre=math.log(1e-3), recent=[0.0, 0.0], body_observed=50)
    search.body_centre = math.log(1e-3 * body)
    assert middle(search) == pytest.approx(1e-3 * ends)
    search.body_observed = 0
    assert middle(search) == pytest.approx(1e-3), "nothing was shown of the body"
    search.recent = [0.0]
    assert middle(search) == pytest.approx(1e-3 * body), "a single copy says nothing"


def middle(search):
    low, high = search.interval()
    return math.sqrt(low * high)


@dataclass
class CopiesAlone(RateSearch):
    def observe_body(self, seen, shards):
        pass


def trained_with_copies(act, search):
    """Return the model and the centre after a short training on digits."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 6 - 1, dtype=torch.float32)
    classes = torch.tensor(digits.target)
    net = nn.Sequential(nn.Linear(64, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 10))
    model = alrao.Alrao(net)
    optimizer = alrao.Auto(model)
    optimizer.search = search(50)
    for _ in range(50):
        rows = torch.randint(len(images), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), classes[rows]).backward()
        optimizer.step()
    return model, centre(optimizer)


def test_where_both_sources_agree_the_training_is_that_of_the_copies():
    both, found = trained_with_copies(nn.ReLU, RateSearch)
    alone, expected = trained_with_copies(nn.ReLU, CopiesAlone)
    assert found == expected
    assert all(torch.equal(a, b) for a, b in zip(both.parameters(), alone.parameters(), strict=True))


def test_behind_sigmoids_the_body_finds_a_rate_that_the_copies_miss():
    _, alone = trained_with_copies(nn.Sigmoid, CopiesAlone)
    _, both = trained_with_copies(nn.Sigmoid, RateSearch)
    assert alone < 5e-3
    assert both > 3 * alone
