"""Auto's counts of steps, in numbers and in tensors that parameters share."""

import pytest
import torch
from torch import nn

import alrao


@pytest.mark.parametrize("capturable", [False, True])
def test_every_group_counts_its_own_steps(capturable):
    """A counter that two groups share would be advanced twice a step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    groups = [{"params": list(net[0].parameters())}, {"params": list(net[2].parameters())}]
    optimizer = alrao.Auto(net, params=groups, steps=20, capturable=capturable)
    for step in range(20):
        if step == 15:
            net.load_state_dict({name: p + 1 for name, p in net.state_dict().items()})
        optimizer.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    counts = {(int(optimizer.state[p]["step"]), int(optimizer.state[p]["k"])) for p in net.parameters()}
    assert counts == {(20, 5)}, "the average starts again with the loaded weights"
