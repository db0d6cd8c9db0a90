"""Copies that sleep: who does, the posterior, a pass and weights meanwhile, and runs that resume."""

from __future__ import annotations

import copy
from math import exp, prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.switching import enumerate_switches
from torch import nn
from torch.testing import assert_close

import alrao
from alrao.auto.step import newest_share
from alrao.contrib.zoom import Zoom
from alrao.heads import vocabulary
from alrao.runtime import sleeping

COPIES, CLASSES, INPUTS = 6, 5, 4


def make_net(hidden=8):
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return alrao.Alrao(make_net().to(dtype), COPIES)


def make_batch(step, rows=16, scale=1.0):
    generator = torch.Generator().manual_seed(step)
    x = scale * torch.randn(rows, INPUTS, generator=generator)
    teacher = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(99))
    return x, (x @ teacher / scale).argmax(1)


def train(model, optimizer, steps, **batches):
    for step in steps:
        x, y = make_batch(step, **batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda model, **o: alrao.SGD(model, lr=(1e-4, 10), **o),
    "momentum": lambda model, **o: alrao.SGD(model, lr=(1e-4, 10), momentum=0.9, weight_decay=1e-4, **o),
    "adam": lambda model, **o: alrao.Adam(model, lr=(1e-5, 1), **o),
    "adamw": lambda model, **o: alrao.AdamW(model, lr=(1e-5, 1), amsgrad=True, **o),
    "auto": lambda model, **o: alrao.Auto(model, steps=167, **o),
}


@pytest.fixture
def short_cycles(monkeypatch):
    monkeypatch.setattr(sleeping, "CYCLE", 11)
    monkeypatch.setattr(sleeping, "LOOKS", 2)
    monkeypatch.setattr(sleeping, "MAX_INTERVAL", 5)
    monkeypatch.setattr(sleeping, "NEGLIGIBLE", 0.03)


def put_to_sleep(model, awake, part=None, mixing=None):
    """Let only some copies be awake; by default all of them take part, and are in the mixture."""
    head = model.head
    head.awake, head.part, head.mixing = awake, part or awake, mixing or awake


def asleep(model):
    return COPIES - len(range(COPIES)[model.head.awake or slice(None)])


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
