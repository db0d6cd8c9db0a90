"""Rated as an optimizer of torch: groups, schedules, checkpoints, and what it refuses."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_muon
from support.rated_models import OPTIONS, build, steps
from support.stepping import deep_mlp, same, snapshot, train
from torch import nn, optim

import alrao

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
