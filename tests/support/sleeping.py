"""Models some of whose copies sleep."""

import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao.runtime import sleeping

COPIES, CLASSES, INPUTS = 6, 5, 4


def make_net(hidden=8):
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return alrao.Alrao(make_net().to(dtype), COPIES)


def make_batch(step, rows=16, scale=1.0):
    generator = torch.Generator().manual_seed(step)
    x = scale * torch.randn(rows, INPUTS, generator=generator)
    teacher = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(99))
    return x, (x @ teacher / scale).argmax(1)


def train(model, optimizer, steps, **batches):
    for step in steps:
        x, y = make_batch(step, **batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda model, **o: alrao.SGD(model, lr=(1e-4, 10), **o),
    "momentum": lambda model, **o: alrao.SGD(model, lr=(1e-4, 10), momentum=0.9, weight_decay=1e-4, **o),
    "adam": lambda model, **o: alrao.Adam(model, lr=(1e-5, 1), **o),
    "adamw": lambda model, **o: alrao.AdamW(model, lr=(1e-5, 1), amsgrad=True, **o),
    "auto": lambda model, **o: alrao.Auto(model, steps=167, **o),
}


def shorten_cycles(monkeypatch):
    monkeypatch.setattr(sleeping, "CYCLE", 11)
    monkeypatch.setattr(sleeping, "LOOKS", 2)
    monkeypatch.setattr(sleeping, "MAX_INTERVAL", 5)
    monkeypatch.setattr(sleeping, "NEGLIGIBLE", 0.03)


def put_to_sleep(model, awake, part=None, mixing=None):
    """Let only some copies be awake; by default all of them take part, and are in the mixture."""
    head = model.head
    head.awake, head.part, head.mixing = awake, part or awake, mixing or awake


def asleep(model):
    return COPIES - len(range(COPIES)[model.head.awake or slice(None)])
