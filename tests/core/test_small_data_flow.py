"""Several modules, several passes back, several processes: the data flow around one converted network."""

import multiprocessing as mp

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp, target_for
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import alrao

LOSSES = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}


# Several modules.


def modules():
    encoder = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(32, 16), nn.Tanh())
    return encoder, nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def test_parameters_outside_the_network_are_explained():
    encoder, decoder = modules()
    model = alrao.Alrao(decoder, 3)
    with pytest.raises(ValueError, match=r"nn\.ModuleList\(\[encoder, decoder\]\)"):
        alrao.SGD(model, params=[*encoder.parameters(), *model.parameters()])


@pytest.mark.parametrize("kind", [alrao.SGD, alrao.AdamW, alrao.Auto])
def test_modules_that_train_together_are_converted_as_one(kind):
    encoder, decoder = modules()
    both = alrao.Alrao(nn.ModuleList([encoder, decoder]), output=decoder[-1])
    optimizer = kind(both)
    shape = (1, 1) if kind is alrao.Auto else (1, 8)
    assert optimizer.rates(encoder[0].weight).shape == shape, "by the rule for its own layer type"
    x = torch.randint(9, (64, 4))
    y = x.sum(1) % 3
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = F.cross_entropy(decoder(encoder(x)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    both.eval()
    with torch.no_grad():
        log_p = decoder(encoder(x))
        plain_encoder, plain_decoder = both.collapse()
        logits = plain_decoder(plain_encoder(x))
    best = both.head.layer(int(both.posterior.argmax()))
    assert torch.equal(plain_decoder[-1].weight, best.weight)
    assert log_p.isfinite().all()
    assert logits.isfinite().all()


# Several passes back through one graph.


@pytest.mark.parametrize("likelihood", LOSSES)
def test_observations_count_once_over_two_passes(likelihood):
    net = mlp()
    model = alrao.Alrao(net, 3, likelihood=likelihood)
    x = torch.randn(6, 4)
    loss = LOSSES[likelihood](model(x), target_for(likelihood, x))
    loss.backward(retain_graph=True)
    once = alrao.evidence.read(model.head.evidence.grad, 3)
    loss.backward()
    twice = alrao.evidence.read(model.head.evidence.grad, 3)
    assert twice.rows == once.rows
    assert twice.log_likelihood("sum") == pytest.approx(once.log_likelihood("sum"))


def test_different_observations_of_one_pass_all_count():
    model = alrao.Alrao(mlp(), 3)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    out = model(x)
    for rows in (slice(0, 2), slice(1, 4)):  # the second observation is in both
        F.cross_entropy(out[rows], y[rows]).backward(retain_graph=True)
    assert alrao.evidence.read(model.head.evidence.grad, 3).rows == 4
    F.cross_entropy(out, y).backward()
    assert alrao.evidence.read(model.head.evidence.grad, 3).rows == 6


def test_the_same_rows_of_two_forward_passes_count_twice():
    model = alrao.Alrao(mlp(), 3)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    for _ in range(2):
        F.cross_entropy(model(x), y).backward()
    assert alrao.evidence.read(model.head.evidence.grad, 3).rows == 12


# Hooks of all optimizers.


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.Adafactor])
def test_global_hooks_see_one_step(kind):
    model = alrao.Alrao(mlp(), 3)
    optimizer = alrao.PerFeature(kind, model, lr=(1e-4, 1e-2))
    x = torch.randn(6, 4)
    F.cross_entropy(model(x), target_for("categorical", x)).backward()
    before = model.head.weight.clone()
    seen = []
    hooks = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(("before", o))),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(("after", o))),
    ]
    try:
        optimizer.step()
    finally:
        for hook in hooks:
            hook.remove()
    assert seen == [("before", optimizer), ("after", optimizer)]
    assert not torch.equal(model.head.weight, before)


# Parametrized layers.


@pytest.mark.parametrize("make", [
    lambda: parametrizations.weight_norm(nn.Linear(4, 8)),
    lambda: parametrizations.spectral_norm(nn.Linear(4, 8)),
    lambda: parametrizations.weight_norm(nn.Conv1d(4, 8, 3)),
])  # fmt: skip
def test_a_normalised_row_and_its_bias_have_one_rate(make):
    layer = make()
    model = alrao.Alrao(nn.Sequential(layer, nn.Linear(8, 3)), 2)
    optimizer = alrao.SGD(model)
    rates = [optimizer.rates(p).flatten() for p in layer.parameters()]
    assert len(rates) >= 2
    assert all(torch.equal(each, rates[0]) for each in rates)
    assert len(set(rates[0].tolist())) == 8
    assert "Parametrized" in alrao.summary(model, optimizer)


# Several processes with one model in shared memory.


def _train_there(model, queue):
    optimizer = alrao.SGD(model)
    x = torch.randn(16, 4)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    queue.put(model.posterior.tolist())


def test_everything_is_in_shared_memory():
    model = alrao.Alrao(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), 3).share_memory()
    assert all(tensor.is_shared() for tensor in [*model.parameters(), *model.buffers()])
    assert model.head.averaging.weights.dtype == torch.float64
    assert not alrao.Alrao(mlp(), 3).head.averaging._state.is_shared()


@pytest.mark.slow
def test_another_process_trains_the_shared_model():
    model = alrao.Alrao(mlp(), 3).share_memory()
    before = model.head.weight.clone()
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_train_there, args=(model, queue))
    process.start()
    there = queue.get(timeout=90)
    process.join()
    assert model.posterior.tolist() == there
    assert not torch.equal(model.head.weight, before)
