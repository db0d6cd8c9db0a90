"""Large parameters are updated in blocks: the numbers are those of an update at once."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao.optim import update

OPTIMIZERS = {
    "momentum": lambda model, **o: alrao.SGD(
        model, lr=(1e-3, 1), momentum=0.9, dampening=0.1, weight_decay=1e-2, **o
    ),
    "adam": lambda model, **o: alrao.Adam(model, lr=(1e-4, 0.1), weight_decay=1e-3, **o),
    "adamw": lambda model, **o: alrao.AdamW(model, lr=(1e-4, 0.1), amsgrad=True, **o),
    "auto": lambda model, **o: alrao.Auto(model, steps=40, weight_decay=1e-2, **o),
}


class Net(nn.Module):
    """Features on the first axis of a weight, on the second, and on none that is cut."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.up = nn.ConvTranspose1d(6, 5, 2)
        self.mix = nn.Conv1d(5, 7, 3)
        self.out = nn.Linear(7, 9)

    def forward(self, x):
        return self.out(self.mix(self.up(self.embedding(x).movedim(1, 2))).tanh().mean(-1))


def train(model, optimizer, steps, sign=1):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randint(11, (8, 4), generator=generator)
        optimizer.zero_grad()
        (sign * F.cross_entropy(model(x), x.sum(1) % 9)).backward()
        optimizer.step()


def outcome(name, maximize, block, monkeypatch):
    monkeypatch.setattr(update, "BLOCK", block)
    torch.manual_seed(0)
    model = alrao.Alrao(Net(), 4)
    optimizer = OPTIMIZERS[name](model, foreach=False, maximize=maximize)
    train(model, optimizer, 40 if name == "auto" else 5, -1 if maximize else 1)
    return model.state_dict(), optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    ("name", "maximize"),
    [("momentum", False), ("adam", False), ("adamw", False), ("auto", False), ("adamw", True)],
)
def test_blocks_of_any_size_give_the_numbers_of_an_update_at_once(name, maximize, monkeypatch):
    weights, state = outcome(name, maximize, 2**18, monkeypatch)
    for block in (3, 20):
        found, found_state = outcome(name, maximize, block, monkeypatch)
        for key, value in weights.items():
            assert torch.equal(found[key], value), (block, key)
        assert found_state.keys() == state.keys()
        for i, of_param in state.items():
            assert found_state[i].keys() == of_param.keys()
            for key, value in of_param.items():
                same = torch.equal if isinstance(value, torch.Tensor) else operator.eq
                if key == "last":  # sums over blocks are rounded after each
                    same = torch.allclose
                assert same(found_state[i][key], value), (block, i, key)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        ("Adam", {"lr": 0.01}),
        ("AdamW", {"lr": 0.01}),
    ],
)
def test_in_blocks_one_copy_at_one_rate_is_the_optimizer_of_torch(name, options, monkeypatch):
    monkeypatch.setattr(update, "BLOCK", 10)
    torch.manual_seed(0)
    net = Net()
    plain = copy.deepcopy(net)
    model = alrao.Alrao(net, copies=1, keep_output=True)
    train(model, getattr(alrao, name)(model, **options), 5)
    train(plain, getattr(torch.optim, name)(plain.parameters(), **options), 5)
    for key, value in plain.state_dict().items():
        assert torch.equal(model.collapse().state_dict()[key], value), key


def test_no_tensor_of_an_update_is_larger_than_a_block():
    sizes = [
        torch.Size(shape) for shape in ((3, 1000, 512), (10, 300, 8), (5000, 512), (1, 70_000, 64), (9,))
    ]
    for shape in sizes:
        cut = update.block_slices(shape)
        covered = torch.zeros(shape, dtype=torch.int8)
        for rows in cut:
            assert covered[rows].numel() <= update.BLOCK
            covered[rows] += 1
        assert bool(cut) == (shape.numel() > update.BLOCK)
        assert not cut or (covered == 1).all()
