"""What a search for rates is shown of the body, against sums that are written down step by step."""

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from support.stepping import deep_mlp
from torch import nn

import alrao
from alrao.auto.search import RateSearch


@dataclass
class Rewards(RateSearch):
    """Adds up what each feature's way has been worth, to first order; moves nothing by it."""

    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    calls: int = 0

    def observe_body(self, seen, shards):
        for each in seen:
            key = id(each.gain)
            self.sums[key] = self.sums.get(key, 0) + each.now.flatten()
        self.calls += 1


@pytest.mark.parametrize("convert", [nn.Sequential, alrao.Alrao])
@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_search_is_shown_gradients_at_the_weights_they_belong_to(foreach, maximize, convert):
    torch.manual_seed(0)
    model = convert(deep_mlp().double())
    optimizer = alrao.Auto(model, foreach=foreach, maximize=maximize)
    optimizer.search = Rewards(20, min_credit=1.0)
    copies = getattr(model, "head", nn.Module())
    body = [p for p in model.parameters() if not any(p is q for q in copies.parameters())]
    start = [p.detach().clone() for p in body]
    expected = [0.0] * len(body)
    for step in range(21):
        x = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        (-loss if maximize else loss).backward()
        assert optimizer.search.over == (step == 20)
        for i, p in enumerate(body):
            worth = -(p.grad * (p.detach() - start[i])) * (-1 if maximize else 1)
            expected[i] += (worth.flatten(1).sum(1) if p.ndim > 1 else worth) * (step < 20)
        optimizer.step()
    assert optimizer.search.calls == 20, "after the search nothing is shown"
    assert len(optimizer.search.sums) == len(body)
    for p, worth in zip(body, expected, strict=True):
        torch.testing.assert_close(optimizer.search.sums[id(optimizer.state[p]["gain"])], worth)


def test_groups_with_their_own_rates_are_not_shown():
    net = deep_mlp()
    groups = [{"params": net[:3].parameters()}, {"params": net[3:].parameters(), "lr": 0.01}]
    optimizer = alrao.Auto(net, params=groups)
    optimizer.search = Rewards(20, min_credit=1.0)
    net(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
    assert set(optimizer.search.sums) == {id(optimizer.state[p]["gain"]) for p in net[:3].parameters()}


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
    assert twin.search.usual_gain > 0
    for p in net.parameters():
        assert torch.equal(twin.state[p]["gain"], optimizer.state[p]["gain"])
        assert twin.state[p]["gain"].abs().sum() > 0
