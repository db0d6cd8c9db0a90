"""Random lifecycles of a training, and that their promises can be broken."""

from unittest import mock

import pytest
import torch
from support.lifecycle_cases import Case, Event
from support.lifecycles import EDITS, EVENTS, case_of, failure, script, shrink

import alrao

CASES, FAST, PART = 300, 120, 20
"""How many run here, and fast; ``python -m support.lifecycles --cases 5000`` runs more."""


@pytest.mark.parametrize(
    "first",
    [
        *range(0, FAST, PART),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(FAST, CASES, PART)),
    ],
)
def test_lifecycles(first):
    failed = [(case, why) for case in map(case_of, range(first, first + PART)) if (why := failure(case))]
    assert not failed, "\n".join(f"seed {case.seed}: {why}\n{script(case)}" for case, why in failed)


def test_a_case_follows_from_its_seed():
    assert case_of(3) == case_of(3) != case_of(4)
    assert {event.name for seed in range(FAST) for event in case_of(seed).events} == EVENTS.keys()


# Faults planted to see that they are found.

PLAIN = Case(0, options={"lr": 0.05, "momentum": 0.9}, steps=6)
WRAPPED = Case(0, copies=3, options={"lr": (1e-3, 0.1)}, steps=6)


def at_step_3(case, *names, number=0):
    return Case(**{**vars(case), "events": tuple(Event(3, name, number) for name in names)})


def forgets_momentum(load_state_dict):
    def load(self, state):
        load_state_dict(self, state)
        for each in self.state.values():
            each.pop("momentum_buffer", None)

    return load


def evaluation_adds_up(train):
    def switch(self, mode=True):
        if not mode:
            with torch.no_grad():
                self.body[0].weight.add_(0.1)
        return train(self, mode)

    return switch


def accepts_all(load_state_dict):
    def load(self, state):
        try:
            load_state_dict(self, state)
        except (ValueError, RuntimeError, TypeError):
            return

    return load


def lets_nan_through(step):
    def nan_step(self, closure=None):
        loss = step(self, closure)
        for p in self.param_groups[0]["params"]:
            p.data.add_(0 * p.grad)
        return loss

    return nan_step


def is_too_long(step):
    def long_step(self, closure=None):
        loss = step(self, closure)
        for p in self.param_groups[0]["params"]:
            p.data.sub_(1e-6 * p.grad)
        return loss

    return long_step


def returns_something_else(forward):
    return lambda self, x: forward(self, x) * 1.01


FAULTS = {
    "visits change nothing": (alrao.SGD, "load_state_dict", forgets_momentum, at_step_3(PLAIN, "resume")),
    "they changed body.0.weight": (alrao.Alrao, "train", evaluation_adds_up, at_step_3(WRAPPED, "look")),
    "clamp holds for body.0.weight": (alrao.Alrao, "train", evaluation_adds_up, at_step_3(WRAPPED, "edit")),
    "does not fit is refused": (alrao.SGD, "load_state_dict", accepts_all, at_step_3(PLAIN, "bad_load")),
    "is finite": (alrao.SGD, "step", lets_nan_through, at_step_3(PLAIN, "not_finite", number=3)),
    "a single rate is torch's": (alrao.SGD, "step", is_too_long, PLAIN),
    "the output is the network's": (alrao.Alrao, "forward", returns_something_else, WRAPPED),
}


@pytest.mark.parametrize("promise", FAULTS)
def test_a_planted_fault_is_found(promise):
    owner, method, fault, case = FAULTS[promise]
    assert failure(case) is None
    with mock.patch.object(owner, method, fault(getattr(owner, method))):
        assert promise in failure(case)


def test_shrinking_keeps_what_matters():
    case = at_step_3(PLAIN, "clip", "resume", "accumulate")
    with mock.patch.object(alrao.SGD, "load_state_dict", forgets_momentum(alrao.SGD.load_state_dict)):
        small = shrink(case)
    assert [event.name for event in small.events] == ["resume"]
    assert "momentum" in small.options
    assert "before step 3: resume" in script(small)


@pytest.mark.parametrize("edit", EDITS.values())
def test_edits_keep_what_they_have_made(edit):
    p = torch.randn(4, 6)
    edit(p)
    again = p.clone()
    edit(again)
    torch.testing.assert_close(again, p, rtol=2e-3, atol=0)
