"""The optimizers of torch with options to try, and small models under Rated: shared by test files."""

import torch
import torch.nn.functional as F
from torch import nn, optim

import alrao
from support.stepping import batches, deep_mlp

OPTIONS = {
    "ASGD": [{}, {"t0": 2, "lambd": 0.01, "weight_decay": 0.01}],
    "Adadelta": [{}, {"weight_decay": 0.01, "rho": 0.8}],
    "Adafactor": [{}, {"weight_decay": 0.01, "d": 2.0}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.01}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.01}],
    "AdamW": [{}, {"betas": (0.5, 0.9)}],
    "Adamax": [{}, {"weight_decay": 0.01}],
    "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.01}],
    "RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.01}],
    "RMSprop": [{}, {"centered": True, "momentum": 0.9}],
    "Rprop": [{}, {"etas": (0.4, 1.5)}],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}],
    "Muon": [{}, {"momentum": 0.8, "nesterov": False}],
}
if not hasattr(optim, "Muon"):  # it came with torch 2.9
    del OPTIONS["Muon"]


def network(name):
    """Muon takes only matrices, so there are no biases for it."""
    if name != "Muon":
        return deep_mlp()
    layers = [nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False)]
    return nn.Sequential(*layers)


def build(name, copies=4, dtype=torch.float32, **options):
    model = alrao.Alrao(network(name).to(dtype), copies)
    return model, alrao.PerFeature(getattr(optim, name), model, **options)


def steps(model, count, dtype=torch.float32):
    """Gradients at the model's own weights, batch by batch."""
    for x, y in batches(count, 6):
        model.zero_grad()
        F.cross_entropy(model(x.to(dtype)), y).backward()
        yield
