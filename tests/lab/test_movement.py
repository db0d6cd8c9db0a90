"""Movement of features: networks with features that are dead or saturated by construction."""

import copy

import pytest
import torch
from support.stepping import same

from alrao.lab.methods import learner
from alrao.lab.movement import Movement
from alrao.lab.resolve import resolve
from alrao.lab.settings import Settings


def started(model):
    task, settings = resolve(Settings(task="digits", model=model, width=0.25, train_size=300))
    problem = task.load(settings, torch.device("cpu"))
    trained = learner(problem.network(), settings, problem)
    return problem, trained, Movement(trained)


@pytest.mark.parametrize(
    ("model", "bias", "key"),
    [("mlp", -1e6, "dead"), ("sigmoid", -12.0, "saturated"), ("sigmoid", -200.0, "dead")],
)
def test_features_without_a_gradient_are_counted(model, bias, key):
    problem, trained, movement = started(model)
    before, *_ = movement.layers(problem)  # a ReLU unit may be dead from the start
    [first, *_] = [p for name, p in trained.model.named_parameters() if name.endswith("bias")]
    first.data[:] = torch.where(torch.arange(len(first)) < 9, bias, first.data)
    after, *_ = movement.layers(problem)
    other = "saturated" if key == "dead" else "dead"
    assert before[key] < 5
    assert 9 <= after[key] <= 9 + before[key]
    assert after[other] <= before[other]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_measuring_changes_nothing(model):
    problem, trained, movement = started(model)
    for inputs, targets in problem.batches(1):
        trained.step(problem.loss(trained.model(inputs), targets))
    trained.model.eval()
    before = copy.deepcopy((trained.state_dict(), torch.get_rng_state()))
    movement.layers(problem)
    assert same(before, (trained.state_dict(), torch.get_rng_state()))
    assert not any(module.training for module in trained.model.modules())
    assert all(p.grad is None for p in trained.model.parameters())


def test_without_data_nothing_is_counted():
    _, _, movement = started("mlp")
    assert all("dead" not in layer for layer in movement.layers())
