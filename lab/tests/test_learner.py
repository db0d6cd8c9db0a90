"""Learners: the weights and statistics evaluated, the movement of features."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.stepping import same
from torch import nn

import alrao
from alrao_lab.learner import Learner
from alrao_lab.methods import learner
from alrao_lab.recording import Movement
from alrao_lab.resolve import resolve
from alrao_lab.settings import MethodSpec, Settings


def test_the_statistics_under_auto_are_those_of_the_averaged_weights():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = alrao.Alrao(net, 5)
    own = Learner(model, alrao.Auto(model))
    batches = [torch.randn(64, 4) + 1 for _ in range(20)]
    for x in batches * 10:
        own.step(F.cross_entropy(model(x), x[:, :3].argmax(1)))
    gathered = net[1].running_mean.clone()
    with own.evaluating(()), torch.no_grad():
        wanted = torch.stack([net[0](x).mean(0) for x in batches[-16:]]).mean(0)  # 1,024 rows
        torch.testing.assert_close(net[1].running_mean, wanted)
    assert model.training
    assert (net[0](batches[0]).mean(0) - wanted).abs().max() > 0.01  # at the training weights
    assert torch.equal(net[1].running_mean, gathered)


def started(model):
    task, settings = resolve(Settings(task="digits", model=model, width=0.25, train_size=300))
    problem = task.load(settings, torch.device("cpu"))
    trained = learner(problem.network(), settings, problem)
    return problem, trained, Movement(trained)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_measuring_changes_nothing(model):
    problem, trained, movement = started(model)
    for inputs, targets in problem.batches(1):
        trained.step(problem.loss(trained.model(inputs), targets))
    trained.model.eval()
    before = copy.deepcopy((trained.state_dict(), torch.get_rng_state()))
    gradients = [None if p.grad is None else p.grad.clone() for p in trained.model.parameters()]
    movement.layers()
    assert same(before, (trained.state_dict(), torch.get_rng_state()))
    assert not any(module.training for module in trained.model.modules())
    assert same(gradients, [p.grad for p in trained.model.parameters()])


@pytest.mark.parametrize("method", ["muon", "mechanic", "adam"])
def test_an_average_leaves_the_method_as_it_is(method):
    """All parameters are trained as without it, and a state is resumed to the bit."""
    x, y = torch.randn(32, 4), torch.randint(3, (32,))

    def trained(average, steps=4, state=None):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        made = learner(net, Settings(task="digits", method=MethodSpec(method), average=average), None)
        if state is not None:
            made.load_state_dict(state)
        for _ in range(steps):
            made.step(F.cross_entropy(made.model(x), y))
        return made

    averaged, alone, start = trained(True), trained(False), trained(False, 0)
    for one, other, first in zip(*(m.model.parameters() for m in (averaged, alone, start)), strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, first)
    resumed = trained(True, 2, copy.deepcopy(trained(True, 2).state_dict()))
    for one, other in zip(resumed.evaluated().parameters(), averaged.evaluated().parameters(), strict=True):
        assert torch.equal(one, other)
        assert not any(map(torch.equal, resumed.model.parameters(), resumed.evaluated().parameters()))
