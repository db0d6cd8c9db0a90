"""A small classifier, its training loop, and exact comparison of states: shared by several test files."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import alrao


def deep_mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def make(optimizer=alrao.SGD, copies=4, **options):
    model = alrao.Alrao(deep_mlp(), copies)
    return model, optimizer(model, **options)


def batches(count, *shape, rows=12, classes=3):
    generator = torch.Generator().manual_seed(99)
    for _ in range(count):
        x = torch.randn(rows, *shape, generator=generator)
        yield x, torch.randint(classes, (rows,), generator=generator)


def train(model, optimizer, steps=5, shape=(6,), sign=1):
    for x, y in batches(steps, *shape):
        optimizer.zero_grad()
        (sign * F.cross_entropy(model(x), y)).backward()
        optimizer.step()


def snapshot(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def same(one, other):
    """Whether two nests of dictionaries, lists and tensors are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
