"""Every scheduler of torch drives the common factor on the rates."""

import pytest
import torch
import torch.nn.functional as F
from support.needs import ignore_sequential_warning
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import alrao

SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.8),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.25, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, step_size_up=2, cycle_momentum=False),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=8, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], o
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=4),
}


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(dtype=torch.float32):
    return torch.randn(12, 4, dtype=dtype), torch.randint(3, (12,))


def test_the_list_of_schedulers_is_complete():
    assert set(lr_scheduler.__all__) - {"LRScheduler"} <= set(SCHEDULERS)


@ignore_sequential_warning
@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_schedulers_scale_every_update(name):
    model = alrao.Alrao(mlp(), 4).double()
    optimizer = alrao.SGD(model, lr=(1e-3, 1.0))
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # says what the factor must be
    scheduler, reference = SCHEDULERS[name](optimizer), SCHEDULERS[name](plain)
    factors = []
    for _ in range(6):
        factors.append(optimizer.param_groups[0]["lr"])
        assert factors[-1] == plain.param_groups[0]["lr"]
        optimizer.zero_grad()
        x, y = batch(dtype=torch.float64)
        F.cross_entropy(model(x), y).backward()
        expected = {p: p.detach() - factors[-1] * optimizer.rates(p) * p.grad for p in model.parameters()}
        optimizer.step()
        for p, value in expected.items():
            torch.testing.assert_close(p.detach(), value, rtol=1e-12, atol=1e-12)
        plain.step()
        for each in (scheduler, reference):
            each.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert len(set(factors)) > 1


@pytest.mark.parametrize("scheduler", [lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR])
@pytest.mark.parametrize("kind", [alrao.SGD, alrao.Adam])
def test_schedulers_may_move_the_momentum_too(scheduler, kind):
    model = alrao.Alrao(mlp(), 4)
    optimizer = kind(model, **({"momentum": 0.9} if kind is alrao.SGD else {}))
    arguments = (
        {"total_steps": 8} if scheduler is lr_scheduler.OneCycleLR else {"base_lr": 0.1, "step_size_up": 2}
    )
    moving = scheduler(optimizer, max_lr=1.0, **arguments)
    seen = set()
    for _ in range(4):
        group = optimizer.param_groups[0]
        seen.add(group["momentum"] if kind is alrao.SGD else group["betas"][0])
        optimizer.zero_grad()
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        moving.step()
    assert len(seen) > 1
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:param_groups.* at the end of Auto's search")
def test_a_cycled_momentum_leaves_the_average_of_auto_alone():
    trained = []
    for cycles in (False, True):
        torch.manual_seed(0)
        model = alrao.Alrao(mlp(), 4)
        optimizer = alrao.Auto(model, steps=10)
        moving = lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=30, cycle_momentum=cycles)
        for _ in range(20):
            optimizer.zero_grad()
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            moving.step()
        assert (optimizer.param_groups[0]["betas"][0] == 0.5) is not cycles
        trained.append([p.detach().clone() for p in model.eval().parameters()])
    assert all(torch.equal(*pair) for pair in zip(*trained, strict=True))
