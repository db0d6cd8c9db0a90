"""What a search for rates is shown of the body, against sums that are written down step by step."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from support.stepping import deep_mlp
from torch import nn

import alrao
from alrao.optim.search import RateSearch


@dataclass
class Rewards(RateSearch):
    """Adds up what each feature's way has been worth, to first order; moves nothing by it."""

    watches_body: ClassVar[bool] = True
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    names: ClassVar[dict[torch.Tensor, str]] = {}
    seen_rates: ClassVar[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def observe_body(self, step):
        shown = (step.params, step.weights, step.starts, step.grads, step.places, step.rates)
        for p, w, start, g, u, rate in zip(*shown, strict=True):
            worth = -(g * (w - start)).flatten(1).sum(1) if p.ndim > 1 else -g * (w - start)
            name = self.names[p]
            self.sums[name] = self.sums.get(name, 0) + worth
            self.seen_rates.append((u, rate))


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_search_is_shown_gradients_at_the_weights_they_belong_to(foreach, maximize):
    torch.manual_seed(0)
    net = deep_mlp().double()
    optimizer = alrao.Auto(net, foreach=foreach, maximize=maximize)
    optimizer.search = Rewards(20)
    body = dict(net.named_parameters())
    Rewards.names = {p: name for name, p in body.items()}
    Rewards.seen_rates = []
    start = {name: p.detach().clone() for name, p in body.items()}
    expected = dict.fromkeys(body, 0.0)
    for step in range(20):
        x = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), x[:, :3].argmax(1))
        (-loss if maximize else loss).backward()
        for name, p in body.items():
            worth = -(p.grad * (p.detach() - start[name])) * (-1 if maximize else 1)
            expected[name] += worth.flatten(1).sum(1) if p.ndim > 1 else worth
        low, high = optimizer.interval()
        optimizer.step()
        for u, rate in Rewards.seen_rates:
            torch.testing.assert_close(rate, (low ** (1 - u)) * high**u)
        assert len(Rewards.seen_rates) == len(body)
        Rewards.seen_rates.clear()
    assert optimizer.search.over
    for name in body:
        torch.testing.assert_close(optimizer.search.sums[name], expected[name])
    optimizer.zero_grad()
    F.cross_entropy(net(x), x[:, :3].argmax(1)).mul(-1 if maximize else 1).backward()
    optimizer.step()
    assert not Rewards.seen_rates, "after the search nothing is shown"


def test_groups_with_their_own_rates_are_not_shown():
    net = deep_mlp()
    groups = [{"params": net[:3].parameters()}, {"params": net[3:].parameters(), "lr": 0.01}]
    optimizer = alrao.Auto(net, params=groups)
    optimizer.search = Rewards(20)
    Rewards.names = {p: name for name, p in net.named_parameters()}
    Rewards.seen_rates = []
    net(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
    assert sorted(optimizer.search.sums) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_what_the_search_has_seen_is_saved_with_it():
    net = nn.Linear(6, 3)
    optimizer = alrao.Auto(net)
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
    twin = alrao.Auto(net)
    twin.load_state_dict(optimizer.state_dict())
    assert twin.search == optimizer.search
    assert twin.search.usual > 0
    for p in net.parameters():
        assert torch.equal(twin.state[p]["worth"], optimizer.state[p]["worth"])
        assert twin.state[p]["worth"].abs().sum() > 0
