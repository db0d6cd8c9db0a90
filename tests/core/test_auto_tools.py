"""Auto beside torch's own tools: clipping, weight averages, the compiler, devices, schedulers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.auto_runs import batch, build, equal, train, weights
from support.needs import needs_compile
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

# The swap.


def test_the_swap_is_in_place_and_counted():
    model, optimizer = build()
    train(model, optimizer, 0, 60)
    parameters = list(model.parameters())
    places = [p.data_ptr() for p in parameters]
    for mode in (False, True):
        versions = [p._version for p in parameters]
        model.train(mode)
        assert [p._version - before for p, before in zip(parameters, versions, strict=True)] == [1] * 4
    assert [p.data_ptr() for p in parameters] == places
    assert all(map(torch.is_tensor, parameters))
    versions = [p._version for p in parameters]
    model.train()
    model(batch(0)[0])
    optimizer.train()
    assert [p._version for p in parameters] == versions, "nothing to do: nothing done"


@needs_compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_evaluations_of_a_compiled_model_recompile_nothing():
    torch._dynamo.reset()
    model, optimizer = build()
    train(model, optimizer, 0, 50)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def epoch(start):
        compiled.train()
        train(compiled, optimizer, start, start + 3)
        compiled.eval()
        with torch.no_grad():
            return compiled(batch(0)[0])

    epoch(50)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = [epoch(start) for start in (53, 56, 59)]
    other, its_optimizer = build()
    train(other, its_optimizer, 0, 62)
    torch.testing.assert_close(found[-1], other.eval()(batch(0)[0]).detach(), rtol=1e-3, atol=1e-4)


# Clipping.


def losses_with(clip, seed, steps=200):
    model, optimizer = build(seed, hidden=32)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        clip(model)
        optimizer.step()
    model.eval()
    x = torch.cat([batch(step)[0] for step in range(1000, 1020)])
    return F.cross_entropy(model(x), x[:, :3].argmax(1)).item()


@pytest.mark.parametrize("norm", [1.0, 1e-3])
def test_torchs_own_clipping_of_all_gradients_does_no_harm(norm):
    """The direction of a step has about unit size, whatever scales the gradients."""
    ways = [
        lambda model: None,
        lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), norm),
        lambda model: model.clip_grad_norm_(norm),
    ]
    plain, clipped, apart = (sum(losses_with(way, seed) for seed in range(3)) / 3 for way in ways)
    assert plain < 0.3
    assert clipped < plain + 0.05
    assert apart < plain + 0.05


def test_a_scale_on_all_gradients_changes_nothing():
    one, other = build(dtype=torch.float64, eps=1e-30), build(dtype=torch.float64, eps=1e-30)
    for step in range(60):
        x, y = batch(step, torch.float64)
        for (model, optimizer), scale in ((one, 1.0), (other, 2.0**-10)):
            optimizer.zero_grad()
            (scale * F.cross_entropy(model(x), y)).backward()
            optimizer.step()
    for p, q in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


# Weight averages of torch.


def test_an_ema_of_the_model_and_evaluations_of_it_change_nothing():
    model, optimizer = build(norm=True)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    expected = [p.detach().clone() for p in model.parameters()]
    for step in range(70):
        train(model, optimizer, step, step + 1)
        ema.update_parameters(model)
        with torch.no_grad():
            for mean, p in zip(expected, model.parameters(), strict=True):
                mean.copy_(p) if step == 0 else mean.lerp_(p, 0.1)
        ema.eval()
        with torch.no_grad():
            ema(batch(step)[0])
        ema.train()
    for p, mean in zip(ema.module.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), mean, rtol=1e-5, atol=1e-6)
    update_bn([batch(step)[0] for step in range(3)], ema)
    twin, its_optimizer = build(norm=True)
    train(twin, its_optimizer, 0, 70)
    assert equal(weights(model), weights(twin))


# Devices and schedulers.


@pytest.mark.parametrize("at", [0, 20, 60])
def test_rates_and_state_follow_a_model_to_another_device(at):
    """No second device is there to compute on: the optimizer is told that its model was elsewhere."""
    model, optimizer = build()
    train(model, optimizer, 0, at)
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    its_optimizer._device = torch.device("meta")
    for rates in its_optimizer.rates_of_groups:
        rates.entries = [e._replace(rate=torch.as_tensor(e.rate).to("meta")) for e in rates.entries]
    for each, its in ((model, optimizer), (twin, its_optimizer)):
        train(each, its, at, 70)
    assert equal(weights(model), weights(twin))
    assert equal(weights(model.eval()), weights(twin.eval()))


def test_the_learning_rate_to_log():
    model, optimizer = build()
    assert optimizer.interval() == pytest.approx((6e-6, 6e-6))
    train(model, optimizer, 0, 60)
    low, high = optimizer.interval()
    assert high == low != pytest.approx(1e-3), "one rate"
    body = torch.cat([optimizer.rates(p).flatten() for p in model.body_parameters()])
    assert body.tolist() == pytest.approx([low] * len(body))
    assert optimizer.param_groups[0]["lr"] == 1.0, "the factor"
    assert optimizer.param_groups[0]["d"] == low, "as Prodigy's users log it"
    assert optimizer.interval(copies=True) == pytest.approx((0.01 * low, low))
