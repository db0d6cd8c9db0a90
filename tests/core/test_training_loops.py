"""What people do around a training loop works as with any model and any optimizer."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import alrao

CRITERIA = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}


def mlp(*extra):
    return nn.Sequential(nn.Linear(4, 8), *extra, nn.Tanh(), nn.Linear(8, 3))


def batch(likelihood="categorical", size=12, dtype=torch.float32):
    x = torch.randn(size, 4, dtype=dtype)
    if likelihood == "categorical":
        return x, torch.randint(3, (size,))
    y = torch.randn(size, 3, dtype=dtype)
    return x, y if likelihood == "gaussian" else (y > 0).to(dtype)


def seeded_sgd(model, **kwargs):
    return alrao.SGD(model, **{"lr": (1e-3, 1.0), "generator": torch.Generator().manual_seed(1), **kwargs})


def twins(model, **options):
    """The model and an equal one, each with its optimizer; the rates are the same."""
    other = copy.deepcopy(model)
    return (model, seeded_sgd(model, **options)), (other, seeded_sgd(other, **options))


def assert_same(one, other, **tolerance):
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=lambda m, name=name: f"{name}: {m}")


# Accumulation, precision, averages of weights, graphs.


@pytest.mark.parametrize("evidence", ["mean", "sum"])
@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_accumulation_equals_the_large_batch(likelihood, evidence):
    model = alrao.Alrao(mlp().double(), 4, likelihood=likelihood)
    (whole, of_whole), (parts, of_parts) = twins(model, evidence=evidence)
    criterion = CRITERIA[likelihood]
    for _ in range(4):
        x, y = batch(likelihood, dtype=torch.float64)
        of_whole.zero_grad()
        of_parts.zero_grad()
        criterion(whole(x), y).backward()
        for i in range(3):
            (criterion(parts(x[4 * i : 4 * i + 4]), y[4 * i : 4 * i + 4]) / 3).backward()
        of_whole.step()
        of_parts.step()
    # The evidence is in float32, the rest in float64.
    assert_same(whole, parts, rtol=1e-5, atol=1e-6)
    assert whole.posterior.max() > 0.255


def amp_run(model, scale, steps=3):
    optimizer = seeded_sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    torch.manual_seed(3)
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss


def test_the_evidence_does_not_depend_on_the_scale_of_the_loss():
    model, other = alrao.Alrao(mlp(), 4), None
    other = copy.deepcopy(model)
    loss, _ = amp_run(model, 1.0), amp_run(other, 2.0**16)
    assert loss.dtype == torch.float32
    assert model.head.averaging.t == other.head.averaging.t == 4
    torch.testing.assert_close(model.posterior, other.posterior, rtol=1e-5, atol=0)
    assert model.posterior.max() - model.posterior.min() > 1e-3
    assert_same(model, other, rtol=1e-4, atol=1e-5)


def test_a_skipped_step_discards_its_evidence():
    (model, optimizer), (other, of_other) = twins(alrao.Alrao(mlp(), 4))
    scaler = torch.amp.GradScaler("cpu")
    before = copy.deepcopy(model.state_dict())
    x, y = batch()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    model.net[0].weight.grad[0, 0] = torch.inf  # as after an overflow in half precision
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    x, y = batch()
    for each, its in ((model, optimizer), (other, of_other)):
        its.zero_grad()
        F.cross_entropy(each(x), y).backward()
        its.step()
    assert_same(model, other, rtol=0, atol=0)


@pytest.mark.parametrize("clear", ["model", "optimizer"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_the_evidence(clear, set_to_none):
    model = alrao.Alrao(mlp(), 4)
    optimizer = alrao.SGD(model)
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    (model if clear == "model" else optimizer).zero_grad(set_to_none)
    optimizer.step()
    assert model.head.averaging.t == 1
    torch.testing.assert_close(model.posterior, torch.full((4,), 0.25))


def test_averaged_model_and_update_bn():
    model = alrao.Alrao(mlp(nn.BatchNorm1d(8)), 4)
    optimizer = seeded_sgd(model)
    averaged, seen = swa_utils.AveragedModel(model), []
    data = [batch() for _ in range(3)]
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        averaged.update_parameters(model)
        seen.append([p.detach().clone() for p in model.parameters()])
    for p, *values in zip(averaged.parameters(), *seen, strict=True):
        torch.testing.assert_close(p.detach(), torch.stack(values).mean(0))
    assert torch.equal(averaged.module.posterior, model.posterior)

    swa_utils.update_bn([x for x, _ in data], averaged)
    hidden = [averaged.module.net[0](x) for x, _ in data]
    expected = torch.stack([h.mean(0) for h in hidden]).mean(0)
    torch.testing.assert_close(averaged.module.net[1].running_mean, expected.detach())
    log_p = averaged.eval()(data[0][0])
    torch.testing.assert_close(log_p.exp().sum(-1).as_subclass(torch.Tensor), torch.ones(12))


@pytest.mark.parametrize("what", ["body", "model"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients(what, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last = mlp()[:2], nn.Linear(8, 3)

        def forward(self, x, save=False):
            return self.last(checkpoint(self.body, x, use_reentrant=reentrant) if save else self.body(x))

    model, grads = alrao.Alrao(Checkpointed(), 4), []
    x, y = batch()
    x.requires_grad_()  # the reentrant kind needs it
    for save in (False, True):
        model.zero_grad()
        if save and what == "model":
            out = checkpoint(model, x, use_reentrant=reentrant)
        else:
            out = model(x, save=save)
        F.cross_entropy(out, y).backward()
        grads.append([p.grad.clone() for p in model.parameters()] + [model.head.evidence.grad.clone()])
    for without, with_it in zip(*grads, strict=True):
        torch.testing.assert_close(with_it, without)
    assert all(grad.abs().sum() > 0 for grad in grads[0])


@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_two_backwards_through_a_retained_graph(likelihood):
    (model, optimizer), (other, of_other) = twins(alrao.Alrao(mlp(), 4, likelihood=likelihood))
    x, y = batch(likelihood)
    loss = CRITERIA[likelihood](model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    (2 * CRITERIA[likelihood](other(x), y)).backward()
    optimizer.step()
    of_other.step()
    assert_same(model, other)
    assert model.head.averaging.t == 2


def test_a_graph_older_than_the_last_step():
    # The posterior moves in place; a loss computed before it did keeps the weights it was computed with.
    (model, optimizer), (other, _) = twins(alrao.Alrao(mlp(), 4))
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    F.cross_entropy(other(x), y).backward()
    model.head.averaging.update(torch.tensor([0.0, -5.0, -5.0, -5.0]))
    loss.backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    optimizer.step()
    assert model.posterior.argmax() == 0


def test_step_takes_a_closure():
    (model, optimizer), (other, of_other) = twins(alrao.Alrao(mlp(), 4))
    x, y = batch()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    returned = optimizer.step(closure)
    expected = F.cross_entropy(other(x), y)
    expected.backward()
    of_other.step()
    torch.testing.assert_close(returned, expected)
    assert_same(model, other, rtol=0, atol=0)


def test_rates_do_not_depend_on_the_default_device():
    # torch.set_default_device puts new tensors elsewhere; "meta" stands for a device that is not here.
    model = alrao.Alrao(mlp(), 4)
    expected = seeded_sgd(model)
    with torch.device("meta"):
        optimizer = seeded_sgd(model)
    for p in model.parameters():
        assert torch.equal(optimizer.rates(p), expected.rates(p))


# Whole runs.


def learn(model, optimizer, likelihood="categorical", dtype=torch.float32, epochs=12):
    """Loss of every step on data that a linear map explains."""
    torch.manual_seed(5)
    x = torch.randn(128, 4, dtype=dtype)
    y = x @ torch.randn(4, 3, dtype=dtype)
    y = {"categorical": y.argmax(-1), "gaussian": y, "bernoulli": (y > 0).to(dtype)}[likelihood]
    losses = []
    for _ in range(epochs):
        for xs, ys in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = CRITERIA[likelihood](model(xs), ys)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_it_learns_in_every_type(likelihood, dtype):
    model = alrao.Alrao(mlp().to(dtype), 6, likelihood=likelihood)
    losses = learn(model, seeded_sgd(model), likelihood, dtype)
    assert sum(losses[-4:]) < 0.85 * sum(losses[:4])  # over 8 seeds: 0.64 or less
    assert all(p.dtype == dtype for p in model.parameters())
    assert abs(model.posterior.sum().item() - 1) < 1e-6


@pytest.mark.parametrize("kind", [alrao.SGD, alrao.Adam, alrao.AdamW])
def test_two_runs_are_the_same_to_the_bit(kind):
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        model = alrao.Alrao(mlp(nn.BatchNorm1d(8)), 6)
        runs.append((learn(model, kind(model), epochs=3), model))
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1], rtol=0, atol=0)
