"""A plain network in everyday loops: schedulers, clipping, scaling, groups, frozen layers, GANs, summary."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.stepping import deep_mlp, same
from torch import nn
from torch.optim import lr_scheduler

import alrao

MAKE = {
    "SGD": lambda net, **options: alrao.SGD(net, lr=(1e-3, 0.1), **options),
    "AdamW": lambda net, **options: alrao.AdamW(net, lr=(1e-4, 0.1), **options),
    "Auto": lambda net, **options: alrao.Auto(net, steps=20, **options),
}


@pytest.fixture(params=MAKE)
def make(request):
    def make(net, **options):
        torch.manual_seed(1)
        return MAKE[request.param](net, **options)

    return make


def batch(step, rows=12):
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(step))


def loss_of(net, x):
    """A loss that is no likelihood."""
    return 1 - F.cosine_similarity(net(x), x[:, :3]).mean() + 0.01 * net(x).square().mean()


def train(net, optimizer, steps=10, after=lambda: None):
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, batch(step)).backward()
        optimizer.step()
        after()


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def equal(one, other):
    return all(map(torch.equal, one, other))


def twins():
    torch.manual_seed(0)
    net = deep_mlp()
    return net, copy.deepcopy(net)


# Loops.


def test_a_schedulers_factor_multiplies_the_rates():
    """At a factor of one half, one step of SGD goes half as far."""
    net, twin = (each.double() for each in twins())
    torch.manual_seed(1)
    optimizer = alrao.SGD(net, lr=(1e-3, 0.1))
    torch.manual_seed(1)
    other = alrao.SGD(twin, lr=(1e-3, 0.1))
    lr_scheduler.ConstantLR(other, factor=0.5)
    start, x = weights(net), batch(0).double()
    for each, its in ((net, optimizer), (twin, other)):
        loss_of(each, x).backward()
        its.step()
    for p, q, was in zip(net.parameters(), twin.parameters(), start, strict=True):
        torch.testing.assert_close(q - was, (p - was) / 2)


@pytest.mark.filterwarnings("ignore:param_groups.* at the end of Auto's search")
@pytest.mark.filterwarnings("ignore:param_groups.* has fallen to")
def test_schedulers_of_torch_run(make):
    net, _ = twins()
    optimizer = make(net)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    train(net, optimizer, after=cosine.step)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)
    moving = [optimizer.state[p].get("z", p.detach()) for p in net.parameters()]  # not towards the average
    before = copy.deepcopy(moving)
    train(net, optimizer, 1)
    assert all(torch.allclose(a, b) for a, b in zip(moving, before, strict=True))


def test_clipping_by_torch_and_by_the_optimizers_view_agree(make):
    runs = []
    for net, way in zip(twins(), ("torch", "view"), strict=True):
        optimizer = make(net)
        for step in range(5):
            optimizer.zero_grad()
            (100 * loss_of(net, batch(step))).backward()
            if way == "torch":
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            else:
                optimizer.model.clip_grad_norm_(1.0)
            optimizer.step()
        runs.append(weights(net))
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other)


def test_a_closure_steps_like_a_loop(make):
    net, twin = twins()
    optimizer, other = make(net), make(twin)
    for step in range(10):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(net, batch(step))
            loss.backward()
            return loss

        assert optimizer.step(closure) == loss_of(twin, batch(step))
        other.zero_grad()
        loss_of(twin, batch(step)).backward()
        other.step()
    assert equal(weights(net), weights(twin))


def test_a_grad_scaler_changes_nothing_but_the_scale(make):
    net, twin = twins()
    optimizer, other = make(net), make(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(10):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, batch(step))).backward()
        scaler.step(optimizer)
        scaler.update()
    train(twin, other)
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_gradients_that_are_not_finite_do_not_reach_the_weights(make):
    net, _ = twins()
    optimizer = make(net)
    train(net, optimizer, 3)
    optimizer.zero_grad()
    (loss_of(net, batch(3)) * torch.tensor(torch.nan)).backward()
    optimizer.step()
    assert all(p.isfinite().all() for p in net.parameters())
    train(net, optimizer, 3)
    assert loss_of(net, batch(9)).isfinite()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("SGD", torch.bfloat16), ("AdamW", torch.bfloat16), ("Auto", torch.bfloat16), ("Auto", torch.float16)],
)
def test_narrow_types_train(name, dtype):
    net, _ = twins()
    net.to(dtype)
    optimizer = MAKE[name](net)
    x = batch(0, 64).to(dtype)
    first = loss_of(net, x).item()
    for _ in range(40):
        optimizer.zero_grad()
        loss_of(net, x).backward()
        optimizer.step()
    assert loss_of(net, x).item() < first
    assert {p.dtype for p in net.parameters()} == {dtype}


@pytest.mark.parametrize("kind", [alrao.SGD, alrao.AdamW])
def test_a_capturable_step_is_the_same(kind):
    net, twin = twins()
    for each, options in ((net, {}), (twin, {"capturable": True})):
        torch.manual_seed(1)
        train(each, kind(each, lr=(1e-4, 0.1), **options))
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two)


# Parameters.


def test_frozen_parameters_stay(make):
    net, _ = twins()
    net[0].requires_grad_(False)
    optimizer = make(net)
    before = weights(net)
    train(net, optimizer, 15)
    net.eval()
    assert equal(weights(net[0]), before[:2])
    assert not any(map(torch.equal, weights(net)[2:], before[2:]))


def test_groups_keep_their_own_rates_and_can_be_added(make):
    net, _ = twins()
    optimizer = make(net, params=[{"params": net[0].parameters(), "lr": 1e-2}])
    optimizer.add_param_group({"params": net[4].parameters()})
    before = weights(net)
    train(net, optimizer, 5)
    assert optimizer.rates(net[0].weight).tolist() == [[pytest.approx(1e-2)]]
    assert optimizer.rates(net[4].weight).unique().numel() == (1 if isinstance(optimizer, alrao.Auto) else 3)
    assert equal(weights(net[2]), before[2:4]), "in no group"
    assert not any(map(torch.equal, weights(net[4]), before[4:]))
    twin = copy.deepcopy(net)
    again = make(
        twin, params=[{"params": twin[0].parameters(), "lr": 1e-2}, {"params": twin[4].parameters()}]
    )
    again.load_state_dict(optimizer.state_dict())
    assert same(again.state_dict(), optimizer.state_dict())


def test_named_parameters_of_torch_are_taken_as_params():
    net, _ = twins()
    optimizer = alrao.AdamW(net, params=net.named_parameters(), lr=(1e-4, 0.1))
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"


def test_a_gan_has_an_optimizer_for_each_network():
    """Each step moves only its own network."""
    torch.manual_seed(0)
    maker, critic = nn.Linear(2, 6), deep_mlp()
    of_maker, of_critic = alrao.Auto(maker, steps=20), alrao.Auto(critic, steps=20)
    for step in range(12):
        fake = maker(batch(step)[:, :2])
        before = weights(maker)
        of_critic.zero_grad()
        (F.relu(1 - critic(batch(step)[:, :6])).mean() + F.relu(1 + critic(fake.detach())).mean()).backward()
        of_critic.step()
        assert equal(weights(maker), before)
        before = weights(critic)
        of_maker.zero_grad()
        (-critic(fake).mean()).backward()
        of_maker.step()
        assert equal(weights(critic), before)
    y, of_others = weights(maker), weights(critic)
    maker.eval()
    assert not equal(weights(maker), y)
    assert equal(weights(critic), of_others)


def test_weights_may_be_clamped_between_the_steps():
    """As in a Wasserstein GAN: it is no load, so the average continues."""
    net, _ = twins()
    optimizer = alrao.Auto(net, steps=20)

    @torch.no_grad()
    def clamp():
        for p in net.parameters():
            p.clamp_(-0.2, 0.2)

    train(net, optimizer, 15, clamp)
    assert {state["k"] for state in optimizer.state.values()} == {9}


# What is told.


def test_the_summary_of_a_plain_network():
    net, _ = twins()
    text = alrao.summary(net, alrao.Auto(net))
    lines = text.splitlines()
    assert lines[0].split() == ["layer", "type", "features", "rates", "parameters"]
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["0", "Linear", "16"], ["2", "Linear", "16"], ["4", "Linear", "3"],
    ]  # fmt: skip
    assert "total" in lines[-2]
    assert f"{sum(p.numel() for p in net.parameters()):,}" in lines[-2]
    assert lines[-1] == "no copies: a plain network, with any loss"


def test_the_summary_takes_what_the_optimizers_take():
    nets = [nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2))]
    lines = alrao.summary(nets, alrao.Auto(nets)).splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["0", "Linear", "3"], ["1.0", "Linear", "2"]]
    assert "e-0" in lines[2], "the rates"
    assert lines[-1] == "no copies: a plain network, with any loss"
    assert "23" in alrao.summary(nn.ModuleList(nets).named_parameters()).splitlines()[-2]
    assert "15" in alrao.summary(nets[0].parameters()).splitlines()[-2]


def test_recalibrate_takes_a_plain_network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = alrao.Auto(net, steps=20)
    train(net, optimizer, 15)
    y = weights(net)
    alrao.recalibrate(net, [batch(step) for step in range(3)])
    assert net.training
    assert equal(weights(net), y)
    net.eval()
    hidden = [net[0](batch(step)) for step in range(3)]
    torch.testing.assert_close(net[1].running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    torch.testing.assert_close(net[1].running_var, torch.stack([h.var(0) for h in hidden]).mean(0))
    with pytest.raises(ValueError, match="at least one batch"):
        alrao.recalibrate(net, [])


def test_auto_trains_a_classifier_that_was_not_wrapped():
    torch.manual_seed(0)
    net = deep_mlp()
    optimizer = alrao.Auto(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(200):
            x = batch(step, 32)
            optimizer.zero_grad()
            F.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
    net.eval()
    x = batch(1000, 500)
    assert (net(x).argmax(1) == x[:, :3].argmax(1)).float().mean() > 0.7


# Memory.


def bytes_of_a_step(net, optimizer):
    """The state before a step, and all that it sets aside at once."""
    optimizer.zero_grad()
    net(torch.randn(2, 256)).square().mean().backward()
    kept = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    at_once = now = sum(each.nbytes for each in kept)
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    events = (e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        at_once = max(at_once, now)
    return at_once


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("capturable", [False, True])
def test_a_search_needs_two_copies_of_the_weights_more_than_adam(capturable):
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    twin = copy.deepcopy(net)
    optimizer, adam = (
        alrao.Auto(net, capturable=capturable),
        torch.optim.Adam(twin.parameters(), foreach=True),
    )
    ours, theirs = ([bytes_of_a_step(*each) for _ in range(3)] for each in ((net, optimizer), (twin, adam)))
    assert not optimizer.search.over
    weights = sum(p.nbytes for p in net.parameters())
    assert max(ours) <= max(theirs) + 2.05 * weights  # the start, and the average that is evaluated
