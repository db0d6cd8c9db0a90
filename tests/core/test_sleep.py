"""Copies that sleep: who, and what the posterior and a pass are meanwhile."""

from __future__ import annotations

import copy
from math import exp

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.sleeping import (
    CLASSES,
    COPIES,
    OPTIMIZERS,
    asleep,
    make_batch,
    make_model,
    put_to_sleep,
    shorten_cycles,
    train,
)
from support.switching import enumerate_switches
from torch import nn
from torch.testing import assert_close

import alrao
from alrao.contrib.zoom import Zoom
from alrao.heads import vocabulary
from alrao.runtime import sleeping


@pytest.fixture
def short_cycles(monkeypatch):
    shorten_cycles(monkeypatch)


# Nothing changes while all are awake.


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_long_as_all_are_awake_nothing_changes(name, monkeypatch, short_cycles):
    monkeypatch.setattr(sleeping, "NEGLIGIBLE", 0.0)
    models = []
    for sleep in (True, False):
        models.append(make_model())
        torch.manual_seed(1)
        train(models[-1], OPTIMIZERS[name](models[-1], sleep=sleep), range(70))
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_by_default_copies_sleep_only_under_auto_where_it_pays():
    small, large_model = make_model(), alrao.Alrao(nn.Linear(128, 1000))
    for make in (alrao.SGD, alrao.Adam, alrao.AdamW):
        assert not make(small).sleeps
        assert not make(large_model).sleeps
    assert not alrao.Auto(small).sleeps
    assert alrao.Auto(large_model).sleeps
    assert not alrao.Auto(large_model, sleep=False).sleeps
    assert not alrao.Auto(large_model, capturable=True).sleeps
    assert not alrao.Auto(nn.Linear(1024, 1025)).sleeps
    regression = alrao.Alrao(nn.Linear(128, 1000), likelihood="gaussian")
    assert not alrao.Auto(regression).sleeps
    bayes = alrao.Alrao(nn.Linear(128, 1000), averaging=alrao.paper.BayesianAverage(10))
    assert not alrao.Auto(bayes).sleeps


def test_under_auto_copies_of_a_large_layer_fall_asleep_without_being_asked_to(monkeypatch, short_cycles):
    monkeypatch.setattr(sleeping, "WORTHWHILE", 0)
    model = make_model()
    train(model, alrao.Auto(model, steps=100), range(50 + 3 * sleeping.CYCLE))
    assert asleep(model) > 0


# The posterior.


def literal_posterior(evidence, schedule, theta, copies):
    """Enumerate all switching sequences; copies that do not take part are as far behind as they were last."""
    likelihoods, behind = [], [None] * copies
    for observed, (awake, part) in zip(evidence, schedule, strict=True):
        weights = np.ones(copies) / copies
        if likelihoods:
            weights = enumerate_switches(np.array(likelihoods), theta)
        mixed = sum(weights[j] * exp(observed[j]) for j in awake) / sum(weights[j] for j in awake)
        best = max(weights[j] * exp(observed[j]) for j in awake)
        row = []
        for j in range(copies):
            if j in part:
                behind[j] = exp(observed[j]) / mixed
                row.append(exp(observed[j]))
            else:
                row.append(min(mixed * behind[j], best / weights[j]))
        likelihoods.append(row)
    return torch.from_numpy(enumerate_switches(np.array(likelihoods), theta))


@pytest.mark.parametrize("seed", range(2))
def test_posterior_equals_enumeration_with_what_stands_in_for_sleepers(seed, monkeypatch):
    for name, value in {"CYCLE": 3, "LOOKS": 1, "MAX_INTERVAL": 2, "NEGLIGIBLE": 0.2}.items():
        monkeypatch.setattr(sleeping, name, value)
    model = alrao.Alrao(nn.Linear(2, 3), averaging=alrao.Switch(4, theta=0.6))
    head, sleep = model.head, sleeping.Sleep(model.head, True)
    generator = torch.Generator().manual_seed(seed)
    evidence, schedule = [], []
    for step in range(6):
        awake, part = (range(4)[rows or slice(None)] for rows in (head.awake, head.part))
        schedule.append((awake, part))
        numbers = (torch.rand(4, generator=generator) * 0.3 - torch.tensor([1.2, 1.0, 0.0, 1.2])).tolist()
        numbers[0] += 2.0 * (step >= 4)  # a sleeping copy gets better
        evidence.append(numbers)
        given = [x if j in part else 7.0 for j, x in enumerate(numbers)]
        sleep.observe(given, lambda: torch.tensor([1e-3, 0.1, 1.0, 10.0]), allowed=True)
        if step >= 2:
            expected = literal_posterior(evidence, schedule, 0.6, 4)
            assert_close(head.averaging.weights, expected, rtol=1e-10, atol=1e-12)
    # The winner and the next slower copy are awake; then the slowest is looked at, then the fastest.
    assert [tuple(part) for _, part in schedule[3:]] == [(1, 2), (0, 1, 2), (1, 2, 3)]


def test_what_is_held_of_a_sleeper_brings_it_at_most_level():
    model = make_model()
    head, sleep = model.head, sleeping.Sleep(model.head, True)
    put_to_sleep(model, slice(2, 3), part=slice(2, 4))
    sleep._behind = [0.0] * COPIES
    sleep.observe([0.0, 0.0, -1.0, 2.0, 0.0, 0.0], lambda: torch.ones(COPIES), allowed=True)
    before = head.averaging.weights
    assert before[3] > 2 * before[2]  # it was looked at: as it is
    head.part = slice(2, 3)
    sleep.observe([0.0, 0.0, -1.0, 0.0, 0.0, 0.0], lambda: torch.ones(COPIES), allowed=True)
    after = head.averaging.weights
    assert_close(after[3], after[2], rtol=0.01, atol=0)
    assert_close(after[0], after[1])


def test_if_all_that_are_awake_fail_the_others_wake():
    model = make_model()
    optimizer = alrao.SGD(model, lr=(1e-4, 1e-2), sleep=True)
    put_to_sleep(model, slice(2, 4))
    with torch.no_grad():
        model.head.weight[2:4] = torch.nan
    train(model, optimizer, range(1))
    assert model.head.part is None
    assert model.posterior[2:4].tolist() == [0, 0]
    train(model, optimizer, range(1, 3))
    assert model.posterior.isfinite().all()


# One pass.


@pytest.mark.parametrize("targets", ["hard", "soft", "rows"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("rows", "mixing"), [((2, 3), (2, 3)), ((1, 4), (1, 4)), ((1, 4), (2, 3)), ((0, 5), (2, 4))]
)
def test_sleepers_are_left_out_of_a_pass_and_copies_without_weight_of_the_mixture(
    rows, mixing, chunked, targets, monkeypatch
):
    if chunked:
        monkeypatch.setattr(vocabulary, "LARGE", 1)
    rows, mixing = slice(*rows), slice(*mixing)
    model = make_model(torch.float64)
    head = model.head
    head.averaging.update(torch.randn(COPIES))
    put_to_sleep(model, rows, mixing=mixing)
    x, y = make_batch(0)
    x = x.double()
    of_classes = F.one_hot(y, CLASSES).double()
    share = torch.full_like(x[:, :1], 1 / len(x))
    if targets == "soft":
        of_classes = 0.9 * of_classes + 0.1 * of_classes.flip(1)
        loss = F.cross_entropy(model(x), of_classes)
    elif targets == "rows":
        share = torch.rand_like(share)
        loss = F.cross_entropy(model(x), y, reduction="none") @ share[:, 0]
    else:
        loss = F.cross_entropy(model(x), y)
    loss.backward()

    def nll(log_p):
        return -(log_p * of_classes * share).sum((-2, -1))

    z = model.net[:2](x)
    weight, bias = head.weight.detach()[rows].requires_grad_(), head.bias.detach()[rows].requires_grad_()
    a = head.averaging.weights
    a = torch.where(torch.isin(torch.arange(COPIES), torch.arange(COPIES)[mixing]), a, 0)[rows]
    a = a / a.sum()
    log_p = (torch.einsum("rd,jkd->jrk", z, weight.detach()) + bias.detach()[:, None]).log_softmax(-1)
    mixture = nll((a[:, None, None] * log_p.exp()).sum(0).log())
    assert_close(loss.detach(), mixture.detach(), rtol=1e-12, atol=0)
    (expected,) = torch.autograd.grad(mixture, model.net[0].weight)
    assert_close(model.net[0].weight.grad, expected, rtol=1e-10, atol=1e-14)
    of_each = nll((torch.einsum("rd,jkd->jrk", z.detach(), weight) + bias[:, None]).log_softmax(-1))
    of_each.sum().backward()
    full_weight, full_bias = torch.zeros_like(head.weight), torch.zeros_like(head.bias)
    full_weight[rows], full_bias[rows] = weight.grad, bias.grad
    assert_close(head.weight.grad, full_weight, rtol=1e-10, atol=1e-14)
    assert_close(head.bias.grad, full_bias, rtol=1e-10, atol=1e-14)
    found = head.evidence.grad
    assert_close(found[rows], of_each.detach(), rtol=1e-10, atol=0)
    assert_close(found[COPIES], -share.sum(), rtol=1e-10, atol=0)
    assert found[COPIES + 1 :].tolist() == [0, len(x)]
    assert found[: rows.start].tolist() == [0] * rows.start


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("failed", [1, 2])
def test_a_failed_copy_spoils_nothing_while_others_sleep(failed, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(vocabulary, "LARGE", 1)
    model = make_model()
    put_to_sleep(model, slice(1, 3), mixing=slice(2, 3))
    with torch.no_grad():
        model.head.weight[failed] = torch.nan
    x, y = make_batch(0)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.head.evidence.grad[failed] == torch.inf  # the likelihood is 0
    if failed == 1:  # it is only compared
        healthy = F.cross_entropy(model.net[:2](x) @ model.head.weight[2].T + model.head.bias[2], y)
        assert_close(loss.detach(), healthy.detach())


def test_gradients_that_somebody_keeps_are_not_overwritten():
    model = make_model()
    put_to_sleep(model, slice(2, 3))
    fresh = copy.deepcopy(model)

    def gradient(of, step):
        of.zero_grad()
        x, y = make_batch(step)
        F.cross_entropy(of(x), y).backward()
        return of.head.weight.grad

    first = gradient(model, 0)
    known = first.clone()
    second = gradient(model, 1)
    assert torch.equal(first, known)
    assert torch.equal(second, gradient(fresh, 1))
    second.add_(1.0)  # noise of a user
    del first, second
    assert torch.equal(gradient(model, 2), gradient(fresh, 2))
    x, y = make_batch(3)
    F.cross_entropy(model(x), y).backward()  # accumulation
    total = gradient(fresh, 2) + gradient(fresh, 3)
    assert_close(model.head.weight.grad, total)
    model.head.part = slice(1, 3)
    fresh.head.part = slice(1, 3)
    assert torch.equal(gradient(model, 4), gradient(fresh, 4))
    model.head.part = fresh.head.part = slice(2, 3)
    assert torch.equal(gradient(model, 5), gradient(fresh, 5))  # and 0 again where it was not
    model.zero_grad()
    memory = {gradient(model, step).data_ptr() for step in range(3)}
    assert len(memory) == 1  # nobody keeps them: no new memory, and no zeros written again


# Refusals.


def test_sleep_is_refused_where_no_copy_can():
    regression = alrao.Alrao(nn.Linear(3, 2), likelihood="gaussian")
    with pytest.raises(ValueError, match="GaussianHead"):
        alrao.SGD(regression, sleep=True)
    bayes = alrao.Alrao(nn.Linear(3, 2), averaging=alrao.paper.BayesianAverage(4))
    with pytest.raises(ValueError, match="BayesianAverage"):
        alrao.SGD(bayes, sleep=True)
    with pytest.raises(ValueError, match="sleep=False"):
        Zoom(alrao.SGD(make_model(), sleep=True), steps=10)
