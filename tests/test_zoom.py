"""Zoom, against a slow reference in plain numbers."""

from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoomed import INTERVAL, a_model, all_rates, believe, idle, learn

import alrao


def slowly(rates, posteriors, interval, steps, width, memory, every, copies=True):
    """The rates after these posteriors, by the formula of the documentation, one number at a time."""
    low, high = log(interval[0]), log(interval[1])
    places = [(log(rate) - low) / (high - low) for rate in rates]
    centre, begin, end, shrinking = (low + high) / 2, low, high, True
    for t, posterior in enumerate(posteriors, start=1):
        total = sum(posterior)
        first, last = (begin, end) if copies else (low, high)  # the rates of the copies
        mean = sum(
            weight / total * (first + j / (len(posterior) - 1) * (last - first))
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
    copies=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_rate_is_where_the_formula_says(posteriors, steps, width, memory, every, copies, seed):
    torch.manual_seed(seed)
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    drawn = all_rates(optimizer)
    zoom = alrao.Zoom(optimizer, steps, width=width, memory=memory, every=every, copies=copies)
    idle(optimizer)
    for posterior in posteriors:
        believe(model, posterior)
        zoom.step()
    for p, before, after in zip(model.parameters(), drawn, all_rates(optimizer), strict=True):
        rates = before.flatten().tolist()
        expected, ends = slowly(rates, posteriors, INTERVAL, steps, width, memory, every, copies)
        if not copies and any(p is q for q in model.head.parameters()):
            expected = rates
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


def test_copies_that_keep_their_rates_keep_their_weights():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = alrao.Zoom(optimizer, 10, every=5, copies=False)
    for seed in range(9):
        learn(model, optimizer, zoom, seed=seed)
    learn(model, optimizer, seed=9)
    before = [p.detach().clone() for p in model.parameters()]
    believe(model, [1, 0, 0, 0, 0])
    zoom.step()  # a lower rate for many features of the body
    moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert moved == [all(p is not q for q in model.head.parameters()) for p in model.parameters()]
    torch.testing.assert_close(
        model.head.rates.double(), alrao.LogUniform(*INTERVAL).grid(5), rtol=1e-6, atol=0
    )


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
