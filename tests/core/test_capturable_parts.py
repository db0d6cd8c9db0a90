"""The parts of a step that never looks at the host: each equals what is computed on Python numbers."""

import copy
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import alrao
from alrao import evidence as reports
from alrao.finite import FiniteStatistics

METHODS = [alrao.Switch, alrao.paper.BayesianAverage]
quick = settings(deadline=None, max_examples=40, derandomize=True)
NUMBERS = st.one_of(st.floats(-5, 0), st.floats(-1e6, 1e6), st.sampled_from([nan, inf, -inf]))


@pytest.mark.parametrize("method", METHODS)
@quick
@given(data=st.data(), copies=st.integers(1, 5))
def test_the_posterior_on_the_device_is_the_one_on_the_host(method, data, copies):
    host, device = method(copies), method(copies)
    for _ in range(6):
        seen = torch.tensor(data.draw(st.lists(NUMBERS, min_size=copies, max_size=copies)))
        host.update(seen)
        device.update_on_device(seen)
        torch.testing.assert_close(device.weights, host.weights, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(device.log_weights, host.log_weights, rtol=1e-9, atol=1e-9)
    if method is alrao.Switch:
        assert device.t == host.t


@pytest.mark.parametrize("method", METHODS)
def test_without_an_observation_the_posterior_stays(method):
    average = method(3)
    average.update(torch.tensor([-1.0, -2.0, -3.0]))
    before = average.state_dict()["_state"].clone()
    nothing = reports.read(torch.zeros(6), 3, on_device=True)
    for of in reports.CHOICES:
        average.update_on_device(nothing.log_likelihood(of))
    assert torch.equal(average.state_dict()["_state"], before)
    average.update_on_device(torch.tensor([0.0, -9.0, -9.0]))
    assert not torch.equal(average.state_dict()["_state"], before)


@pytest.mark.parametrize("method", METHODS)
def test_a_posterior_on_meta_is_updated(method):
    average = method(3).to("meta")
    average.update(torch.zeros(3, device="meta"))
    assert average.weights.device.type == "meta"
    with pytest.raises(ValueError, match="one number for each of the 3 copies"):
        average.update(torch.zeros(2, device="meta"))


@quick
@given(
    numbers=st.lists(st.one_of(st.floats(-10, 10), st.sampled_from([0.0, nan, inf])), min_size=5, max_size=5),
    maximize=st.booleans(),
)
def test_the_evidence_on_the_device_is_the_one_on_the_host(numbers, maximize):
    gradient = torch.tensor(numbers, dtype=torch.float64)
    host = reports.read(gradient, 2)
    device = reports.read(gradient.double(), 2, on_device=True)
    assert device.refused(maximize=maximize).item() is host.refused(maximize=maximize)
    if host.weight != 0:
        for of in reports.CHOICES:
            expected = torch.tensor(host.log_likelihood(of), dtype=torch.float64)
            torch.testing.assert_close(device.log_likelihood(of), expected, equal_nan=True)


@pytest.mark.parametrize("bad", [nan, inf])
def test_statistics_are_restored_without_a_read(bad):
    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(2).double(), nn.BatchNorm1d(2, affine=False))
    guard = FiniteStatistics(net)
    with torch.no_grad():
        net[0].running_mean.copy_(torch.tensor([1.0, bad, 3.0]))
        net[1].running_var.fill_(bad)
        net[2].running_var.fill_(5.0)
    guard.restore(reads=False)
    assert net[0].running_mean.tolist() == [1, 0, 3]
    assert net[1].running_var.tolist() == [1, 1]
    with torch.no_grad():
        net[2].running_var.fill_(bad)
    guard.restore(reads=False)
    assert net[2].running_var.tolist() == [5, 5]


@pytest.mark.parametrize("bad", [0.0, nan, inf])
def test_clipping_without_a_read_is_the_same(bad):
    def clipped(mark):
        torch.manual_seed(0)
        model = alrao.Alrao(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 4)
        if mark:
            reports.stay_on_device(model.head.evidence)
        nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
        model.net[0].weight.grad[0, 0] = bad
        return [model.clip_grad_norm_(0.01), *(p.grad for p in model.parameters())]

    for one, other in zip(clipped(False), clipped(True), strict=True):
        torch.testing.assert_close(one, other)


def test_the_mark_of_a_leaf_stays_with_the_head():
    model = alrao.Alrao(nn.Linear(4, 3), 2)
    assert reports.is_readable(model.head.evidence)
    reports.stay_on_device(model.head.evidence)
    for head in (model.head, copy.deepcopy(model).head, model.double().head):
        assert not reports.is_readable(head.evidence)
    for p in model.parameters():
        p.requires_grad_(False)
    assert not reports.is_readable(model.head.evidence_leaf(*model.parameters()))


@pytest.mark.parametrize("bad", [nan, inf, 1e25])
def test_gradients_of_copies_are_masked_too(bad):
    model = alrao.Alrao(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 3)
    model.head.double()  # a group of two types
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1), capturable=True)
    before = model.head.bias.detach().clone()
    model.head.bias.grad = torch.ones_like(before)
    model.head.bias.grad[1, 0] = bad
    model.net[0].weight.grad = torch.full_like(model.net[0].weight, bad)
    was = model.net[0].weight.detach().clone()
    with pytest.warns(UserWarning, match="no evidence"):
        optimizer.step()
    changed = model.head.bias != before
    assert model.head.bias.isfinite().all()
    assert changed.sum() == (6 if bad == 1e25 else 5)  # float64 holds the square of 1e25
    assert torch.equal(model.net[0].weight, was)
