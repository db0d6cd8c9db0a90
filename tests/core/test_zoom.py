"""Zoom: against a slow reference in plain numbers, and beside optimizers, schedulers and checkpoints."""

import copy
import io
import pickle
from math import exp, inf, log

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import ignore_sequential_warning
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR, SequentialLR

import alrao
from alrao.contrib.zoom import Zoom

INTERVAL = (1e-5, 10.0)


def a_model(copies=5, hidden=6):
    return alrao.Alrao(nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3)), copies)


def set_posterior(model, weights):
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
    """Tell torch that the optimizer has stepped."""
    optimizer._opt_called = True


def all_rates(optimizer):
    return [optimizer.rates(p) for group in optimizer.param_groups for p in group["params"]]


def under_way(**options):
    """A model in the middle of narrowing, with the move of the tenth step to come."""
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 10, every=5, **options)
    for seed in range(9):
        learn(model, optimizer, zoom, seed=seed)
    learn(model, optimizer, seed=9)
    return model, optimizer, zoom


# The intervals and the weights.


def slowly(posteriors, interval, steps, width, copies, every):
    """The intervals of features and of copies after these posteriors, by the formula, in plain numbers."""
    low, high = log(interval[0]), log(interval[1])
    centre, features, of_copies, shrinking = (low + high) / 2, (low, high), (low, high), True
    for t, posterior in enumerate(posteriors, start=1):
        begin, end = of_copies
        last = len(posterior) - 1
        rates = [begin + j / last * (end - begin) for j in range(last + 1)]
        mean = sum(w * rate for w, rate in zip(posterior, rates, strict=True)) / sum(posterior)
        if shrinking or abs(mean - centre) > 0.4 * (features[1] - features[0]):
            centre += (mean - centre) / max(1, steps / 2)
        if t % every == 0 or t == steps:
            part = min(1.0, t / steps)
            shrinking = t < steps
            features, of_copies = (
                around(centre, (1 - part) * (high - low) + part * min(log(ratio), high - low), low, high)
                for ratio in (width, copies)
            )
    return features, of_copies


def around(centre, span, low, high):
    middle = max(low + span / 2, min(high - span / 2, centre))
    return middle - span / 2, middle + span / 2


def check_rates(drawn, now, ends):
    """They are at the places in ``ends`` that they had in the first interval."""
    low, high = log(INTERVAL[0]), log(INTERVAL[1])
    places = (drawn.double().log() - low) / (high - low)
    expected = (ends[0] + places * (ends[1] - ends[0])).exp()
    torch.testing.assert_close(now.double(), expected, rtol=2e-5, atol=0.0)


weights = st.lists(st.floats(2**-10, 1.0, width=16), min_size=5, max_size=5)
at_an_end = st.sampled_from([[1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0], [0, 0, 0, 0.2, 1.0]])


@settings(deadline=None, max_examples=100)
@given(
    posteriors=st.lists(weights, min_size=1, max_size=40),
    later=st.lists(at_an_end, max_size=20),
    steps=st.integers(1, 30),
    width=st.sampled_from([1.0, 1.5, 3.0, 100.0, 1e9]),
    copies=st.sampled_from([1.0, 3.0, 30.0, inf]),
    every=st.integers(1, 7),
    seed=st.integers(0, 5),
)
def test_every_rate_is_where_the_formula_says(posteriors, later, steps, width, copies, every, seed):
    torch.manual_seed(seed)
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    drawn = all_rates(optimizer)
    options = {"width": width, "copies": copies, "every": every}
    zoom = Zoom(optimizer, steps, **options)
    idle(optimizer)
    for posterior in posteriors + later:
        set_posterior(model, posterior)
        zoom.step()
    features, of_copies = slowly(posteriors + later, INTERVAL, steps, **options)
    for p, before, after in zip(model.parameters(), drawn, all_rates(optimizer), strict=True):
        is_copies = any(p is q for q in model.head.parameters())
        check_rates(before, after, of_copies if is_copies else features)
    assert zoom.interval == pytest.approx([exp(end) for end in features], rel=1e-5)
    assert INTERVAL[0] * (1 - 1e-9) <= zoom.interval[0] <= zoom.interval[1] <= INTERVAL[1] * (1 + 1e-9)


def knowing(optimizer, right):
    """The posterior that favours the right rate, of the copies as they are now."""
    distance = optimizer.copy_rates().log() - log(right)
    return (-(distance**2)).softmax(0).tolist()


def test_it_narrows_around_the_rate_that_is_believed_in():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)  # copies at 1e-5, 3e-4, 0.01, 0.3, 10
    zoom = Zoom(optimizer, 400)
    idle(optimizer)
    for _ in range(400):
        set_posterior(model, knowing(optimizer, 0.1))
        zoom.step()
    low, high = zoom.interval
    assert high / low == pytest.approx(3)
    assert 0.05 < (low * high) ** 0.5 < 0.2
    middle = (low * high) ** 0.5
    torch.testing.assert_close(
        optimizer.copy_rates(),
        torch.logspace(log(middle / 300**0.5), log(middle * 300**0.5), 5, base=exp(1.0), dtype=torch.float64),
        rtol=1e-5, atol=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(("lie", "right"), [(0, 1.0), (4, 1e-4)])
def test_a_posterior_that_was_wrong_early_does_not_decide_for_good(lie, right):
    """The features' interval is as far off as can be; the copies, which look further, find the way back."""
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 150)
    idle(optimizer)
    for step in range(1000):
        set_posterior(model, [j == lie for j in range(5)] if step < 150 else knowing(optimizer, right))
        zoom.step()
        if step == 150:
            assert not zoom.interval[0] / 1000 < right < zoom.interval[1] * 1000
    low, high = zoom.interval
    assert low < right < high
    assert high / low == pytest.approx(3)


def test_once_narrow_it_stays_unless_an_end_wins():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 10, copies=3, every=1)
    idle(optimizer)
    for _ in range(10):
        set_posterior(model, [1, 1, 1, 1, 1])
        zoom.step()
    narrow = zoom.interval
    for _ in range(50):
        set_posterior(model, [0, 0, 0, 1, 0])
        zoom.step()
    assert zoom.interval == narrow
    for _ in range(50):
        set_posterior(model, [0, 0, 0, 0, 1])
        zoom.step()
    assert zoom.interval[0] > narrow[1]


@pytest.mark.parametrize("head_first", [True, False])
def test_a_group_with_another_interval_has_its_centre_at_the_same_place(head_first):
    model = a_model()
    params = groups(model, (1e-6, 1.0))
    optimizer = alrao.SGD(model, INTERVAL, params=params if head_first else params[::-1])
    body = params[1]["params"]
    zoom = Zoom(optimizer, 100)
    idle(optimizer)
    for _ in range(100):
        set_posterior(model, [0, 0, 0, 1, 0])
        zoom.step()
    place = (log(zoom.interval[0] * zoom.interval[1]) / 2 - log(1e-5)) / log(1e6)
    centre = 1e-6 * 1e6**place
    for p in body:
        rates = optimizer.rates(p)
        assert (rates >= centre / 3**0.5 * 0.999).all()
        assert (rates <= centre * 3**0.5 * 1.001).all()


def test_a_group_with_one_rate_keeps_it():
    model = a_model()
    params = groups(model, 0.1)
    optimizer = alrao.SGD(model, INTERVAL, params=params)
    body = params[1]["params"]
    zoom = Zoom(optimizer, 5, every=1)
    for seed in range(10):
        learn(model, optimizer, zoom, seed=seed)
    assert all((optimizer.rates(p) == torch.tensor(0.1)).all() for p in body)
    assert zoom.interval[1] / zoom.interval[0] == pytest.approx(3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.filterwarnings("ignore:the copies of the head have gradients")  # set by hand
def test_what_was_moved_too_far_is_taken_back(momentum):
    """Along a direction that never changes, a feature is where its present rate would have brought it."""
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL, momentum=momentum)
    start = [p.detach().clone() for p in model.parameters()]
    drawn = all_rates(optimizer)
    zoom = Zoom(optimizer, 30, every=3)
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


def test_weights_whose_rates_rise_are_left_as_they_are():
    model, optimizer, zoom = under_way()
    weights, rates = [p.detach().clone() for p in model.parameters()], all_rates(optimizer)
    set_posterior(model, [0, 0, 1, 0, 0])
    zoom.step()
    fell = [(now < before) for before, now in zip(rates, all_rates(optimizer), strict=True)]
    assert any(f.any() for f in fell)
    assert not all(f.all() for f in fell)
    for p, before, lower in zip(model.parameters(), weights, fell, strict=True):
        assert torch.equal((p != before) & ~lower, torch.zeros_like(p, dtype=torch.bool)), "to the bit"


def test_copies_that_keep_their_rates_keep_their_weights():
    model, optimizer, zoom = under_way(copies=inf)
    before = model.head.weight.detach().clone()
    set_posterior(model, [1, 0, 0, 0, 0])
    zoom.step()
    torch.testing.assert_close(model.head.weight, before, rtol=1e-5, atol=1e-6)
    grid = alrao.LogUniform(*INTERVAL).grid(5)
    torch.testing.assert_close(optimizer.copy_rates(), grid, rtol=1e-6, atol=0)


@pytest.mark.parametrize("prepare", ["load", "cast", "freeze"])
@pytest.mark.filterwarnings("ignore:the copies of the head have gradients")  # set by hand
def test_the_start_is_what_the_first_step_finds(prepare):
    """Weights that are loaded, or sent by another process, after Zoom was built are where features began."""
    model = a_model()
    first = next(model.parameters())
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 4, every=1)
    if prepare == "cast":
        model.double()
        optimizer.load_state_dict(optimizer.state_dict())
    first.data.fill_(5.0)
    first.requires_grad_(prepare != "freeze")
    first.grad = None
    for _ in range(4):
        for p in model.parameters():
            p.grad = None if p is first else torch.zeros_like(p)
        optimizer.step()
        zoom.step()
    assert (first == 5.0).all()


def test_at_its_last_step_it_is_narrow_even_between_moves():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 7, every=5)
    for seed in range(7):
        learn(model, optimizer, zoom, seed=seed)
    assert zoom.interval[1] / zoom.interval[0] == pytest.approx(3)


@pytest.mark.parametrize("copies", [3.0, 300.0])
@pytest.mark.parametrize(("away", "moves"), [(0.38, False), (0.42, True), (-0.38, False), (-0.42, True)])
def test_how_far_from_the_middle_moves_it(away, moves, copies):
    """In widths of the features' interval."""
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 10, copies=copies, every=1)
    idle(optimizer)
    for _ in range(10):
        set_posterior(model, [1, 1, 1, 1, 1])
        zoom.step()
    narrow = zoom.interval
    top = 0.5 + away * log(3) / log(copies)
    set_posterior(model, [1 - top, 0, 0, 0, top])
    zoom.step()
    assert (zoom.interval != narrow) == moves


def test_nothing_is_taken_back_unless_wanted_nor_once_narrow():
    for rewind, steps in ((False, 20), (True, 4)):
        model = a_model()
        optimizer = alrao.SGD(model, INTERVAL)
        zoom = Zoom(optimizer, steps, rewind=rewind, every=2)
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
    zoom = Zoom(optimizer, 20, every=1)
    start = model.head.weight.detach().clone()
    learn(model, optimizer, zoom)
    model.head.weight.data[4] = torch.inf
    learn(model, optimizer, zoom)
    assert torch.equal(model.head.weight[4], start[4])
    assert model.posterior.isfinite().all()


def test_no_memory_the_size_of_the_weights():
    model = a_model(hidden=64)
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 5, every=1)
    for seed in range(6):
        learn(model, optimizer, zoom, seed=seed)
    assert not [value for value in zoom.state_dict().values() if isinstance(value, torch.Tensor)]
    assert zoom.state_dict()["_start"] == []
    assert sum(optimizer.state[p]["u"].numel() for p in model.body_parameters()) < 200


def groups(model, of_body):
    head = list(model.head.parameters())
    body = [p for p in model.parameters() if all(p is not q for q in head)]
    return [{"params": head}, {"params": body, "lr": of_body}]


@pytest.mark.parametrize(
    ("build", "kwargs", "error", "words"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), 0.1), {}, TypeError, "alrao.SGD"),
        (lambda m: alrao.SGD(m, alrao.paper.Redrawn(INTERVAL)), {}, ValueError, "drawn once"),
        (
            lambda m: alrao.SGD(m, params=groups(m, alrao.paper.Redrawn(INTERVAL))),
            {},
            ValueError,
            "drawn once",
        ),
        (lambda m: alrao.SGD(m), {"steps": 0}, ValueError, "steps must be a whole number"),
        (lambda m: alrao.SGD(m), {"steps": 2.5}, ValueError, "2.5"),
        (lambda m: alrao.SGD(m), {"every": True}, ValueError, "every"),
        (lambda m: alrao.SGD(m), {"width": 0.5}, ValueError, "at least 1, got 0.5"),
        (lambda m: alrao.SGD(m), {"width": float("nan")}, ValueError, "width"),
        (lambda m: alrao.SGD(m), {"width": "3"}, ValueError, "got '3'"),
        (lambda m: alrao.SGD(m), {"width": True}, ValueError, "got True"),
        (lambda m: alrao.SGD(m), {"copies": 0}, ValueError, "copies .* at least 1, got 0"),
        (lambda m: alrao.SGD(m), {"steps": 30.0}, ValueError, "whole number of steps, at least 1, got 30.0"),
    ],
)
def test_refusals(build, kwargs, error, words):
    with pytest.raises(error, match=words):
        Zoom(build(a_model()), **{"steps": 10, **kwargs})


@pytest.mark.filterwarnings("ignore:lr=0.1 gives all", "ignore:the single copy")
def test_copies_without_rates_to_choose_from_are_refused():
    with pytest.raises(ValueError, match=r"must have an interval, got.*Constant"):
        Zoom(alrao.SGD(a_model(), 0.1), 10)
    with pytest.raises(ValueError, match="several copies, got 1"):
        Zoom(alrao.SGD(a_model(copies=1)), 10)


# Optimizers, schedulers, checkpoints.


@pytest.mark.parametrize(
    "build",
    [
        lambda model: alrao.SGD(model, momentum=0.9),
        lambda model: alrao.Adam(model),
        lambda model: alrao.AdamW(model, alrao.paper.PerWeight((1e-5, 0.1))),
        lambda model: alrao.PerFeature(torch.optim.NAdam, model, (1e-5, 0.1)),
    ],
    ids=["SGD", "Adam", "PerWeight", "Rated"],
)
def test_the_step_is_at_the_rates_of_the_moment(build):
    """One step with rates that Zoom has moved is the step of an optimizer that was given these rates."""
    torch.manual_seed(0)
    model = a_model()
    optimizer = build(model)
    zoom = Zoom(optimizer, 4, copies=3, every=1)
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
            schedulers = [Zoom(optimizer, 5), *schedulers, Zoom(optimizer, 7)]
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
        chain = [Zoom(optimizer, 20, every=3), CosineAnnealingLR(optimizer, T_max=40)]
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


@ignore_sequential_warning
def test_chained_and_in_sequence():
    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    zoom = Zoom(optimizer, 10)
    chain = ChainedScheduler([zoom, CosineAnnealingLR(optimizer, T_max=20)])
    for seed in range(20):
        learn(model, optimizer, chain, seed=seed)
    assert zoom.interval[1] / zoom.interval[0] == pytest.approx(3)
    assert optimizer.param_groups[0]["lr"] < 1e-6

    model = a_model()
    optimizer = alrao.SGD(model, INTERVAL)
    warm = LinearLR(optimizer, 0.1, total_iters=10)
    zoom = Zoom(optimizer, 10)
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
        return model, optimizer, Zoom(optimizer, 20, every=4)

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


def test_a_group_added_later_is_moved_too():
    model = a_model()
    first, *others = model.parameters()
    optimizer = alrao.SGD(model, INTERVAL, params=others)
    zoom = Zoom(optimizer, 5, every=1)
    for seed in range(8):
        learn(model, optimizer, zoom, seed=seed)
    optimizer.add_param_group({"params": [first]})
    learn(model, optimizer, zoom)
    low, high = zoom.interval
    rates = optimizer.rates(first)
    assert (rates >= low * 0.999).all()
    assert (rates <= high * 1.001).all()


@pytest.mark.parametrize("at", [0, 1, 5, 30])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")  # as of any copied scheduler
def test_copies_and_pickles_go_on_to_the_same_bits(way, at):
    model = a_model()
    optimizer = alrao.Adam(model)
    both = model, optimizer, Zoom(optimizer, 20, every=4)
    for seed in range(at):
        learn(*both, seed=seed)
    other = way(both)
    for seed in range(at, 40):
        learn(*both, seed=seed)
        learn(*other, seed=seed)
    for p, q in zip(model.parameters(), other[0].parameters(), strict=True):
        assert torch.equal(p, q)
    assert other[2].interval == both[2].interval
    assert not both[1]._optimizer_step_pre_hooks
    assert not other[1]._optimizer_step_pre_hooks
