"""``--zoom``: how the interval narrows, said on the command line."""

import pytest
import torch

import alrao
from alrao.lab.errors import LabError
from alrao.lab.methods import learner
from alrao.lab.naming import label
from alrao.lab.resolve import refuse_idle, resolve
from alrao.lab.settings import Settings
from alrao.lab.zooming import Zooming

CPU = torch.device("cpu")


def built(**settings):
    task, resolved = resolve(Settings(task="digits", **settings))
    problem = task.load(resolved, CPU)
    return learner(problem.network(), resolved, problem), problem


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("default", "default"),
        ("width=3", "default"),
        ("width=10, part=0.50", "part=0.5,width=10"),
        ("memory=0.2", "memory=0.2"),
        ("width=1.23456789", "width=1.23456789"),
        ("rewind=1", "default"),
        ("rewind=0", "rewind=0"),
        ("mode=1", "mode=1"),
        ("mode=0", "default"),
        ("copies=inf", "copies=inf"),
    ],
)
def test_one_spelling(text, spelled):
    assert str(Zooming.parse(text)) == spelled
    assert str(resolve(Settings(method="alrao", zoom=text))[1].zoom) == spelled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("widht=3", "did you mean width"),
        ("width", "as in --zoom width=3, got 'width'"),
        ("width=wide", "takes numbers"),
        ("part=0", "part must lie between 0 and 1, got 0"),
        ("part=nan", "part must lie"),
        ("width=0.5", "width must be at least 1"),
        ("rewind=2", "rewind must be 0 or 1"),
        ("mode=0.5", "mode must be 0 or 1, got 0.5"),
        ("copies=0.5", "copies, a width, must be at least 1"),
        ("width=3,width=10", "has width twice"),
        ("memory=inf", "memory must be positive"),
        ("memory=0", "memory must be positive"),
    ],
)
def test_refusals(text, words):
    with pytest.raises(LabError, match=words):
        resolve(Settings(method="alrao-zoom", zoom=text))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "alrao-zoom", "copies": 1}, "several copies, got --copies 1: leave"),
        ({"method": "alrao-zoom", "lr": "0.01"}, "narrows an interval of rates, got the rate 0.01: give two"),
        ({"method": "alrao", "zoom": "default", "lr": "0.1:0.1"}, "narrows an interval"),
    ],
)
def test_what_zoom_needs(settings, words):
    with pytest.raises(LabError, match=words):
        resolve(Settings(**settings))


def test_alrao_has_none_unless_asked_and_its_runs_keep_their_names():
    plain = resolve(Settings(method="alrao"))[1]
    assert plain.zoom is None
    assert "zoom" not in plain.key()
    assert built(method="alrao")[0].zooming is None


def test_zoom_is_for_alrao():
    with pytest.raises(LabError, match="--zoom is for Alrao's methods"):
        refuse_idle(Settings(method="adam", zoom="default"))


@pytest.mark.parametrize("method", ["alrao", "alrao-adam", "alrao-zoom"])
def test_the_interval_narrows_during_its_part_of_the_training(method):
    trained, problem = built(method=method, zoom="part=0.5,width=5,copies=5,memory=0.1")
    trained.follow("cosine", 2 * problem.steps)
    trained.train()
    optimizer = trained.optimizer
    widths, factors = [], []
    for epoch in (1, 2):
        for inputs, targets in problem.batches(epoch):
            trained.step(problem.loss(trained.model(inputs), targets))
        rates = torch.cat([optimizer.rates(p).flatten() for p in trained.model.parameters()])
        widths.append(float(rates.max() / rates.min()))
        factors.append(optimizer.param_groups[0]["lr"])
    assert widths == pytest.approx([5, 5], rel=0.02)
    assert factors == pytest.approx([0.5, 0.0], abs=1e-6)
    assert isinstance(optimizer, alrao.SGD if method == "alrao" else alrao.Adam)


def test_tables_say_how():
    def named(**settings):
        return label(resolve(Settings(**settings))[1])

    assert named(method="alrao-zoom") == "Alrao-Zoom"
    assert named(method="alrao-zoom", zoom="width=10") == "Alrao-Zoom (zoom width=10)"
    assert named(method="alrao", zoom="default") == "Alrao (zoom default)"
    assert named(method="alrao") == "Alrao"
    assert named(method="alrao", body_lr="1e-3:1.0") == "Alrao (body 0.001:1)"
    assert named(method="alrao", normalise="layer") == "Alrao (unit layer)"


def test_copies_may_keep_their_rates():
    trained, problem = built(method="alrao-zoom", zoom="copies=inf,part=0.2")
    trained.follow("none", 2 * problem.steps)
    before = trained.rates
    for inputs, targets in problem.batches(1):
        trained.step(problem.loss(trained.model(inputs), targets))
    low, high = trained.schedulers["zoom"].interval
    assert trained.rates == pytest.approx(before, rel=1e-5)
    assert high / low == pytest.approx(3)


@pytest.mark.parametrize("method", ["alrao", "alrao-adam"])
def test_the_body_may_have_an_interval_of_its_own(method):
    trained, _ = built(method=method, lr="0.1:10", body_lr="1e-4:1e-3")
    head = list(trained.model.head.parameters())
    for p in trained.model.parameters():
        rates = trained.optimizer.rates(p)
        low, high = (0.1, 10) if any(p is q for q in head) else (1e-4, 1e-3)
        assert low * (1 - 1e-5) <= rates.min() < rates.max() <= high * (1 + 1e-5)
    with pytest.raises(LabError, match="from low to high"):
        resolve(Settings(method=method, body_lr="1:0.1"))
    with pytest.raises(LabError, match="--body-lr is for Alrao's methods"):
        refuse_idle(Settings(method="adam", body_lr="0.1:1"))


@pytest.mark.parametrize("unit", ["feature", "layer"])
def test_steps_of_unit_size(unit):
    """Each feature, or tensor, and each copy goes as far as its rate says, whatever its gradient."""
    trained, problem = built(method="alrao", normalise=unit)
    inputs, targets = next(iter(problem.batches(1)))
    before = {p: p.detach().clone() for p in trained.model.parameters()}
    trained.step(problem.loss(trained.model(inputs), targets))
    head = list(trained.model.head.parameters())
    for p, start in before.items():
        steps = ((p.detach() - start).double() / trained.optimizer.rates(p)).flatten(1 if p.ndim > 1 else 0)
        alone = unit == "feature" or any(p is q for q in head)
        if p.ndim == 1:  # a bias: one number for each feature
            sizes = steps.abs() if alone else steps.square().mean().sqrt()
        else:
            squares = steps.square().mean(1)
            sizes = squares.sqrt() if alone else squares.mean().sqrt()
        sizes = sizes[sizes > 1e-3]  # a feature that is off has no gradient
        torch.testing.assert_close(sizes, torch.ones_like(sizes), rtol=0.02, atol=0)


def test_adamw_decays_weights_as_torch_does():
    trained, _ = built(method="adamw")
    group = trained.optimizer.param_groups[0]
    assert isinstance(trained.optimizer, torch.optim.AdamW)
    assert (group["lr"], group["weight_decay"]) == (0.001, 0.01)
    trained, _ = built(method="adamw@0.1", weight_decay=0.5)
    group = trained.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.5)


@pytest.mark.parametrize(
    ("text", "follow", "rewinds"), [("default", "mean", True), ("mode=1,rewind=0", "mode", False)]
)
def test_what_is_followed_and_rewound(text, follow, rewinds):
    optimizer = alrao.Adam(alrao.Alrao(torch.nn.Linear(3, 2)))
    zoom = Zooming.parse(text).scheduler(optimizer, 100)
    assert zoom.follow == follow
    assert bool(optimizer._optimizer_step_pre_hooks) == rewinds
