"""A frozen output layer keeps its values, and a warning says that copies of it are useless."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp
from torch import nn

import alrao

FROZEN = "is frozen, so its copies keep its values"


def frozen(net):
    net[-1].requires_grad_(False)
    return net


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("kind", [alrao.SGD, alrao.AdamW, alrao.Auto])
def test_a_frozen_output_layer_keeps_its_values(copies, kind):
    net = frozen(mlp())
    plain = copy.deepcopy(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = alrao.Alrao(net, copies)
        optimizer = kind(model)
    assert [FROZEN in str(each.message) for each in caught] == [True] * (copies > 1)
    x = torch.randn(64, 4)
    y = x[:, :3].argmax(1)
    torch.testing.assert_close(model(x).as_subclass(torch.Tensor), plain(x).log_softmax(1))
    first = F.cross_entropy(plain(x), y).item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < first
    collapsed = model.eval().collapse()
    assert torch.equal(collapsed[-1].weight, plain[-1].weight)
    assert not collapsed[-1].weight.requires_grad


def test_a_layer_that_is_partly_frozen_is_nothing_to_warn_of():
    net = mlp()
    net[-1].weight.requires_grad_(False)
    model = alrao.Alrao(net, 3)
    assert (model.head.weight == model.head.weight[0]).all()


def test_tied_weights_that_are_frozen_stay_equal():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mid, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.mid(self.embed(x)))

    net = Tied()
    net.embed.requires_grad_(False)
    model = alrao.Alrao(net, 1)
    collapsed = model.collapse()
    again = Tied()
    again.load_state_dict(collapsed.state_dict())
    x = torch.randint(9, (3,))
    assert torch.equal(again(x), collapsed(x))
