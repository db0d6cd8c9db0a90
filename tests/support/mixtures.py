"""Models of regression and multi-label outputs in double precision: shared by the tests of the criteria."""

import torch
from torch import nn

import alrao

COPIES, ROWS, INPUTS, OUTPUTS = 4, 6, 3, 2
LABELS = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]], dtype=torch.float64)
LIKELIHOODS = {"gaussian": alrao.MixtureMSELoss, "bernoulli": alrao.MixtureBCELoss}


def converted(likelihood, outputs=OUTPUTS, net=None):
    """A model in double precision with spread copies and a posterior that is not uniform."""
    net = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, outputs)) if net is None else net
    model = alrao.Alrao(net, COPIES, likelihood=likelihood).double()
    with torch.no_grad():
        model.head.weight.mul_(3)
    for _ in range(3):
        model.head.averaging.update(torch.randn(COPIES))
    return model


def batch():
    return torch.randn(ROWS, INPUTS, dtype=torch.float64)
