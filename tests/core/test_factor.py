"""A learning rate written where a factor is expected causes a warning; a schedule of factors does not."""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp
from torch.optim import lr_scheduler

import alrao

OPTIMIZERS = {
    "SGD": alrao.SGD,
    "Adam": alrao.Adam,
    "AdamW": alrao.AdamW,
    "Auto": alrao.Auto,
    "PerFeature": lambda model: alrao.PerFeature(torch.optim.NAdam, model),
}


def made(kind=alrao.SGD):
    model = alrao.Alrao(mlp(), 2)
    optimizer = kind(model)
    F.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
    return optimizer


def first_warning(optimizer, factor, steps):
    """Step with the factor that a function of the step gives; the number of steps until the warning."""
    leaf = optimizer.model.head.evidence
    evidence = leaf.grad.clone()  # that of the one backward pass, again and again
    for step in range(1, steps + 1):
        if factor is not None:
            for group in optimizer.param_groups:
                group["lr"] = factor(step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        leaf.grad = evidence.clone()
        if caught:
            (warning,) = caught
            assert "not a learning rate. Write 1.0" in str(warning.message)
            assert warning.filename == __file__
            return step
    return None


def nanogpt(step, warmup=20, highest=6e-4, total=400):
    if step < warmup:
        return highest * (step + 1) / (warmup + 1)
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))))


ABSOLUTE = {
    "nanoGPT": nanogpt,
    "constant, as fastai's fit": lambda step: 1e-3,
    "constant, of SGD": lambda step: 0.05,
    "a rise to 6e-4": lambda step: step / 3e6,
    "decayed by epochs": lambda step: 0.01 * 0.1 ** (step // 50),
}


@pytest.mark.parametrize(
    ("kind", "rule"), [*(("SGD", rule) for rule in ABSOLUTE), *((kind, "nanoGPT") for kind in OPTIMIZERS)]
)
def test_an_absolute_rate_causes_one_warning(kind, rule):
    optimizer = made(OPTIMIZERS[kind])
    step = first_warning(optimizer, ABSOLUTE[rule], 700)
    assert step is not None
    assert step <= 520
    assert first_warning(optimizer, ABSOLUTE[rule], 600) is None, "it is said once"


FACTORS = {
    "a warm-up from 0": lambda step: min(1.0, (step - 1) / 1500),
    "a decay to 0": lambda step: 1 - step / 1200,
    "a decay to little": lambda step: max(1e-3, 0.99**step),
    "nothing at first": lambda step: float(step > 1000),
    "a low factor": lambda step: 0.2,
}


@pytest.mark.parametrize("rule", FACTORS)
def test_an_ordinary_factor_causes_none(rule):
    assert first_warning(made(), FACTORS[rule], 1200) is None


def test_a_schedule_of_torch_causes_none():
    for make in (
        lambda o: lr_scheduler.LinearLR(o, 0.01, total_iters=5),  # by epochs: it stays low for a whole one
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1e-3 * (epoch + 1)),
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=10),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 1.0, step_size_up=3, cycle_momentum=False),
    ):
        optimizer = made()
        scheduler = make(optimizer)
        for _ in range(2):
            assert first_warning(optimizer, None, 90) is None
            scheduler.step()


def test_noams_schedule_of_absolute_rates_is_noticed():
    optimizer = made()
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda s: 0.04 * min((s + 1) ** -0.5, (s + 1) * 20**-1.5))
    found = []
    for _ in range(200):
        found.append(first_warning(optimizer, None, 1))
        scheduler.step()
    assert sum(each is not None for each in found) == 1


@pytest.mark.parametrize("make", [
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=500),
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=1e-3, total_steps=500),
])  # fmt: skip
def test_a_planned_maximum_is_noticed_at_the_first_step(make):
    optimizer = made()
    scheduler = make(optimizer)
    assert first_warning(optimizer, None, 1) == 1
    scheduler.step()


def test_the_highest_of_all_groups_counts():
    model = alrao.Alrao(mlp(), 2)
    groups = [{"params": model.body_parameters()}, {"params": list(model.head.parameters())}]
    optimizer = alrao.SGD(model, params=groups)
    F.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
    optimizer.param_groups[0]["lr"] = 0.001
    assert first_warning(optimizer, None, 200) is None
    optimizer = alrao.SGD(model, params=groups)
    assert first_warning(optimizer, lambda step: 0.001, 200) is not None


def test_a_resumed_run_remembers_the_start():
    optimizer = made()
    assert first_warning(optimizer, lambda step: 1 / step, 30) is None
    state = copy.deepcopy(optimizer.state_dict())
    resumed = made()
    resumed.load_state_dict(state)
    assert first_warning(resumed, lambda step: 1e-3, 300) is None
    older = copy.deepcopy(state)
    for group in older["param_groups"]:
        del group["highest_lr"]
    resumed.load_state_dict(older)
    assert first_warning(resumed, lambda step: 1e-3, 300) is None


def test_factors_on_a_device_are_not_read():
    optimizer = made()
    optimizer.param_groups[0]["lr"] = torch.tensor(1e-3)
    assert first_warning(optimizer, None, 200) is None
