"""The weights that are evaluated, and the BatchNorm statistics that belong to them."""

import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao.lab.learner import AutoLearner


def test_the_statistics_under_auto_are_those_of_the_averaged_weights():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = alrao.Alrao(net, 5)
    own = AutoLearner(model, alrao.Auto(model))
    batches = [torch.randn(64, 4) + 1 for _ in range(20)]
    for x in batches * 10:
        own.step(F.cross_entropy(model(x), x[:, :3].argmax(1)))
    gathered = net[1].running_mean.clone()
    with own.evaluating(batches), torch.no_grad():
        wanted = torch.stack([net[0](x).mean(0) for x in batches]).mean(0)
        torch.testing.assert_close(net[1].running_mean, wanted)
    assert model.training
    assert (net[0](batches[0]).mean(0) - wanted).abs().max() > 0.01  # at the training weights
    assert torch.equal(net[1].running_mean, gathered)
