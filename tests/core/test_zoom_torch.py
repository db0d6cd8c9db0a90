"""Zoom in the company of optimizers, torch's schedulers and checkpoints."""

import copy
import io
import pickle

import pytest
import torch
from support.needs import ignore_sequential_warning
from support.zoomed import INTERVAL, a_model, all_rates, learn
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR, SequentialLR

import alrao
from alrao.contrib.zoom import Zoom


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
