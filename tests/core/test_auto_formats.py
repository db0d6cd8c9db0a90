"""States that the version before wrote, resumed; and states saved at the step at which the search ends."""

import copy
import io
from math import sqrt
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.auto_runs import batch, build, equal, small, train, weights
from torch import nn

import alrao
from alrao.auto.search import RateSearch

FORMER = torch.load(Path(__file__).parents[1] / "support/states/auto-format-3.pt", weights_only=True)


@pytest.mark.parametrize("which", FORMER)
def test_a_state_of_the_format_before_is_resumed(which):
    saved = FORMER[which]
    net = small()
    model = alrao.Alrao(net, 5) if which.startswith("copies") else net
    optimizer = alrao.Auto(model, steps=167)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    low, high = saved["interval"]
    assert optimizer.search.over == which.endswith("60")
    if optimizer.search.over:
        assert optimizer.interval() == pytest.approx([sqrt(low * high)] * 2)
    else:
        assert optimizer.search == RateSearch(), "the search was another one: it begins again"
    for p, x in zip(model.eval().parameters(), saved["averaged"], strict=True):
        torch.testing.assert_close(p.detach(), x)
    model.train()
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        if "exp_avg" in optimizer.state[p]:
            assert not optimizer.state[p]["exp_avg"].any(), "a hidden matrix has a momentum now"
        else:
            assert torch.equal(optimizer.state[p]["exp_avg_sq"], saved["optimizer"]["state"][i]["v"])
    before = loss(model)
    train(model, optimizer, 60, 120)
    assert loss(model.eval()) < before


def loss(model):
    x, y = batch(1000)
    with torch.no_grad():
        return F.cross_entropy(model(x), y).item()


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
