"""A small model under Auto, and its training on batches that depend on the step only."""

import torch
import torch.nn.functional as F
from torch import nn

import alrao


def small(hidden=8, norm=False):
    layers = [nn.Linear(4, hidden), *[nn.BatchNorm1d(hidden)] * norm, nn.Tanh(), nn.Linear(hidden, 3)]
    return nn.Sequential(*layers)


LONG = 167
"""Steps of a training whose search takes 50 of them, whether anything is learned or not."""


def build(seed=0, *, dtype=torch.float32, norm=False, hidden=8, steps=LONG, weight_decay=0.0, **options):
    torch.manual_seed(seed)
    model = alrao.Alrao(small(hidden, norm).to(dtype), 5)
    return model, alrao.Auto(model, steps=steps, weight_decay=weight_decay, **options)


def batch(step, dtype=torch.float32):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    return x.to(dtype), x[:, :3].argmax(1)


def train(model, optimizer, start, stop):
    """Train with the batches of some steps, in the mode that the model is in."""
    for step in range(start, stop):
        x, y = batch(step, next(model.parameters()).dtype)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(one, other):
    return all(map(torch.equal, one, other))


def trained(steps=60, **options):
    model, optimizer = build(**options)
    train(model, optimizer, 0, steps)
    return model, optimizer


def averages(model, optimizer, beta=0.5):
    """The averaged weights by their definition, of a model in training mode."""
    return [(p.detach() - (1 - beta) * optimizer.state[p]["z"]) / beta for p in model.parameters()]


def close(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-6)
    return True
