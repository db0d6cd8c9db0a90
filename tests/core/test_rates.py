"""Distributions of rates, how they are drawn for a model, how intervals move, and what is refused."""

import copy
import json
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import alrao
from alrao.rates import describe, rebuild

QUICK = settings(deadline=None, max_examples=30)
INTERVALS = st.tuples(st.floats(1e-30, 1e30), st.floats(1e-30, 1e30)).map(sorted).map(tuple)


def mlp(width=8):
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def make(lr=(1e-5, 10.0), copies=4, optimizer=alrao.SGD, width=8, **options):
    model = alrao.Alrao(mlp(width), copies)
    return model, optimizer(model, lr=lr, **options)


def all_rates(optimizer, params=None):
    params = optimizer.model.parameters() if params is None else params
    return [optimizer.rates(p) for p in params]


def train(model, optimizer, steps=1):
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        y = torch.randint(3, (8,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


# The laws on their own.


@pytest.mark.parametrize(("lo", "hi"), [(1e-5, 10.0), (1e-3, 1e-2), (0.5, 200.0)])
def test_log_uniform_has_a_uniform_logarithm(lo, hi):
    rates = alrao.LogUniform(lo, hi).draw(20_000, torch.Generator().manual_seed(3))
    uniform = stats.uniform(math.log(lo), math.log(hi / lo))
    assert stats.kstest(rates.log().numpy(), uniform.cdf).pvalue > 0.01
    assert rates.dtype == torch.float64


@QUICK
@given(INTERVALS, st.integers(1, 20))
def test_log_uniform_stays_within_its_bounds(interval, count):
    lo, hi = interval
    rates = alrao.LogUniform(lo, hi).draw(count)
    assert rates.shape == (count,)
    assert bool(((rates >= lo) & (rates <= hi)).all())


@QUICK
@given(INTERVALS, st.integers(2, 20))
def test_the_grid_is_even_in_the_logarithm_with_both_ends(interval, copies):
    lo, hi = interval
    grid = alrao.LogUniform(lo, hi).grid(copies)
    formula = [math.exp(math.log(lo) + j / (copies - 1) * math.log(hi / lo)) for j in range(copies)]
    torch.testing.assert_close(grid, torch.tensor(formula, dtype=torch.float64), rtol=1e-12, atol=0)
    assert (grid[0].item(), grid[-1].item()) == (lo, hi)


def test_constant():
    law = alrao.Constant(0.3)
    assert law.draw(3).tolist() == law.grid(3).tolist() == [0.3] * 3


def test_bernoulli_freezes_a_fraction_of_the_features_and_no_copy():
    law = alrao.paper.Bernoulli(0.3, 0.7)
    rates = law.draw(4000, torch.Generator().manual_seed(0))
    assert set(rates.tolist()) == {0.0, 0.3}
    learning = int((rates > 0).sum())
    assert stats.binomtest(learning, 4000, 0.7).pvalue > 0.001
    assert law.grid(4).tolist() == [0.3] * 4


@pytest.mark.parametrize(("p", "learning"), [(0.0, 0), (1.0, 500)])
def test_bernoulli_at_its_ends(p, learning):
    assert int((alrao.paper.Bernoulli(0.3, p).draw(500) > 0).sum()) == learning


def test_frozen_features_do_not_move():
    model, optimizer = make(alrao.paper.Bernoulli(0.5, 0.5), width=16)
    before = model.net[2].weight.detach().clone()
    train(model, optimizer, 3)
    frozen = optimizer.rates(model.net[2].weight).flatten() == 0
    same = (model.net[2].weight == before).all(1)
    assert frozen.any()
    assert not frozen.all()
    assert bool(same[frozen].all())
    assert not bool(same[~frozen].all())


def test_a_distribution_of_the_users():
    class TwoRates(alrao.RateDistribution):
        def quantile(self, u):
            return torch.where(u < 0.5, 0.1, 0.2).to(u)

        def grid(self, copies):
            return torch.linspace(0.1, 0.2, copies, dtype=torch.float64)

    model, optimizer = make(TwoRates(), copies=3, width=50)
    assert {round(rate, 6) for rate in optimizer.rates(model.net[0].weight).flatten().tolist()} == {0.1, 0.2}
    torch.testing.assert_close(optimizer.rates(model.head.bias).flatten(), torch.tensor([0.1, 0.15, 0.2]))


@settings(deadline=None)
@given(low=st.floats(-300, 300), span=st.floats(0, 600), places=st.lists(st.floats(0, 1), min_size=2))
def test_quantiles_of_an_interval_rise_from_its_lower_end_to_its_upper(low, span, places):
    lo, hi = 10.0**low, 10.0 ** min(low + span, 300)
    rates = alrao.LogUniform(lo, hi).quantile(torch.tensor([0.0, *sorted(places), 1.0]).double())
    assert (rates.diff() >= 0).all()
    assert (rates >= lo).all()
    assert (rates <= hi).all()
    assert rates[0] == pytest.approx(lo)
    assert rates[-1] == pytest.approx(hi)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_the_quantiles_of_bernoulli(p):
    u = torch.linspace(0, 1, 11, dtype=torch.float64)[:-1]
    assert alrao.paper.Bernoulli(0.5, p).quantile(u).tolist() == [
        0.5 if x >= 1 - p else 0.0 for x in u.tolist()
    ]


DISTRIBUTIONS = [
    alrao.LogUniform(1e-3, 1.0),
    alrao.Constant(0.1),
    alrao.paper.Bernoulli(0.1, 0.5),
    alrao.paper.PerWeight((1e-3, 1.0)),
    alrao.paper.Redrawn(alrao.paper.Bernoulli(0.1, 0.5)),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=repr)
def test_a_description_is_plain_and_rebuilds_the_distribution(distribution):
    description = describe(distribution)
    assert json.loads(json.dumps(description)) == description
    assert rebuild(description) == distribution


def test_an_interval_that_is_moved_keeps_every_place():
    model, optimizer = make((1e-4, 1.0), copies=4)
    before = {p: optimizer.rates(p).double() for p in model.parameters()}
    optimizer.set_interval(body=(1e-2, 1e-1), copies=(1e-3, 1e-2))
    assert optimizer.interval() == (1e-2, 1e-1)
    assert optimizer.interval(copies=True) == (1e-3, 1e-2)
    for p, rates in before.items():
        place = (rates / 1e-4).log() / math.log(1e4)
        low = 1e-2 if p in set(model.body_parameters()) else 1e-3
        torch.testing.assert_close(optimizer.rates(p).double(), low * 10**place, rtol=1e-5, atol=0)
    torch.testing.assert_close(optimizer.copy_rates(initial=True), alrao.LogUniform(1e-4, 1.0).grid(4))


@pytest.mark.parametrize("wrong", [(1.0, 0.1), (0.0, 1.0), (math.nan, 1.0)])
def test_a_wrong_interval_moves_nothing(wrong):
    model, optimizer = make((1e-4, 1.0), copies=4)
    before = [optimizer.rates(p) for p in model.parameters()]
    with pytest.raises(ValueError, match="interval"):
        optimizer.set_interval(body=(0.1, 0.2), copies=wrong)
    assert optimizer.interval() == (1e-4, 1.0)
    assert all(map(torch.equal, before, [optimizer.rates(p) for p in model.parameters()]))


@pytest.mark.filterwarnings("ignore:lr=0.1 gives all")
def test_a_group_without_an_interval_cannot_be_moved():
    _, optimizer = make(0.1, copies=4)
    assert optimizer.interval() == (0.1, 0.1)
    with pytest.raises(ValueError, match=r"Constant\(lr=0.1\) has no interval.*lr=\(low, high\)"):
        optimizer.set_interval(body=(0.1, 0.2))


# The distributions in a model.


def test_the_features_of_a_model_follow_the_law():
    model, optimizer = make((1e-4, 1.0), width=2000, generator=torch.Generator().manual_seed(1))
    rates = torch.cat([optimizer.rates(model.net[i].bias) for i in (0, 2)])
    uniform = stats.uniform(math.log(1e-4), math.log(1e4))
    assert stats.kstest(rates.log().numpy(), uniform.cdf).pvalue > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rates_of_a_number_are_that_number(dtype):
    model = alrao.Alrao(mlp().to(dtype), copies=1)
    optimizer = alrao.SGD(model, lr=0.1)
    for p in model.parameters():
        # bfloat16 parameters have rates in float32: they are never rounded to the parameters' type.
        wide = torch.promote_types(dtype, torch.float32)
        assert bool((optimizer.rates(p).to(wide) == torch.tensor(0.1, dtype=wide)).all())
        assert optimizer.rates(p).expand_as(p).shape == p.shape


def test_per_weight_gives_every_weight_a_rate():
    model, optimizer = make(alrao.paper.PerWeight((1e-5, 10.0)))
    rates = [optimizer.rates(p) for p in model.net[:4].parameters()]
    assert [rate.shape for rate in rates] == [p.shape for p in model.net[:4].parameters()]
    flat = torch.cat([rate.flatten() for rate in rates])
    assert len(flat.unique()) == flat.numel()
    assert optimizer.rates(model.head.weight).shape == (4, 1, 1)  # the copies keep the grid


def test_redrawn_rates_change_at_every_step_and_those_of_the_copies_do_not():
    model, optimizer = make(alrao.paper.Redrawn((1e-5, 0.1)))
    of_copies = optimizer.rates(model.head.weight)
    seen = [optimizer.rates(model.net[0].weight).flatten()]
    for _ in range(3):
        train(model, optimizer)
        seen.append(optimizer.rates(model.net[0].weight).flatten())
        assert torch.equal(optimizer.rates(model.net[0].bias), seen[-1]), "still one rate for a feature"
    assert len(torch.cat(seen).unique()) == 4 * 8
    assert torch.equal(optimizer.rates(model.head.weight), of_copies)


def test_redrawn_rates_go_on_alike_after_a_resume():
    model, optimizer = make(alrao.paper.Redrawn((1e-5, 0.1)))
    train(model, optimizer, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3)
    torch.manual_seed(12345)  # the new process draws other seeds
    again, again_optimizer = make(alrao.paper.Redrawn((1e-5, 0.1)))
    again.load_state_dict(saved[0])
    again_optimizer.load_state_dict(saved[1])
    train(again, again_optimizer, 3)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(optimizer.rates(p), again_optimizer.rates(q))
        assert torch.equal(p, q)


# Reproducible draws.


def test_rates_follow_manual_seed():
    draws = []
    for seed in (5, 5, 6):
        model = alrao.Alrao(mlp())
        torch.manual_seed(seed)
        draws.append(torch.cat([rate.flatten() for rate in all_rates(alrao.SGD(model))]))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_rates_follow_the_generator_which_leaves_the_global_one_alone():
    draws = []
    for global_seed in (1, 2):
        model = alrao.Alrao(mlp())
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        optimizer = alrao.SGD(model, generator=torch.Generator().manual_seed(11))
        assert torch.equal(torch.get_rng_state(), state)
        draws.append(torch.cat([rate.flatten() for rate in all_rates(optimizer)]))
    assert torch.equal(draws[0], draws[1])


@pytest.mark.parametrize(
    "law", [(1e-5, 10.0), alrao.paper.PerWeight((1e-5, 10.0))], ids=["features", "weights"]
)
def test_rates_do_not_depend_on_the_groups(law):
    model = alrao.Alrao(mlp())
    params = list(model.parameters())
    groupings = [
        None,
        params[::-1],
        [{"params": params[::2]}, {"params": params[1::2], "weight_decay": 0.1}],
        [{"params": [p], "lr": law} for p in params],
    ]
    draws = [
        all_rates(alrao.SGD(model, lr=law, params=groups, generator=torch.Generator().manual_seed(2)), params)
        for groups in groupings
    ]
    for draw in draws[1:]:
        assert all(torch.equal(one, other) for one, other in zip(draws[0], draw, strict=True))


def test_rates_broadcast_to_every_trainable_parameter_and_are_not_the_state_itself():
    model, optimizer = make()
    for p in model.parameters():
        rates = optimizer.rates(p)
        assert rates.expand_as(p).shape == p.shape
        rates.zero_()
        assert bool((optimizer.rates(p) > 0).all())


def test_rates_of_a_stranger_are_refused():
    _, optimizer = make()
    with pytest.raises(KeyError, match="a parameter that this optimizer trains"):
        optimizer.rates(torch.zeros(3))


# Warnings and errors.


def test_an_interval_with_one_copy_says_which_rate_it_gets():
    with pytest.warns(UserWarning, match=r"single copy.*0\.01"):
        _, optimizer = make((1e-5, 10.0), copies=1)
    torch.testing.assert_close(optimizer.rates(optimizer.model.head.bias), torch.full((1, 1), 0.01))


@pytest.mark.parametrize("optimizer", [alrao.SGD, alrao.Adam, alrao.AdamW])
def test_a_number_with_several_copies_warns(optimizer):
    with pytest.warns(UserWarning, match=r"lr=0\.01.*all 4 copies.*interval"):
        make(0.01, optimizer=optimizer)


def test_neither_warns_where_it_means_something():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(0.01, copies=1)
        make((0.01, 0.01), copies=1)
        make((1e-5, 10.0), copies=2)
        model = alrao.Alrao(mlp())  # a number for a group of the body alone is a choice
        groups = [{"params": model.net[0].parameters(), "lr": 0.1}, {"params": model.head.parameters()}]
        optimizer = alrao.SGD(model, params=groups)
    assert bool((optimizer.rates(model.net[0].bias) == 0.1).all())


@pytest.mark.parametrize(
    ("lr", "error", "message"),
    [
        ((10.0, 1e-5), ValueError, r"low to high.*\(10, 1e-05\).*swap"),
        ((0.0, 1.0), ValueError, r"lower end.*positive.*0\.0"),
        ((-1.0, 1.0), ValueError, r"lower end.*positive.*-1\.0"),
        ((1e-3, 0.0), ValueError, r"upper end.*positive.*0\.0"),
        ((1e-3, math.inf), ValueError, "upper end.*finite.*inf"),
        ((math.nan, 1.0), ValueError, "lower end.*finite.*nan"),
        ((1e-3, math.nan), ValueError, "upper end.*finite.*nan"),
        ((1e-3,), ValueError, "two ends"),
        ((1e-3, 1.0, 2.0), ValueError, "two ends"),
        ((), ValueError, "two ends"),
        (("low", 1.0), TypeError, "number.*'low'"),
        ((1e-3, None), TypeError, "number.*None"),
        (0.0, ValueError, r"positive.*0\.0"),
        (-0.1, ValueError, r"positive.*-0\.1"),
        (math.nan, ValueError, "finite.*nan"),
        (math.inf, ValueError, "finite.*inf"),
        ("0.1", TypeError, "interval.*'0.1'"),
        (None, TypeError, "interval.*None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", [alrao.SGD, alrao.Adam])
def test_bad_rates_are_refused_and_nothing_changes(optimizer, lr, error, message):
    model = alrao.Alrao(mlp())
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    with pytest.raises(error, match=message):
        optimizer(model, lr=lr)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_bernoulli_needs_a_probability(p):
    with pytest.raises(ValueError, match="probability"):
        alrao.paper.Bernoulli(0.1, p)


@pytest.mark.parametrize("law", [alrao.paper.PerWeight, alrao.paper.Redrawn])
def test_ablations_check_what_they_draw_from(law):
    with pytest.raises(ValueError, match="low to high"):
        law((1.0, 0.1))
