"""Any torch optimizer with a rate for every feature: against the plain one, and against slow references."""

import copy
import warnings
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import needs_muon
from support.rated_models import OPTIONS, build, steps
from support.stepping import batches
from torch import nn, optim

CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
NAMES = [f"{name} {options or ''}".strip() for name, options in CASES]
PROPORTIONAL = [case for case in CASES if case[0] not in ("ASGD", "Adafactor", "Muon", "Rprop")]
REFUSED = {"LBFGS", "SparseAdam"}


def test_every_optimizer_of_torch_is_tried():
    there = {name for name in dir(optim) if isinstance(getattr(optim, name), type)} - {"Optimizer"}
    assert there == set(OPTIONS) | REFUSED


# One rate, one copy: the plain optimizer.


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_a_constant_rate_and_one_copy_is_the_plain_optimizer_to_the_bit(name, options):
    model, rated = build(name, copies=1, lr=0.03, **options)
    twin = copy.deepcopy(model).collapse()
    plain = getattr(optim, name)(twin.parameters(), lr=0.03, **options)
    schedules = [optim.lr_scheduler.StepLR(each, 2, gamma=0.5) for each in (rated, plain)]
    for x, y in batches(6, 6):
        for net, optimizer in ((model, rated), (twin, plain)):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(p.view(q.shape), q)
            p.grad = None
        for schedule in schedules:
            schedule.step()


# Rates for every feature: against definitions written out.


@pytest.mark.parametrize(("name", "options"), PROPORTIONAL, ids=[f"{n} {o or ''}" for n, o in PROPORTIONAL])
@pytest.mark.parametrize("base_lr", [None, 0.37])
def test_every_feature_moves_as_under_a_plain_optimizer_at_its_rate(name, options, base_lr):
    # These move each weight by itself, in proportion to the rate: a feature alone is the whole definition.
    model, rated = build(name, dtype=torch.float64, lr=(1e-4, 0.5), base_lr=base_lr, **options)
    alone = {}
    for p in model.parameters():
        rates = rated.rates(p).expand_as(p)
        for row, rate in zip(p.detach().clone(), rates, strict=True):
            row = nn.Parameter(row)
            rate = rate.flatten()[0].item()
            alone.setdefault(p, []).append((row, getattr(optim, name)([row], lr=rate, **options)))
    for _ in steps(model, 6, torch.float64):
        for p, rows in alone.items():
            for (row, optimizer), grad in zip(rows, p.grad, strict=True):
                row.grad = grad.clone()
                optimizer.step()
        rated.step()
        for p, rows in alone.items():
            torch.testing.assert_close(
                p.detach(), torch.stack([row.detach() for row, _ in rows]), rtol=1e-10, atol=1e-13
            )


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_the_displacement_of_the_plain_optimizer_is_scaled(name, options):
    # The literal definition: step at the base rate, look how far each weight went,
    # go that far times rate / base.
    model, rated = build(name, dtype=torch.float64, lr=(1e-4, 0.5), **options)
    base = rated.param_groups[0]["base_lr"]
    of_copies = set(model.head.parameters())
    parts = {
        p: list(p.detach().clone()) if p in of_copies else [p.detach().clone()] for p in model.parameters()
    }
    parts = {p: [nn.Parameter(q) for q in several] for p, several in parts.items()}
    plain = getattr(optim, name)([q for several in parts.values() for q in several], lr=base, **options)
    for _ in steps(model, 3, torch.float64):
        for p, several in parts.items():
            for q, grad in zip(several, p.grad if p in of_copies else [p.grad], strict=True):
                q.grad = grad.clone()
        before = {q: q.detach().clone() for several in parts.values() for q in several}
        plain.step()
        for p, several in parts.items():
            rates = rated.rates(p).expand_as(p)
            for q, rate in zip(several, rates if p in of_copies else [rates], strict=True):
                moved = q.detach() - before[q]
                for at in product(*map(range, q.shape)):
                    q.data[at] = before[q][at] + rate[at] / base * moved[at]
        rated.step()
        for p, several in parts.items():
            expected = torch.stack([q.detach() for q in several]) if p in of_copies else several[0].detach()
            torch.testing.assert_close(p.detach(), expected, rtol=1e-10, atol=1e-13)


def test_asgd_averages_the_weights_that_there_are():
    model, rated = build("ASGD", lr=(1e-3, 0.5), t0=1)
    first, *_ = model.body_parameters()
    seen = []
    for _ in steps(model, 6):
        rated.step()
        seen.append(first.detach().clone())
    average = rated.state[first]["inner"]["ax"]
    torch.testing.assert_close(average, torch.stack(seen[2:]).mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["Adafactor", pytest.param("Muon", marks=needs_muon)])
def test_a_wild_copy_does_not_hold_back_the_others(name):
    # These look at a whole matrix at once: at each copy's, not at all of them together.
    models = [build(name, lr=(1e-3, 0.1)) for _ in range(2)]
    models[1][0].load_state_dict(models[0][0].state_dict())
    models[1][1].load_state_dict(models[0][1].state_dict())
    for model, optimizer in models:
        for _ in steps(model, 1):
            if model is models[1][0]:
                model.head.weight.grad[-1] *= 1e6
            optimizer.step()
    one, other = (model.head.weight for model, _ in models)
    assert torch.equal(one[:-1], other[:-1])


@pytest.mark.parametrize("name", list(OPTIONS))
def test_it_learns(name):
    first, last = 0.0, 0.0
    for seed in range(3):
        torch.manual_seed(seed)
        model, rated = build(name, copies=6)
        x = torch.randn(64, 6)
        y = x[:, :3].argmax(1)
        losses = []
        for _ in range(120):
            rated.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            rated.step()
            losses.append(loss.item())
        assert model.posterior.max() > 1 / 6 + 1e-3
        first, last = first + losses[0], last + losses[-1]
    assert last < 0.8 * first  # 0.5 for Adafactor, 0.1 or less for the others


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(OPTIONS)),
    low=st.floats(1e-8, 1.0),
    decades=st.floats(0, 8),
    copies=st.integers(1, 5),
    scale=st.sampled_from([1e-20, 1.0, 1e10, 1e30, float("inf"), float("nan")]),
)
def test_whatever_the_gradients_the_body_stays_finite(name, low, decades, copies, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one copy, or a decay beyond 1
        model, rated = build(name, copies=copies, lr=(low, low * 10**decades))
    for _ in steps(model, 3):
        for p in model.body_parameters():
            p.grad.view(-1)[::3] *= scale
        grads = [p.grad.clone() for p in model.parameters()]
        rated.step()
        for p, grad in zip(model.parameters(), grads, strict=True):
            assert torch.equal(p.grad, grad) or not grad.isfinite().all(), "the gradients are the user's"
    assert all(p.isfinite().all() for p in model.body_parameters())
    assert model.posterior.sum().item() == pytest.approx(1)
