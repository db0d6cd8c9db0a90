"""Copies that sleep: what their weights are meanwhile, that they wake, and that runs resume."""

from __future__ import annotations

import copy
from math import prod

import pytest
import torch
import torch.nn.functional as F
from support.sleeping import (
    CLASSES,
    COPIES,
    INPUTS,
    OPTIMIZERS,
    asleep,
    make_batch,
    make_model,
    put_to_sleep,
    shorten_cycles,
    train,
)
from torch import nn
from torch.testing import assert_close

import alrao
from alrao.auto.step import newest_share


@pytest.fixture
def short_cycles(monkeypatch):
    shorten_cycles(monkeypatch)


# The weights of sleepers.


STANDS_FOR = torch.tensor([5.0, 3.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None, None]
"""Steps that a step of each copy stands for: those from number 2 on are awake, number 5 is not."""


def looked_at(name, **options):
    """Return a model after a look, its optimizer, the weights and the state before, and the gradient."""
    model = make_model()
    torch.manual_seed(1)
    optimizer = OPTIMIZERS[name](model, sleep=True, **options)
    train(model, optimizer, range(60))
    put_to_sleep(model, slice(2, 5), part=slice(0, 6))
    optimizer._sleep.since = STANDS_FOR.flatten().int().tolist()
    before = copy.deepcopy((model.head.weight.detach(), optimizer.state[model.head.weight]))
    x, y = make_batch(60)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    grad = model.head.weight.grad.clone()
    optimizer.step()
    return model, optimizer, before, grad


def test_a_look_is_a_step_of_sgd_for_those_that_were_missed():
    model, optimizer, (weight, _), grad = looked_at("sgd")
    rate = optimizer.copy_rates()[:, None, None]
    assert_close(model.head.weight.detach(), (weight - STANDS_FOR * rate * grad).float())


def test_a_look_moves_momentum_as_if_the_gradient_had_come_that_often():
    model, optimizer, (weight, state), grad = looked_at("momentum")
    grad = grad.double() + 1e-4 * weight
    momentum = state["momentum_buffer"].double()
    for j in range(COPIES):
        for _ in range(int(STANDS_FOR[j])):
            momentum[j] = 0.9 * momentum[j] + grad[j]
    assert_close(optimizer.state[model.head.weight]["momentum_buffer"], momentum.float())
    step = STANDS_FOR * optimizer.copy_rates()[:, None, None] * momentum
    assert_close(model.head.weight.detach(), (weight - step).float())


def test_a_look_moves_adams_moments_as_if_the_gradient_had_come_that_often():
    model, optimizer, (weight, state), grad = looked_at("adam")
    m, v = state["exp_avg"].double(), state["exp_avg_sq"].double()
    for j in range(COPIES):
        for _ in range(int(STANDS_FOR[j])):
            m[j] = 0.9 * m[j] + 0.1 * grad[j]
            v[j] = 0.999 * v[j] + 0.001 * grad[j] ** 2
    now = optimizer.state[model.head.weight]
    assert now["step"] == 61
    assert_close(now["exp_avg"], m.float())
    assert_close(now["exp_avg_sq"], v.float())
    rate = STANDS_FOR * optimizer.copy_rates()[:, None, None]
    step = rate * (m / (1 - 0.9**61)) / ((v / (1 - 0.999**61)).sqrt() + 1e-8)
    assert_close(model.head.weight.detach(), (weight - step).float())


def test_the_average_of_auto_gets_the_weight_of_all_missed_steps():
    for k, slept in ((60, 25), (30, 30), (7, 3)):
        kept = prod(1 - newest_share(i) for i in range(k - slept + 1, k + 1))
        assert newest_share(k, slept) == pytest.approx(1 - kept, abs=1e-12)


def test_between_looks_sleepers_and_their_state_stay(short_cycles):
    for name in OPTIMIZERS:
        model = make_model()
        optimizer = OPTIMIZERS[name](model, sleep=True)
        train(model, optimizer, range(55))
        put_to_sleep(model, slice(2, 4))
        weight = model.head.weight
        before = copy.deepcopy([weight.detach(), optimizer.state[weight]])
        optimizer._sleep.position, optimizer._sleep.every = 0, [9] * COPIES
        optimizer._sleep.behind = [0.0] * COPIES
        train(model, optimizer, range(55, 58))
        moved = (weight.detach() != before[0]).flatten(1).any(1)
        assert moved.tolist() == [False, False, True, True, False, False]
        for key, value in before[1].items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                rows = torch.tensor([0, 1, 4, 5])
                assert torch.equal(optimizer.state[weight][key][rows], value[rows])


# Runs.


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("model_first", [True, False])
def test_a_run_killed_while_copies_sleep_resumes_to_the_bit(name, model_first, short_cycles):
    model = make_model()
    torch.manual_seed(1)
    optimizer = OPTIMIZERS[name](model, sleep=True)
    begin = 69 if name == "auto" else 60  # in the middle of a cycle
    train(model, optimizer, range(begin))
    put_to_sleep(model, slice(3, 5))  # not all of these runs have settled
    optimizer._sleep.behind = [-0.1] * COPIES
    optimizer._sleep.every = [5, 4, 2, 1, 1, 1]
    parts = set()
    for step in range(begin, begin + 13):
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step % 3 == 0:
            other = make_model()
            torch.manual_seed(2)
            again = OPTIMIZERS[name](other, sleep=True)
            if model_first:
                other.load_state_dict(saved[0])
            again.load_state_dict(saved[1])
            if not model_first:
                other.load_state_dict(saved[0])
            ahead, ahead_optimizer = copy.deepcopy((model, optimizer))
            train(ahead, ahead_optimizer, range(step, step + 4))
            train(other, again, range(step, step + 4))
            assert (other.head.awake, other.head.part) == (ahead.head.awake, ahead.head.part)
            for a, b in zip(other.state_dict().values(), ahead.state_dict().values(), strict=True):
                assert torch.equal(a, b)
        parts.add(str(model.head.part))
        train(model, optimizer, [step])
    assert len(parts) >= 3  # those awake, and some looks


def test_evaluation_is_of_the_whole_mixture(short_cycles):
    model = make_model()
    train(model, alrao.SGD(model, lr=(1e-4, 10), sleep=True), range(60))
    assert asleep(model) > 0
    x, _ = make_batch(0)
    whole = copy.deepcopy(model)
    whole.head.part = None
    with torch.no_grad():
        assert torch.equal(model(x), whole(x))
    assert torch.equal(model.eval()(x), whole.eval()(x))
    assert_close(model.collapse(mixture=True)(x), model(x).as_subclass(torch.Tensor))


def test_another_optimizer_wakes_all(short_cycles):
    model = make_model()
    train(model, alrao.SGD(model, lr=(1e-4, 10), sleep=True), range(60))
    assert asleep(model) > 0
    train(model, alrao.SGD(model, lr=(1e-4, 10)), range(60, 61))
    assert asleep(model) == 0
    assert (model.posterior > 0).all()


def test_a_training_pass_that_computes_all_copies_wakes_them(short_cycles):
    model = make_model()
    optimizer = alrao.SGD(model, lr=(1e-4, 10), sleep=True)
    train(model, optimizer, range(60))
    model.eval()  # with frozen statistics of BatchNorm, for example; a compiled model does the same
    before = model.head.weight.detach().clone()
    assert asleep(model) > 0
    train(model, optimizer, range(60, 61))
    assert asleep(model) == 0
    assert (model.head.weight != before).flatten(1).any(1).all()


def test_resetting_the_posterior_wakes_all(short_cycles):
    model = make_model()
    train(model, alrao.SGD(model, lr=(1e-4, 10), sleep=True), range(60))
    model.reset_posterior()
    assert asleep(model) == 0
    assert_close(model.posterior, torch.full((COPIES,), 1 / COPIES))


@pytest.mark.parametrize(("name", "faster"), [("sgd", False), ("sgd", True), ("adam", True)])
def test_a_sleeper_wakes_when_the_best_rate_changes_late(name, faster):
    # A single layer. With inputs ten times as large, stable rates of SGD are a hundredth of what they were.
    scales = (10.0, 0.3) if faster else (1.0, 30.0)
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Linear(INPUTS, CLASSES), COPIES)
    optimizer = OPTIMIZERS[name](model, sleep=True)
    train(model, optimizer, range(450), scale=scales[0])
    winner, awake = int(model.posterior.argmax()), model.head.awake
    assert asleep(model) >= 2
    train(model, optimizer, range(450, 1300), scale=scales[1])
    later = int(model.posterior.argmax())
    assert later > winner if faster else later < winner
    assert later not in range(COPIES)[awake]


@pytest.mark.filterwarnings("ignore:.*at the end of Auto.s search")
def test_copies_wake_under_auto_when_the_best_rate_changes_late():
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Linear(INPUTS, CLASSES), COPIES)
    optimizer = alrao.Auto(model, lr=0.3, betas=(0.7, 0.99), sleep=True)
    train(model, optimizer, range(450))
    winner, awake = int(model.posterior.argmax()), model.head.awake
    assert asleep(model) >= 2
    train(model, optimizer, range(450, 1300), scale=1000.0)
    later = int(model.posterior.argmax())
    assert later != winner
    assert later not in range(COPIES)[awake]
