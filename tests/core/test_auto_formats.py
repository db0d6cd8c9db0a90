"""States saved before the first step, and at the step at which the search ends."""

import copy
import io

import pytest
import torch
from support.auto_runs import build, equal, small, train, weights
from torch import nn

import alrao


def resumed(model, optimizer, make):
    """The same run in new objects, through files."""
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    twin, its_optimizer = make()
    of_model, of_optimizer = torch.load(file, weights_only=False)
    twin.load_state_dict(of_model)
    its_optimizer.load_state_dict(of_optimizer)
    return twin, its_optimizer


@pytest.mark.parametrize("frozen", [False, True], ids=["all trained", "a layer frozen across the end"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_run_saved_when_the_search_ends_resumes_to_the_same_bits(dtype, frozen):
    def make():
        return build(dtype=dtype)

    model, optimizer = make()
    train(model, optimizer, 0, 45)
    model.net[0].weight.requires_grad_(not frozen)
    train(model, optimizer, 45, 50)
    assert optimizer.search.over
    twin, its_optimizer = resumed(model, optimizer, make)
    for each, its in ((model, optimizer), (twin, its_optimizer)):
        each.net[0].weight.requires_grad_(True)
        train(each, its, 50, 70)
    assert equal(weights(model), weights(twin))
    assert equal(weights(model.eval()), weights(twin.eval()))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "with copies"])
def test_a_round_trip_before_the_first_step_changes_nothing(plain):
    def make():
        torch.manual_seed(0)
        net = small()
        model = net if plain else alrao.Alrao(net, 5)
        return model, alrao.Auto(model, steps=167)

    one, other = make(), make()
    other[1].load_state_dict(copy.deepcopy(other[1].state_dict()))
    other = resumed(*other, make)
    for each in (one, other):
        train(*each, 0, 60)
    assert equal(weights(one[0]), weights(other[0]))


def test_what_concerns_the_whole_optimizer_is_saved_once():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = alrao.Auto(net, params=[{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    groups = optimizer.state_dict()["param_groups"]
    assert ["auto" in group for group in groups] == [True, False]
    assert groups[0]["auto"].keys() == {"search", "evaluating"}
