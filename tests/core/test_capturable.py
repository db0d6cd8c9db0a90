"""A step that never looks at the host: it runs on meta, reads nothing, and equals the step on numbers."""

import copy
import warnings
from itertools import product
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reads import Launches, reads
from support.stepping import batches
from torch import nn, optim

import alrao
from alrao import evidence as reports
from alrao.finite import FiniteStatistics
from alrao.heads import vocabulary

quick = settings(deadline=None, max_examples=4, derandomize=True)

OPTIMIZERS = {
    "SGD": lambda model, **options: alrao.SGD(model, lr=(1e-4, 0.1), **options),
    "momentum": lambda model, **options: alrao.SGD(
        model, lr=(1e-4, 0.1), momentum=0.9, dampening=0.1, weight_decay=1e-2, **options
    ),
    "nesterov": lambda model, **options: alrao.SGD(
        model, lr=(1e-4, 0.1), momentum=0.9, nesterov=True, **options
    ),
    "Adam": lambda model, **options: alrao.Adam(
        model, lr=(1e-5, 1e-2), weight_decay=1e-2, amsgrad=True, **options
    ),
    "AdamW": lambda model, **options: alrao.AdamW(model, lr=(1e-5, 1e-2), **options),
    "PerFeature": lambda model, **options: alrao.PerFeature(optim.NAdam, model, lr=(1e-5, 1e-2), **options),
    "Auto": lambda model, **options: alrao.Auto(
        model, steps=20, weight_decay=1e-2, recalibrate=False, **options
    ),
}
LIKELIHOODS = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}
AVERAGING = [alrao.Switch, alrao.paper.BayesianAverage]
ALL = list(product(OPTIMIZERS, LIKELIHOODS, AVERAGING))
PAPERS = [name for name in OPTIMIZERS if name != "Auto"]
"""Those whose every step may be captured; Auto's may after its search."""


def target(likelihood, out):
    return {"categorical": out.argmax(1), "gaussian": out, "bernoulli": (out > 0).to(out.dtype)}[likelihood]


def build(optimizer, likelihood="categorical", averaging=alrao.Switch, device="cpu", **options):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)]
    net = nn.Sequential(*layers).double().to(device)
    model = alrao.Alrao(net, 4, likelihood=likelihood, averaging=averaging(4))
    return model, OPTIMIZERS[optimizer](model, generator=torch.Generator().manual_seed(1), **options)


def batch(seed, likelihood="categorical", device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    x, out = (torch.randn(10, n, generator=generator, dtype=torch.float64) for n in (6, 3))
    return x.to(device), target(likelihood, out).to(device)


def train(model, optimizer, x, y, likelihood="categorical"):
    optimizer.zero_grad()
    loss = LIKELIHOODS[likelihood](model(x), y)
    loss.backward()
    model.clip_grad_norm_(10.0)
    optimizer.step()
    return loss


def assert_alike(one, other, tolerance=1e-9):
    ours, theirs = one[0].state_dict(), other[0].state_dict()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=tolerance, atol=tolerance, msg=name)


# No device can be read.


@pytest.mark.parametrize(("optimizer", "likelihood", "averaging"), ALL)
def test_a_training_on_meta(optimizer, likelihood, averaging):
    model, chosen = build(optimizer, likelihood, averaging, "meta")
    if optimizer == "Auto":  # its search reads numbers
        twin, searched = build(optimizer, likelihood, averaging)
        for step in range(7):
            train(twin, searched, *batch(step, likelihood), likelihood)
        chosen.load_state_dict(searched.state_dict())
        assert chosen.search.over
    x, y = batch(0, likelihood, "meta")
    for _ in range(3):
        with reads() as found:
            train(model, chosen, x, y, likelihood)
            model.eval()
            model(x)
            model.train()
        assert optimizer == "Auto" or not found["__get__"], "a branch on is_meta"
    assert model.posterior.device.type == "meta"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_plain_network_on_meta(optimizer):
    def network():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    net = network().to("meta")
    chosen = OPTIMIZERS[optimizer](net)
    if optimizer == "Auto":
        twin = network()
        searched = OPTIMIZERS[optimizer](twin)
        for _ in range(7):
            searched.zero_grad()
            twin(torch.randn(10, 6)).abs().mean().backward()
            searched.step()
        chosen.load_state_dict(searched.state_dict())
    x = torch.randn(10, 6, device="meta")
    for _ in range(8):
        with reads() as found:
            chosen.zero_grad()
            net(x).abs().mean().backward()
            chosen.model.clip_grad_norm_(1.0)
            chosen.step()
            net.eval()
            net.train()
        assert optimizer == "Auto" or not found["__get__"], "a branch on is_meta"


@pytest.mark.parametrize(("optimizer", "likelihood", "averaging"), ALL)
def test_a_step_reads_nothing_and_sends_nothing(optimizer, likelihood, averaging):
    model, chosen = build(optimizer, likelihood, averaging, capturable=True)
    x, y = batch(0, likelihood)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(chosen, 40)
    for _ in range(7):  # Auto's search takes 6
        train(model, chosen, x, y, likelihood)
    for _ in range(8):
        with reads() as found:
            train(model, chosen, x, y, likelihood)
        scheduler.step()
        assert not found


def test_reads_are_seen():
    model, chosen = build("SGD")
    with reads() as found:
        train(model, chosen, *batch(0))
        assert not model.posterior.is_meta
    assert found["tolist"] >= 1
    assert found["_local_scalar_dense"] >= 1
    assert found["__get__"] == 1


LOSSES = {
    "hard": F.cross_entropy,
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "weighted": lambda out, y: F.cross_entropy(
        out, y, torch.ones(3, dtype=out.dtype, device=out.device), label_smoothing=0.1
    ),
    "ignored": lambda out, y: F.cross_entropy(out, y, ignore_index=1),
    "soft": lambda out, y: F.cross_entropy(
        out, y[:, None].eq(torch.arange(3, device=y.device)).to(out.dtype)
    ),
}


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_loss_of_a_classifier_reads_anything(loss, size, device, monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGE", 1 if size == "large" else vocabulary.LARGE)
    model, chosen = build("AdamW", device=device, capturable=True)
    eager, its_own = build("AdamW")
    for i in range(4):
        x, y = batch(i, device=device)
        with reads() as found:
            chosen.zero_grad()
            LOSSES[loss](model(x), y).backward()
            chosen.step()
            model.eval()
            model(x)
            model.train()
        assert not found or i == 0
        if device == "cpu":
            its_own.zero_grad()
            LOSSES[loss](eager(x), y).backward()
            its_own.step()
    if device == "cpu":
        assert_alike((model, chosen), (eager, its_own), 1e-6)


# It is the same step.

EVENTS = [
    "plain", "nan row", "inf row", "huge", "empty", "ignored", "accumulated", "failed copy", "nan gradient",
    "low lr",
]  # fmt: skip


def go_through(model, optimizer, event, seed):
    x, y = batch(seed)
    rows = 0 if event == "empty" else 10
    x, y = x[:rows], y[:rows]
    if event == "nan row":
        x[0] = nan
    if event == "inf row":
        x[1, 2] = inf
    if event == "huge":
        x = x * 1e12
    if event == "ignored":
        y = torch.full_like(y, -100)
    if event == "failed copy":
        with torch.no_grad():
            model.head.weight[seed % 4] = inf if seed % 2 else nan
    factor = 0.25 if event == "low lr" else 1.0
    for group in optimizer.param_groups:
        group["lr"] = group["lr"].fill_(factor) if isinstance(group["lr"], torch.Tensor) else factor
    optimizer.zero_grad()
    if event == "empty":
        model.eval()  # BatchNorm refuses to train on nothing
    for _ in range(2 if event == "accumulated" else 1):
        F.cross_entropy(model(x), y, reduction="sum").backward()
    model.train()
    if event == "nan gradient":
        model.net[0].weight.grad[0, 0] = nan
    optimizer.step()


@pytest.mark.parametrize("optimizer", PAPERS)
@quick
@given(events=st.lists(st.sampled_from(EVENTS), min_size=10, max_size=10), seed=st.integers(0, 1000))
def test_capturable_is_the_same_training(optimizer, events, seed):
    one, other = build(optimizer), build(optimizer, capturable=True)
    # torch's own capturable NAdam counts in float32.
    tolerance = 1e-3 if optimizer == "PerFeature" else 1e-7
    for i, event in enumerate(events):
        for model, chosen in (one, other):
            go_through(model, chosen, event, seed + i)
        for model, _ in (one, other):
            body = [*model.body_parameters(), *model.net.buffers(), model.posterior]
            assert all(bool(tensor.isfinite().all()) for tensor in body)
            assert bool(model(batch(7)[0]).isfinite().all())
        ours, theirs = (model.state_dict() for model, _ in (one, other))
        for name, value in ours.items():
            torch.testing.assert_close(
                value, theirs[name], rtol=tolerance, atol=tolerance, equal_nan=True, msg=f"{name} {event}"
            )


@pytest.fixture
def every_step(monkeypatch):
    """Hidden matrices move at every step, as they do in a captured one."""
    for module in ("step", "matrices"):
        monkeypatch.setattr(f"alrao.auto.{module}.PERIOD", 1)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_continues_on_the_other_path(optimizer):
    tolerance = 1e-3 if optimizer == "PerFeature" else 1e-9
    for before, after in ((False, True), (True, False)):
        straight = build(optimizer, capturable=before)
        for i in range(4):
            train(*straight, *batch(i))
        state = copy.deepcopy((straight[0].state_dict(), straight[1].state_dict()))
        resumed = build(optimizer, capturable=after)
        resumed[0].load_state_dict(state[0])
        resumed[1].load_state_dict(state[1])
        assert resumed[1].param_groups[0]["capturable"] is after
        for i in range(4, 10):  # the search of Auto ends in between
            train(*straight, *batch(i))
            train(*resumed, *batch(i))
        for each in (straight, resumed):
            each[0].eval()
        assert_alike(straight, resumed, tolerance)


# Refused losses.


def kept(model, optimizer):
    states = [value for p in model.parameters() for value in optimizer.state[p].values()]
    tensors = [*model.parameters(), model.posterior, *(v for v in states if isinstance(v, torch.Tensor))]
    return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize("call", ["zero_grad", "step"])
@pytest.mark.parametrize("optimizer", PAPERS)
def test_a_refused_loss_changes_nothing_and_is_raised_a_step_later(optimizer, call):
    model, chosen = build(optimizer, capturable=True)
    for i in range(3):
        train(model, chosen, *batch(i))
    before = kept(model, chosen)
    chosen.zero_grad()
    model(batch(9)[0]).exp().square().sum().backward()
    chosen.step()
    assert all(map(torch.equal, before, kept(model, chosen)))
    with pytest.raises(RuntimeError, match=r"loss of an earlier step.*cross_entropy.*changed nothing"):
        getattr(chosen, call)()
    assert all(map(torch.equal, before, kept(model, chosen)))
    train(model, chosen, *batch(3))  # and it goes on, with the right loss
    assert not all(map(torch.equal, before, kept(model, chosen)))


def test_auto_refuses_a_loss_at_once_in_its_search():
    model, chosen = build("Auto", capturable=True)
    for i in range(3):
        train(model, chosen, *batch(i))
    before = kept(model, chosen)
    chosen.zero_grad()
    model(batch(9)[0]).exp().square().sum().backward()
    with pytest.raises(RuntimeError, match="Nothing has been changed"):
        chosen.step()
    assert all(map(torch.equal, before, kept(model, chosen)))


@pytest.mark.parametrize("call", ["zero_grad", "step"])
def test_auto_applies_no_gradient_of_a_refused_loss_after_its_search(call):
    runs = []
    for refused in (True, False):
        model, chosen = build("Auto", capturable=True)
        for i in range(8):
            train(model, chosen, *batch(i))
        chosen.zero_grad()
        if refused:
            model(batch(9)[0]).exp().square().sum().backward()
        else:
            F.cross_entropy(model(batch(9)[0]), batch(9)[1]).backward()
            for p in model.parameters():
                p.grad.zero_()
            model.head.evidence.grad = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen.step()
        runs.append([p.detach().clone() for p in model.parameters()])
        if refused:
            with pytest.raises(RuntimeError, match=r"loss of an earlier step.*taken without gradients"):
                getattr(chosen, call)()
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("steady", [1000, 4])
def test_auto_captured_after_its_search_is_the_same_training(steady, monkeypatch):
    monkeypatch.setattr("alrao.auto.step.STEADY", steady)
    one, other = build("Auto"), build("Auto", capturable=True)
    for i in range(10):
        for model, chosen in (one, other):
            train(model, chosen, *batch(i))
    for p, q in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-7)


def test_what_cannot_be_captured_is_refused():
    model, _ = build("SGD")
    with pytest.raises(ValueError, match="Redrawn"):
        alrao.SGD(model, lr=alrao.paper.Redrawn((1e-4, 0.1)), capturable=True)
    with pytest.raises(ValueError, match="Adagrad"):
        alrao.PerFeature(optim.Adagrad, model, capturable=True)


@pytest.mark.usefixtures("every_step")
def test_a_plain_network_searches_the_same_rates():
    def run(capturable):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        chosen = alrao.Auto(net, steps=30, generator=torch.Generator().manual_seed(1), capturable=capturable)
        for i in range(20):
            x, y = batch(i)
            chosen.zero_grad()
            F.cross_entropy(net(x), y).backward()
            chosen.step()
        return net.eval(), chosen

    one, other = run(False), run(True)
    assert_alike(one, other)
    assert one[1].interval() == pytest.approx(other[1].interval(), rel=1e-9)


# Launches.


def launches(optimizer, layers, **options):
    """The operations of a step of a network of so many hidden layers."""
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(6, 6), nn.ReLU())]
    model = alrao.Alrao(nn.Sequential(*hidden, nn.Linear(6, 3)), 4)
    chosen = optimizer(model, capturable=True, **options)
    for x, y in batches(2, 6):
        chosen.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with Launches() as counted:
            chosen.step()
    return counted.found.total()


@pytest.mark.filterwarnings("ignore:lr=0.1 gives all 4 copies")
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.1}], ids=str)
def test_an_operation_a_tensor_is_all_that_a_step_of_sgd_takes_for_its_rates(options):
    assert launches(alrao.SGD, 16, lr=0.1, **options) == launches(alrao.SGD, 8, lr=0.1, **options)
    assert launches(alrao.SGD, 16, **options) - launches(alrao.SGD, 8, **options) <= 16


# The parts: each equals what is computed on Python numbers.


METHODS = [alrao.Switch, alrao.paper.BayesianAverage]
thorough = settings(deadline=None, max_examples=40, derandomize=True)
NUMBERS = st.one_of(st.floats(-5, 0), st.floats(-1e6, 1e6), st.sampled_from([nan, inf, -inf]))


@pytest.mark.parametrize("method", METHODS)
@thorough
@given(data=st.data(), copies=st.integers(1, 5))
def test_the_posterior_on_the_device_is_the_one_on_the_host(method, data, copies):
    host, device = method(copies), method(copies)
    rtol = 1e-9
    for _ in range(6):
        seen = torch.tensor(data.draw(st.lists(NUMBERS, min_size=copies, max_size=copies)))
        if not (host.weights > 0)[seen.isfinite()].any():
            rtol = 1e-7  # those that start again have logarithms of -7e7 on a device, and fewer digits
        host.update(seen)
        device.update_on_device(seen)
        torch.testing.assert_close(device.weights, host.weights, rtol=rtol, atol=1e-12)
        torch.testing.assert_close(device.log_weights, host.log_weights, rtol=rtol, atol=rtol)
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


@thorough
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
