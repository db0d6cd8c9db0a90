"""TensorBoard sees the posterior and the rates; exported networks say the same in onnxruntime."""

import doctest

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import mlp, observe
from support.stepping import make, train
from torch import nn

import alrao
from alrao.contrib.zoom import Zoom
from alrao.integrations import tensorboard


class Recorder:
    """A writer that remembers."""

    def __init__(self):
        self.scalars, self.histograms = {}, {}

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def add_histogram(self, name, values, step):
        self.histograms[name, step] = values


@pytest.mark.parametrize("optimizer", [alrao.SGD, alrao.Adam])
def test_what_is_logged(optimizer):
    model, optimizer = make(optimizer, lr=(1e-3, 1.0))
    train(model, optimizer, 3)
    optimizer.param_groups[0]["lr"] = 0.5
    writer = Recorder()
    tensorboard.log(writer, model, optimizer, 7)
    posterior = [v for (name, _), v in writer.scalars.items() if name.startswith("alrao/posterior/")]
    assert posterior == pytest.approx(model.posterior.tolist())
    assert ("alrao/posterior/0 at 0.001", 7) in writer.scalars
    assert writer.scalars["alrao/factor/group 0", 7] == 0.5
    grid = alrao.LogUniform(1e-3, 1.0).grid(4)
    expected = (model.posterior.double() * grid.log()).sum().exp().item()
    assert writer.scalars["alrao/rate", 7] == pytest.approx(expected, rel=1e-4)
    assert 1 <= writer.scalars["alrao/copies", 7] <= 4
    weight = model.net[0].weight
    logged = writer.histograms["alrao/log10 rates/0.weight", 7]
    torch.testing.assert_close(logged, (optimizer.rates(weight) * 0.5).log10().flatten().double())
    assert len(writer.histograms) == len(list(model.parameters()))


def test_names_stay_while_rates_move():
    model, optimizer = make(alrao.Adam, lr=(1e-3, 1.0))
    zoom = Zoom(optimizer, steps=2, copies=3)
    writer = Recorder()
    for step in range(5):
        train(model, optimizer, 1)
        zoom.step()
        tensorboard.log(writer, model, optimizer, step)
    assert optimizer.copy_rates()[0] > 1e-3  # moved
    names = {name for name, _ in writer.scalars if name.startswith("alrao/posterior/")}
    assert names == {f"alrao/posterior/{copy} at {rate}" for copy, rate in enumerate((0.001, 0.01, 0.1, 1))}
    expected = (model.posterior.double() * optimizer.copy_rates().log()).sum().exp().item()
    assert writer.scalars["alrao/rate", 4] == pytest.approx(expected, rel=1e-4)


def test_autos_interval_is_logged():
    model, optimizer = make(alrao.Auto)
    writer = Recorder()
    for step in range(2):
        tensorboard.log(writer, model, optimizer, 25 * step)
        found = [writer.scalars[f"alrao/interval/{end}", 25 * step] for end in ("low", "high")]
        assert found == list(optimizer.interval())
        assert writer.scalars["alrao/lr", 25 * step] == pytest.approx(optimizer.param_groups[0]["d"])
        train(model, optimizer, 25)
    assert writer.scalars["alrao/interval/low", 0] != writer.scalars["alrao/interval/low", 25]
    assert ("alrao/posterior/0 at 0.01 lr", 0) in writer.scalars


def test_names_are_those_of_a_state_from_another_interval():
    model, optimizer = make(alrao.SGD, lr=(1e-3, 1.0))
    _, other = make(alrao.SGD, lr=(1e-4, 10.0))
    optimizer.load_state_dict(other.state_dict())
    writer = Recorder()
    tensorboard.log(writer, model, optimizer, 0)
    assert {("alrao/posterior/0 at 0.0001", 0), ("alrao/posterior/3 at 10", 0)} <= set(writer.scalars)


def test_an_optimizer_inside_of_another_tools():
    class Prepared:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model, optimizer = make(alrao.SGD)
    plain, wrapped = Recorder(), Recorder()
    tensorboard.log(plain, model, optimizer, 0)
    tensorboard.log(wrapped, model, Prepared(optimizer), 0)
    assert wrapped.scalars == plain.scalars
    assert wrapped.histograms.keys() == plain.histograms.keys()


def test_without_an_optimizer_the_posterior_alone():
    writer = Recorder()
    tensorboard.log(writer, alrao.Alrao(mlp(), 4))
    assert writer.scalars == {
        **{(f"alrao/posterior/{copy}", None): 0.25 for copy in range(4)},
        ("alrao/copies", None): pytest.approx(4),
    }
    assert not writer.histograms


def test_frozen_features_and_groups():
    model = alrao.Alrao(mlp(), 4)
    optimizer = alrao.SGD(
        model,
        params=[
            {"params": model.body_parameters(), "lr": alrao.paper.Bernoulli(0.1, 0.0)},
            {"params": model.head.parameters()},
        ],
    )
    writer = Recorder()
    tensorboard.log(writer, model, optimizer, 0)
    assert {name for name, _ in writer.histograms} == {
        "alrao/log10 rates/2.weight",
        "alrao/log10 rates/2.bias",
    }
    assert ("alrao/factor/group 1", 0) in writer.scalars


def test_doctests():
    assert doctest.testmod(tensorboard).failed == 0


def test_of_a_plain_network_rates_are_logged_and_no_posterior():
    net, writer = mlp(), Recorder()
    with pytest.raises(TypeError, match=r"model made by alrao\.Alrao"):
        tensorboard.log(writer, net)
    optimizer = alrao.Auto(net)
    tensorboard.log(writer, net, optimizer, 0)
    assert [writer.scalars[f"alrao/interval/{end}", 0] for end in ("low", "high")] == list(
        optimizer.interval()
    )
    assert not any("posterior" in name for name, _ in writer.scalars)
    assert len(writer.histograms) == len(list(net.parameters()))


def test_files_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboard", reason="needs alrao[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model, optimizer = make(lr=(1e-3, 1.0))
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(3):
            train(model, optimizer, 1)
            tensorboard.log(writer, model, optimizer, step)
    events = EventAccumulator(str(tmp_path)).Reload()
    rates = events.Scalars("alrao/rate")
    assert [event.step for event in rates] == [0, 1, 2]
    assert 1e-3 <= rates[-1].value <= 1.0
    assert "alrao/log10 rates/0.weight" in events.Tags()["histograms"]


# ONNX.


def exported(net, x, file):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs alrao[onnx]")
    pytest.importorskip("onnxscript", reason="needs alrao[onnx]")
    any_number = {0: torch.export.Dim("batch")}
    torch.onnx.export(
        net, (x,), file, input_names=["x"], output_names=["y"], dynamic_shapes=(any_number,), verbose=False
    )
    session = onnxruntime.InferenceSession(file)
    return lambda inputs: torch.from_numpy(session.run(None, {"x": inputs.numpy()})[0])


ONNX_WARNINGS = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@ONNX_WARNINGS
@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "bernoulli"])
def test_onnxruntime_returns_the_same_numbers(likelihood, mixture, tmp_path):
    model = alrao.Alrao(mlp(), 3, likelihood=likelihood).eval()
    observe(model, 0.0, -1.0, 0.5)
    x = torch.randn(6, 4)
    plain = model.collapse(mixture=mixture)
    run = exported(plain, x, tmp_path / "net.onnx")

    @settings(max_examples=20, deadline=None)
    @given(rows=st.integers(1, 33), scale=st.sampled_from([1e-3, 1.0, 30.0]), seed=st.integers(0, 2**31))
    def same(rows, scale, seed):
        inputs = scale * torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            torch.testing.assert_close(run(inputs), plain(inputs), rtol=1e-4, atol=1e-5)
            if mixture:
                torch.testing.assert_close(run(inputs), model(inputs) + 0, rtol=1e-4, atol=1e-5)

    same()


@ONNX_WARNINGS
@pytest.mark.parametrize("mixture", [False, True])
def test_a_convolutional_network(mixture, tmp_path):
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = alrao.Alrao(nn.Sequential(*body, nn.Linear(8, 5)))
    optimizer = alrao.SGD(model)
    x = torch.randn(16, 3, 8, 8)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(5, (16,))).backward()
        optimizer.step()
    plain = model.eval().collapse(mixture=mixture)
    run = exported(plain, x[:2], tmp_path / "net.onnx")
    with torch.no_grad():
        torch.testing.assert_close(run(x), plain(x), rtol=1e-4, atol=1e-5)
