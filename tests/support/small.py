"""A small network, a target for each likelihood, and a way to move the posterior: shared by test files."""

import torch
from torch import nn

TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 30,
    "max_position_embeddings": 16,
}


def mlp(outputs=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def target_for(likelihood, x, outputs=3):
    if likelihood == "categorical":
        return torch.randint(outputs, (len(x),))
    return torch.randn(len(x), outputs) if likelihood == "gaussian" else torch.rand(len(x), outputs).round()


def observe(model, *log_likelihood):
    """Move the posterior away from uniform."""
    model.head.averaging.update(torch.tensor(log_likelihood))
