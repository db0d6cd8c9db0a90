"""Schedules under Auto: the search does not make up for a factor, and says where one is left."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, StepLR

import alrao

X = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(8, 5, generator=torch.Generator().manual_seed(1))).argmax(1)

SCHEDULES = {
    "warm-up from 1/1000": lambda o: LinearLR(o, 1e-3, total_iters=500),
    "0.7 every 23 steps": lambda o: StepLR(o, 23, 0.7),
    "warm-up from 0": lambda o: LambdaLR(o, lambda step: min(1.0, step / 200)),
}


def train(wrapped, schedule, steps=60):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
    model = alrao.Alrao(net) if wrapped else net
    optimizer = alrao.Auto(model)
    scheduler = SCHEDULES[schedule](optimizer) if schedule else None
    for step in range(steps):
        rows = torch.randint(len(X), (32,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(X[rows]), Y[rows]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return optimizer


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.filterwarnings("ignore:param_groups.* at the end of Auto's search")
@pytest.mark.parametrize("wrapped", [True, False], ids=["with copies", "plain"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_does_not_mislead_the_search(schedule, wrapped):
    found = train(wrapped, schedule, 120).interval()[0]
    without = train(wrapped, None, 120).interval()[0]
    assert found == pytest.approx(without, rel=0.5)


def test_a_factor_that_is_low_at_the_end_of_the_search_is_said():
    with pytest.warns(UserWarning, match=r"is 0.49 at the end of Auto's search.*leave the scheduler out"):
        train(False, "0.7 every 23 steps")


def test_the_end_of_the_search_is_logged_with_its_step_rate_and_leading_copy(caplog):
    with caplog.at_level(logging.INFO, logger="alrao"):
        optimizer = train(True, None, 120)
    (line,) = [each.getMessage() for each in caplog.records if "search has ended" in each.getMessage()]
    assert f"at step {optimizer.search.steps}: learning rate {optimizer.interval()[0]:.3g}, copy " in line


def test_an_absolute_rate_that_rises_is_warned_of():
    """As nanoGPT's warm-up to 6e-4 over 2,000 steps, which writes into the groups."""
    net = nn.Linear(8, 5)
    optimizer = alrao.Auto(net, steps=10)

    def warm_up():
        for step in range(300):
            for group in optimizer.param_groups:
                group["lr"] = 6e-4 * (step + 1) / 2000
            optimizer.zero_grad()
            F.cross_entropy(net(X[:32]), Y[:32]).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="not a learning rate") as warned:
        warm_up()
    assert len([each for each in warned if "not a learning rate" in str(each.message)]) == 1


def step_of_groups(own):
    """Return a step of a network whose search is over, and the groups of its two layers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
    groups = [{"params": net[0].parameters(), **own}, {"params": net[2].parameters()}]
    optimizer = alrao.Auto(net, steps=20, params=groups)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()

    for _ in range(10):
        step()
    assert optimizer.search.over
    return step, optimizer.param_groups


@pytest.mark.parametrize("own", [{"lr": 1e-3}, {}], ids=["own rate", "factor"])
def test_a_low_factor_of_some_parameters_is_no_schedule(own):
    step, groups = step_of_groups(own)
    groups[0]["lr"] = 0.05
    step()  # a warning would be an error
    groups[1]["lr"] = 0.05
    with pytest.warns(UserWarning, match=r"has fallen to 0.05"):
        step()


def test_a_resumed_run_is_not_warned_of_a_schedule_that_has_begun():
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = alrao.Auto(net, steps=20)
    for factor in [1.0] * 10 + [0.25] * 2 + ["resume"] + [0.25]:
        if factor == "resume":
            state, optimizer = optimizer.state_dict(), alrao.Auto(net, steps=20)
            optimizer.load_state_dict(state)
            continue
        optimizer.param_groups[0]["lr"] = factor
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()  # a warning would be an error
    assert optimizer.search.over
