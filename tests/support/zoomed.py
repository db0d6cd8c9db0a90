"""A small model under Zoom, a step of it, and a posterior by hand: shared by test files."""

import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao.contrib.zoom import Zoom

INTERVAL = (1e-5, 10.0)


def a_model(copies=5, hidden=6):
    return alrao.Alrao(nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3)), copies)


def set_posterior(model, weights):
    """Make these the posterior."""
    weights = torch.tensor(weights, dtype=torch.float64)
    model.head.averaging._state[: len(weights)] = weights / weights.sum()


def learn(model, optimizer, *schedulers, seed=0):
    """One step on a batch of noise."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    for scheduler in schedulers:
        scheduler.step()


def idle(optimizer):
    """Let torch set_posterior that the optimizer has stepped."""
    optimizer._opt_called = True


def all_rates(optimizer):
    return [optimizer.rates(p) for group in optimizer.param_groups for p in group["params"]]


def under_way(**options):
    """A model in the middle of narrowing, with the move of the tenth step to come."""
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 10, every=5, **options)
    for seed in range(9):
        learn(model, optimizer, zoom, seed=seed)
    learn(model, optimizer, seed=9)
    return model, optimizer, zoom
