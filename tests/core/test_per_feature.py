"""Any torch optimizer with a rate for every feature: the plain one, slow references, groups, checkpoints."""

import copy
import pickle
import warnings
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import needs_muon
from support.stepping import batches, deep_mlp, same, snapshot, train
from torch import nn, optim

import alrao

OPTIONS = {
    "ASGD": [{}, {"t0": 2, "lambd": 0.01, "weight_decay": 0.01}],
    "Adadelta": [{}, {"weight_decay": 0.01, "rho": 0.8}],
    "Adafactor": [{}, {"weight_decay": 0.01, "d": 2.0}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.01}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.01}],
    "AdamW": [{}, {"betas": (0.5, 0.9)}],
    "Adamax": [{}, {"weight_decay": 0.01}],
    "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.01}],
    "RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.01}],
    "RMSprop": [{}, {"centered": True, "momentum": 0.9}],
    "Rprop": [{}, {"etas": (0.4, 1.5)}],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}],
    "Muon": [{}, {"momentum": 0.8, "nesterov": False}],
}
if not hasattr(optim, "Muon"):  # it came with torch 2.9
    del OPTIONS["Muon"]


def network(name):
    """Muon takes only matrices, so there are no biases for it."""
    if name != "Muon":
        return deep_mlp()
    layers = [nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False)]
    return nn.Sequential(*layers)


def build(name, copies=4, dtype=torch.float32, **options):
    model = alrao.Alrao(network(name).to(dtype), copies)
    return model, alrao.PerFeature(getattr(optim, name), model, **options)


def steps(model, count, dtype=torch.float32):
    """Gradients at the model's own weights, batch by batch."""
    for x, y in batches(count, 6):
        model.zero_grad()
        F.cross_entropy(model(x.to(dtype)), y).backward()
        yield


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


# A real optimizer: groups, schedules, checkpoints.


def test_it_is_an_optimizer_of_torch():
    model, rated = build("NAdam", lr=(1e-5, 1e-1), betas=(0.8, 0.99))
    assert isinstance(rated, optim.Optimizer)
    (group,) = rated.param_groups
    assert group["lr"] == 1.0
    assert group["betas"] == (0.8, 0.99)
    assert "u" in rated.state[model.net[0].weight]
    assert "NAdam" in repr(rated)


def test_the_rates_are_those_of_the_other_optimizers():
    model = alrao.Alrao(deep_mlp(), 4)
    rated, sgd = (
        kind(lr=(1e-4, 1.0), generator=torch.Generator().manual_seed(3))
        for kind in (
            lambda **options: alrao.PerFeature(optim.NAdam, model, **options),
            lambda **options: alrao.SGD(model, **options),
        )
    )
    assert all(torch.equal(rated.rates(p), sgd.rates(p)) for p in model.parameters())


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_it_agrees_with_the_optimizers_written_out(name):
    options = {"momentum": 0.9} if name == "SGD" else {"weight_decay": 0.01}
    runs = []
    for kind in (getattr(alrao, name), lambda *a, **k: alrao.PerFeature(getattr(optim, name), *a, **k)):
        torch.manual_seed(5)
        model = alrao.Alrao(deep_mlp().double(), 4)
        optimizer = kind(model, lr=(1e-4, 0.5), **options)
        for _ in steps(model, 5, torch.float64):
            optimizer.step()
        runs.append(model)
    for p, q in zip(runs[0].parameters(), runs[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(runs[0].posterior, runs[1].posterior)


def test_the_interval_unless_given_lies_around_the_optimizers_own_rate():
    model, rated = build("NAdam")
    assert rated.rates(model.head.weight).flatten()[[0, -1]].tolist() == pytest.approx([2e-6, 2.0])


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_schedule_is_a_factor_on_all_rates(name):
    model, rated = build(name, lr=(1e-4, 0.1))
    train(model, rated, 2)
    before = [p.detach().clone() for p in model.parameters()]
    rated.param_groups[0]["lr"] = 0.0
    train(model, rated, 1)
    for p, was in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), was, rtol=1e-6, atol=1e-7)
    twin, its = copy.deepcopy((model, rated))
    moved = []
    for each, optimizer, factor in ((model, rated, 0.5), (twin, its, 0.25)):
        optimizer.param_groups[0]["lr"] = factor
        was = [p.detach().clone() for p in each.parameters()]
        train(each, optimizer, 1)
        moved.append([p.detach() - q for p, q in zip(each.parameters(), was, strict=True)])
    for whole, half in zip(*moved, strict=True):
        torch.testing.assert_close(whole, 2 * half, rtol=1e-3, atol=1e-6)


def test_options_changed_in_a_group_count():
    model, rated = build("SGD", lr=(1e-3, 0.1), momentum=0.9)
    train(model, rated, 2)
    twin, its = copy.deepcopy((model, rated))
    its.param_groups[0]["momentum"] = 0.0
    train(model, rated, 2)
    train(twin, its, 2)
    assert not torch.equal(model.net[0].weight, twin.net[0].weight)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_checkpoint_continues_to_the_same_bits(name, tmp_path):
    model, rated = build(name, lr=(1e-4, 0.1))
    train(model, rated, 3)
    torch.save({"model": model.state_dict(), "optimizer": rated.state_dict()}, tmp_path / "saved.pt")
    train(model, rated, 3)
    again, its = build(name, lr=(1e-3, 0.2))
    train(again, its, 1)
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again.load_state_dict(saved["model"])
    its.load_state_dict(saved["optimizer"])
    train(again, its, 3)
    assert same(snapshot(again, its), snapshot(model, rated))


@pytest.mark.parametrize("name", ["NAdam", "Adafactor", pytest.param("Muon", marks=needs_muon), "ASGD"])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_and_pickles_continue_to_the_same_bits(name, way):
    model, rated = build(name, lr=(1e-4, 0.1))
    train(model, rated, 3)
    twin, its = way((model, rated))
    at_copy = snapshot(twin, its)
    train(model, rated, 3)
    assert same(snapshot(twin, its), at_copy)
    train(twin, its, 3)
    assert same(snapshot(twin, its), snapshot(model, rated))


def test_a_state_that_does_not_fit_is_refused_with_nothing_changed():
    model, rated = build("NAdam", lr=(1e-4, 0.1))
    train(model, rated, 2)
    before = snapshot(model, rated)
    other, of_other = build("Adam", lr=(1e-4, 0.1))
    with pytest.raises(ValueError, match="state is of Adam, this optimizer steps with NAdam"):
        rated.load_state_dict(of_other.state_dict())
    other = alrao.Alrao(nn.Sequential(nn.Linear(5, 16), deep_mlp()[1:]), 4)
    of_other = alrao.PerFeature(optim.NAdam, other, lr=(1e-4, 0.1))
    train(other, of_other, 1, shape=(5,))
    with pytest.raises(ValueError, match="is of another model"):
        rated.load_state_dict(of_other.state_dict())
    with pytest.raises(ValueError, match="not the state of an alrao optimizer"):
        rated.load_state_dict(optim.NAdam(deep_mlp().parameters()).state_dict())
    assert same(snapshot(model, rated), before)


@needs_muon
def test_muon_for_the_matrices_and_another_for_the_rest():
    model = alrao.Alrao(deep_mlp(), 4)
    matrices = [p for p in model.body_parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in matrices)]
    rated = alrao.PerFeature(
        optim.AdamW,
        model,
        params=[{"params": matrices, "optimizer": optim.Muon, "momentum": 0.9}, {"params": rest}],
        betas=(0.8, 0.9),
    )
    muon, adamw = rated.param_groups
    assert (muon["optimizer"], muon["momentum"], adamw["betas"]) == ("Muon", 0.9, (0.8, 0.9))
    assert (muon["weight_decay"], adamw["weight_decay"]) == (0.1, 0.01), "each one's own default"
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, rated, 3)
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert set(rated.state[matrices[0]]["inner"]) == {"momentum_buffer"}
    twin = alrao.PerFeature(
        optim.AdamW, model, params=[{"params": matrices, "optimizer": optim.Muon}, {"params": rest}]
    )
    twin.load_state_dict(rated.state_dict())
    assert same(twin.state_dict(), rated.state_dict())


def test_an_optimizer_of_ones_own():
    class SignSGD(optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(group["lr"] * p.grad.sign())

    model = alrao.Alrao(deep_mlp().double(), 4)
    with pytest.raises(ValueError, match=r"no default learning rate: pass an interval"):
        alrao.PerFeature(SignSGD, model)
    rated = alrao.PerFeature(SignSGD, model, lr=(1e-4, 0.1))
    before = [p.detach().clone() for p in model.parameters()]
    train_once = steps(model, 1, torch.float64)
    next(train_once)
    rated.step()
    for p, was in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), was - rated.rates(p) * p.grad.sign())


def test_groups_have_intervals_and_options_of_their_own():
    model = alrao.Alrao(deep_mlp(), 4)
    rated = alrao.PerFeature(
        optim.RMSprop,
        model,
        lr=(1e-4, 1e-2),
        params=[
            {"params": model.body_parameters(), "lr": (1e-6, 1e-5), "weight_decay": 0.1},
            {"params": model.head.parameters()},
        ],
    )
    assert [group["weight_decay"] for group in rated.param_groups] == [0.1, 0]
    assert [group["base_lr"] for group in rated.param_groups][1] == pytest.approx(1e-2)
    assert rated.rates(model.net[0].weight).max() <= 1e-5
    train(model, rated, 2)


def test_redrawn_rates():
    model, rated = build("NAdam", lr=alrao.paper.Redrawn((1e-4, 0.1)))
    first = rated.rates(model.net[0].weight)
    train(model, rated, 2)
    assert not torch.equal(rated.rates(model.net[0].weight), first)


def test_frozen_features_stay():
    model, rated = build("NAdam", lr=alrao.paper.Bernoulli(0.1, 0.5))
    weight = model.net[0].weight
    before, frozen = weight.detach().clone(), rated.rates(weight).flatten() == 0
    train(model, rated, 3)
    assert torch.equal(weight[frozen], before[frozen])
    assert not torch.equal(weight[~frozen], before[~frozen])


def test_a_wrong_loss_changes_nothing():
    model, rated = build("NAdam")
    before = snapshot(model, rated)
    (model(torch.randn(8, 6)).exp() ** 2).sum().backward()
    with pytest.raises(RuntimeError, match="not a negative log-likelihood"):
        rated.step()
    assert same(snapshot(model, rated), before)


# What is refused.


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m: alrao.PerFeature(optim.LBFGS, m), TypeError, "searches along one line"),
        (lambda m: alrao.PerFeature(optim.SparseAdam, m), TypeError, "only sparse gradients. Use alrao.SGD"),
        (lambda m: alrao.PerFeature(alrao.SGD, m), TypeError, "already has a rate.*use alrao.SGD"),
        (
            lambda m: alrao.PerFeature(m, optim.NAdam),
            TypeError,
            "class of an optimizer first, then the model",
        ),
        (lambda m: alrao.PerFeature(optim.NAdam, m.state_dict()), TypeError, "take a model"),
        (lambda m: alrao.PerFeature(optim.NAdam, m, beta=1), TypeError, "unexpected keyword argument 'beta'"),
        (lambda m: alrao.PerFeature(optim.NAdam, m, betas=(2, 3)), ValueError, "Invalid beta"),
        (lambda m: alrao.PerFeature(optim.Adagrad, m, capturable=True), ValueError, "capturable=True is not"),
        (lambda m: alrao.PerFeature(optim.NAdam, m, base_lr=0.0), ValueError, "base_lr must be a positive"),
        (lambda m: alrao.PerFeature(optim.NAdam, m, lr=(1, 0.1)), ValueError, "from low to high"),
        pytest.param(
            lambda m: alrao.PerFeature(optim.Muon, m),
            ValueError,
            "another optimizer the rest",
            marks=needs_muon,
        ),
    ],
)
def test_what_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(alrao.Alrao(deep_mlp(), 4))


@needs_muon
def test_a_refused_group_leaves_no_trace():
    model = alrao.Alrao(deep_mlp(), 4)
    rated = alrao.PerFeature(optim.AdamW, model, params=[{"params": model.head.parameters()}])
    with pytest.raises(ValueError, match="2D"):
        rated.add_param_group({"params": model.body_parameters(), "optimizer": optim.Muon})
    assert len(rated.param_groups) == 1
    train(model, rated, 2)
    assert rated.state.keys() == set(model.head.parameters())


def test_decay_beyond_everything_is_warned_of():
    with pytest.warns(UserWarning, match="overshoots zero"):
        build("SGD", lr=(1e-3, 10.0), weight_decay=0.5)


def test_sparse_gradients_are_refused():
    net = nn.Sequential(nn.Embedding(9, 6, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    model = alrao.Alrao(net, 4)
    rated = alrao.PerFeature(optim.NAdam, model)
    F.cross_entropy(model(torch.randint(9, (5, 2))), torch.randint(3, (5,))).backward()
    with pytest.raises(RuntimeError, match=r"sparse gradients need alrao.SGD"):
        rated.step()
