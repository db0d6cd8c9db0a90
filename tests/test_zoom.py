"""Zoom, against a slow reference in plain numbers, and in the company of torch's schedulers."""

import copy
import io
from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR, SequentialLR

import alrao

INTERVAL = (1e-5, 10.0)


def a_model(copies=5, hidden=6):
    return alrao.Alrao(nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3)), copies)


def believe(model, weights):
    """Make these the posterior."""
    weights = torch.tensor(weights, dtype=torch.float64)
    model.head.averaging._state[: len(weights)] = weights / weights.sum()


def learn(model, optimizer, *schedulers, seed=0):
    """One step on a batch of noise."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    for scheduler in schedulers:
        scheduler.step()


def idle(optimizer):
    """Let torch believe that the optimizer has stepped."""
    optimizer._opt_called = True


def all_rates(optimizer):
    return [optimizer.rates(p) for group in optimizer.param_groups for p in group["params"]]


def slowly(rates, posteriors, interval, steps, width, memory, every):
    """The rates after these posteriors, by the formula of the documentation, one number at a time."""
    low, high = log(interval[0]), log(interval[1])
    places = [(log(rate) - low) / (high - low) for rate in rates]
    centre, begin, end, shrinking = (low + high) / 2, low, high, True
    for t, posterior in enumerate(posteriors, start=1):
        total = sum(posterior)
        mean = sum(
            weight / total * (begin + j / (len(posterior) - 1) * (end - begin))
            for j, weight in enumerate(posterior)
        )
        if shrinking or abs(mean - centre) > 0.4 * (end - begin):
            centre += (mean - centre) / memory
        if t % every == 0 or t == steps:
            part = min(1.0, t / steps)
            shrinking = t < steps
            span = (1 - part) * (high - low) + part * min(log(width), high - low)
            middle = max(low + span / 2, min(high - span / 2, centre))
            begin, end = middle - span / 2, middle + span / 2
    return [exp(begin + place * (end - begin)) for place in places], (exp(begin), exp(end))


weights = st.lists(st.floats(0.001, 1.0), min_size=5, max_size=5)


@settings(deadline=None, max_examples=60)
@given(
    posteriors=st.lists(weights, min_size=1, max_size=40),
    steps=st.integers(1, 30),
    width=st.sampled_from([1.0, 1.5, 3.0, 100.0, 1e9]),
    memory=st.sampled_from([1.0, 3.0, 50.0]),
    every=st.integers(1, 7),
    seed=st.integers(0, 5),
)
def test_every_rate_is_where_the_formula_says(posteriors, steps, width, memory, every, seed):
    torch.manual_seed(seed)
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    drawn = all_rates(optimizer)
    zoom = alrao.Zoom(optimizer, steps, width=width, memory=memory, every=every)
    idle(optimizer)
    for posterior in posteriors:
        believe(model, posterior)
        zoom.step()
    for before, after in zip(drawn, all_rates(optimizer), strict=True):
        expected, ends = slowly(before.flatten().tolist(), posteriors, INTERVAL, steps, width, memory, every)
        torch.testing.assert_close(after.flatten(), torch.tensor(expected), rtol=2e-5, atol=0.0)
    assert zoom.interval == pytest.approx(ends, rel=1e-5)
    assert INTERVAL[0] * (1 - 1e-9) <= zoom.interval[0] <= zoom.interval[1] <= INTERVAL[1] * (1 + 1e-9)


def test_it_narrows_around_the_rate_that_is_believed_in():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)  # copies at 1e-5, 3e-4, 0.01, 0.3, 10
    zoom = alrao.Zoom(optimizer, 400, memory=20)
    idle(optimizer)
    low, high = log(1e-5), log(10)
    for _ in range(400):  # someone who knows that 0.1 is right
        now = torch.linspace(*map(log, zoom.interval), 5)
        believe(model, (-((now - log(0.1)) ** 2)).exp().add(1e-9).tolist())
        zoom.step()
    low, high = zoom.interval
    assert high / low == pytest.approx(3)
    assert 0.05 < (low * high) ** 0.5 < 0.2
    torch.testing.assert_close(
        model.head.rates.double(), torch.logspace(log(low), log(high), 5, base=exp(1.0), dtype=torch.float64),
        rtol=1e-5, atol=0.0,
    )  # fmt: skip


def test_once_narrow_it_stays_unless_an_end_wins():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = alrao.Zoom(optimizer, 10, memory=10, every=1)
    idle(optimizer)
    for _ in range(10):
        believe(model, [1, 1, 1, 1, 1])
        zoom.step()
    narrow = zoom.interval
    for _ in range(50):
        believe(model, [0, 0, 0, 1, 0])
        zoom.step()
    assert zoom.interval == narrow
    for _ in range(50):
        believe(model, [0, 0, 0, 0, 1])
        zoom.step()
    assert zoom.interval[0] > narrow[1]
    for _ in range(10_000):
        believe(model, [1, 0, 0, 0, 0])
        zoom.step()
    assert zoom.interval[0] == pytest.approx(1e-5), "it can go back to the very end of the first interval"


def test_a_group_with_another_interval_has_its_centre_at_the_same_place():
    model = a_model()
    body = [p for name, p in model.named_parameters() if not name.startswith("head.") and p.requires_grad]
    body = [p for p in body if all(p is not q for q in model.head.parameters())]
    optimizer = alrao.SGD(
        model, INTERVAL, params=[{"params": body, "lr": (1e-6, 1.0)}, {"params": model.head.parameters()}]
    )
    zoom = alrao.Zoom(optimizer, 100, memory=10)
    idle(optimizer)
    for _ in range(100):
        believe(model, [0, 0, 0, 1, 0])
        zoom.step()
    place = (log(zoom.interval[0] * zoom.interval[1]) / 2 - log(1e-5)) / log(1e6)
    centre = 1e-6 * 1e6**place
    for p in body:
        rates = optimizer.rates(p)
        assert (rates >= centre / 3**0.5 * 0.999).all()
        assert (rates <= centre * 3**0.5 * 1.001).all()


def test_a_group_with_one_rate_keeps_it():
    model = a_model()
    head = list(model.head.parameters())
    body = [p for p in model.parameters() if all(p is not q for q in head)]
    optimizer = alrao.SGD(model, INTERVAL, params=[{"params": body, "lr": 0.1}, {"params": head}])
    zoom = alrao.Zoom(optimizer, 5, every=1)
    for seed in range(10):
        learn(model, optimizer, zoom, seed=seed)
    assert all((optimizer.rates(p) == torch.tensor(0.1)).all() for p in body)
    assert zoom.interval[1] / zoom.interval[0] == pytest.approx(3)


@pytest.mark.parametrize(
    "build",
    [
        lambda model: alrao.SGD(model, momentum=0.9),
        lambda model: alrao.Adam(model),
        lambda model: alrao.AdamW(model, alrao.PerWeight((1e-5, 0.1))),
        lambda model: alrao.Rated(torch.optim.NAdam, model, (1e-5, 0.1)),
    ],
    ids=["SGD", "Adam", "PerWeight", "Rated"],
)
def test_the_step_is_at_the_rates_of_the_moment(build):
    """One step with rates that Zoom has moved is the step of an optimizer that was given these rates."""
    torch.manual_seed(0)
    model = a_model()
    optimizer = build(model)
    zoom = alrao.Zoom(optimizer, 4, every=1)
    for seed in range(6):
        learn(model, optimizer, zoom, seed=seed)
    twin = copy.deepcopy(model)
    other = build(twin)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    spread = [rate.max() / rate.min() for rate in all_rates(other)]
    assert max(spread) <= 3.001
    learn(model, optimizer, seed=7)
    learn(twin, other, seed=7)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_it_leaves_the_factor_to_other_schedulers():
    factors = []
    for with_zoom in (False, True):
        model = a_model()
        optimizer = alrao.SGD(model, INTERVAL)
        schedulers = [CosineAnnealingLR(optimizer, T_max=20)]
        if with_zoom:
            schedulers = [alrao.Zoom(optimizer, 5), *schedulers, alrao.Zoom(optimizer, 7)]
        seen = []
        for seed in range(20):
            learn(model, optimizer, *schedulers, seed=seed)
            seen.append(optimizer.param_groups[0]["lr"])
        factors.append(seen)
    assert factors[0] == factors[1]
    assert factors[0][-1] < 0.01


def test_chained_with_another_it_resumes_too():
    def start():
        torch.manual_seed(3)
        model = a_model()
        optimizer = alrao.Adam(model)
        chain = [alrao.Zoom(optimizer, 20, every=3), CosineAnnealingLR(optimizer, T_max=40)]
        return model, optimizer, ChainedScheduler(chain)

    model, optimizer, chain = start()
    for seed in range(10):
        learn(model, optimizer, chain, seed=seed)
    saved = copy.deepcopy([each.state_dict() for each in (model, optimizer, chain)])
    for seed in range(10, 30):
        learn(model, optimizer, chain, seed=seed)
    again = start()
    for each, state in zip(again, saved, strict=True):
        each.load_state_dict(state)
    for seed in range(10, 30):
        learn(*again, seed=seed)
    for p, q in zip(model.parameters(), again[0].parameters(), strict=True):
        assert torch.equal(p, q)


def test_chained_and_in_sequence():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = alrao.Zoom(optimizer, 10)
    chain = ChainedScheduler([zoom, CosineAnnealingLR(optimizer, T_max=20)])
    for seed in range(20):
        learn(model, optimizer, chain, seed=seed)
    assert zoom.interval[1] / zoom.interval[0] == pytest.approx(3)
    assert optimizer.param_groups[0]["lr"] < 1e-6

    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    warm = LinearLR(optimizer, 0.1, total_iters=10)
    zoom = alrao.Zoom(optimizer, 10)
    sequence = SequentialLR(optimizer, [warm, zoom], milestones=[10])
    for seed in range(10):
        learn(model, optimizer, sequence, seed=seed)
    assert zoom.interval == pytest.approx(INTERVAL)
    for seed in range(10):
        learn(model, optimizer, sequence, seed=seed)
    assert zoom.interval[1] / zoom.interval[0] == pytest.approx(3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.91), "as the warm-up left it"


@pytest.mark.parametrize("optimizer_first", [True, False])
@pytest.mark.parametrize("at", [3, 10, 15, 33])
def test_resumed_to_the_bit(at, optimizer_first):
    def start(seed):
        torch.manual_seed(seed)
        model = a_model()
        optimizer = alrao.Adam(model)
        return model, optimizer, alrao.Zoom(optimizer, 20, memory=15, every=4)

    model, optimizer, zoom = start(0)
    for seed in range(at):
        learn(model, optimizer, zoom, seed=seed)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), zoom.state_dict()], file)
    for seed in range(at, 50):
        learn(model, optimizer, zoom, seed=seed)
    file.seek(0)
    saved = torch.load(file)
    again, its_optimizer, its_zoom = start(1)  # other rates, until the state is loaded
    for seed in range(5):
        learn(again, its_optimizer, its_zoom, seed=seed)
    again.load_state_dict(saved[0])
    loads = [(its_optimizer, saved[1]), (its_zoom, saved[2])]
    for each, state in loads if optimizer_first else reversed(loads):
        each.load_state_dict(state)
    for seed in range(at, 50):
        learn(again, its_optimizer, its_zoom, seed=seed)
    assert its_zoom.interval == zoom.interval
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(model.posterior, again.posterior)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_was_moved_too_far_is_taken_back(momentum):
    """Along a direction that never changes, a feature is where its present rate would have brought it."""
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL, momentum=momentum)
    start = [p.detach().clone() for p in model.parameters()]
    drawn = all_rates(optimizer)
    zoom = alrao.Zoom(optimizer, 30, every=3)
    directions = [torch.randn_like(p) for p in start]
    way, speed = 0.0, 0.0
    for _ in range(30):
        for p, direction in zip(model.parameters(), directions, strict=True):
            p.grad = direction.clone()
        optimizer.step()
        zoom.step()
        speed = momentum * speed + 1
        way += speed
    for p, begin, direction, before, now in zip(
        model.parameters(), start, directions, drawn, all_rates(optimizer), strict=True
    ):
        fell = (now < before).expand_as(p)  # a rate that rises does not add to the way
        expected = (begin.double() - way * now * direction).float()
        assert fell.any()
        torch.testing.assert_close(p[fell], expected[fell], rtol=1e-4, atol=1e-5)
        assert ((p - begin).abs()[~fell] > 0).all()


def test_nothing_is_taken_back_unless_wanted_nor_once_narrow():
    for rewind, steps in ((False, 20), (True, 4)):
        model = a_model()
        optimizer = alrao.SGD(model, INTERVAL)
        zoom = alrao.Zoom(optimizer, steps, rewind=rewind, every=2)
        for seed in range(6):
            learn(model, optimizer, zoom, seed=seed)
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(8):
            zoom.step()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        assert zoom._start == []


def test_a_copy_that_ran_to_infinity_is_back_at_its_start():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = alrao.Zoom(optimizer, 20, every=1)
    start = model.head.weight.detach().clone()
    learn(model, optimizer, zoom)
    model.head.weight.data[4] = torch.inf
    learn(model, optimizer, zoom)
    assert torch.equal(model.head.weight[4], start[4])
    assert model.posterior.isfinite().all()


def test_a_group_added_later_is_moved_too():
    model = a_model()
    first, *others = model.parameters()
    optimizer = alrao.SGD(model, INTERVAL, params=others)
    zoom = alrao.Zoom(optimizer, 5, every=1)
    for seed in range(8):
        learn(model, optimizer, zoom, seed=seed)
    optimizer.add_param_group({"params": [first]})
    zoom.base_lrs.append(1.0)
    learn(model, optimizer, zoom)
    low, high = zoom.interval
    rates = optimizer.rates(first)
    assert (rates >= low * 0.999).all()
    assert (rates <= high * 1.001).all()


def test_the_centre_is_averaged_over_half_of_the_time_unless_told():
    model = a_model()
    assert alrao.Zoom(alrao.SGD(model), 50).memory == 25
    assert alrao.Zoom(alrao.SGD(model), 1).memory == 1
    assert alrao.Zoom(alrao.SGD(model), 50, memory=7).memory == 7


def test_no_memory_the_size_of_the_weights():
    model = a_model(hidden=64)
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = alrao.Zoom(optimizer, 5, every=1)
    for seed in range(6):
        learn(model, optimizer, zoom, seed=seed)
    kept = sum(place.numel() for places in zoom._places for place in places)
    assert kept == sum(rate.numel() for rate in all_rates(optimizer)) < 200


@pytest.mark.parametrize(
    ("build", "kwargs", "error", "words"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), 0.1), {}, TypeError, "alrao.SGD"),
        (lambda m: alrao.SGD(m, alrao.Redrawn(INTERVAL)), {}, ValueError, "drawn once"),
        (lambda m: alrao.SGD(m), {"steps": 0}, ValueError, "steps must be a whole number"),
        (lambda m: alrao.SGD(m), {"steps": 2.5}, ValueError, "2.5"),
        (lambda m: alrao.SGD(m), {"every": True}, ValueError, "every"),
        (lambda m: alrao.SGD(m), {"width": 0.5}, ValueError, "at least 1, got 0.5"),
        (lambda m: alrao.SGD(m), {"width": float("nan")}, ValueError, "width"),
        (lambda m: alrao.SGD(m), {"memory": 0}, ValueError, "memory"),
    ],
)
def test_refusals(build, kwargs, error, words):
    with pytest.raises(error, match=words):
        alrao.Zoom(build(a_model()), **{"steps": 10, **kwargs})


@pytest.mark.filterwarnings("ignore:lr=0.1 gives all", "ignore:with one copy")
def test_copies_without_rates_to_choose_from_are_refused():
    with pytest.raises(ValueError, match=r"must have an interval, got Constant\(lr=0.1\)"):
        alrao.Zoom(alrao.SGD(a_model(), 0.1), 10)
    with pytest.raises(ValueError, match="there is only one"):
        alrao.Zoom(alrao.SGD(a_model(copies=1)), 10)
