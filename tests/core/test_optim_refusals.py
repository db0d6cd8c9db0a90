"""What the optimizers refuse, with a sentence, and with nothing changed."""

import pytest
import torch
import torch.nn.functional as F
from support.stepping import batches, deep_mlp, make, same, snapshot, train

import alrao

OPTIMIZERS = [alrao.SGD, alrao.Adam, alrao.AdamW]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("flag", ["differentiable", "fused"])
def test_flags_that_cannot_work_are_refused(optimizer, flag):
    with pytest.raises(ValueError, match=f"{flag}=True is not supported"):
        make(optimizer, **{flag: True})


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (alrao.SGD, {"momentum": -0.1}, "momentum must be at least 0, got -0.1"),
        (alrao.SGD, {"weight_decay": -1}, "weight_decay must be at least 0, got -1"),
        (alrao.SGD, {"nesterov": True}, "nesterov.*momentum=0"),
        (alrao.Adam, {"betas": (0.9, 1.0)}, r"betas.*\(0.9, 1.0\)"),
        (alrao.AdamW, {"eps": float("nan")}, "eps must be at least 0, got nan"),
        (alrao.SGD, {"evidence": "max"}, "evidence must be 'mean' or 'sum', got 'max'"),
    ],
)
def test_bad_options_are_refused(optimizer, options, message):
    with pytest.raises(ValueError, match=message):
        make(optimizer, **options)


NOT_LIKELIHOODS = {
    "squared error of log-probabilities": lambda out, y: F.mse_loss(out, 4 * F.one_hot(y, 3) - 5.0),
    "squared error of probabilities": lambda out, y: F.mse_loss(out.exp(), F.one_hot(y, 3).float()),
    "entropy added": lambda out, y: F.cross_entropy(out, y) - (out.exp() * out).sum(1).mean(),
    "confidence penalty": lambda out, y: F.cross_entropy(out, y) + (out.exp() * out).sum(1).mean(),
    "unlikelihood": lambda out, y: F.cross_entropy(out, y) - (1.001 - out.exp()[:, 0]).log().mean(),
    "likelihood with the wrong sign": lambda out, y: -F.cross_entropy(out, y),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", NOT_LIKELIHOODS)
def test_a_loss_that_is_no_negative_log_likelihood_is_refused_with_nothing_changed(optimizer, loss):
    model, chosen = make(optimizer, lr=(1e-4, 0.1), **({"momentum": 0.9} if optimizer is alrao.SGD else {}))
    model.head.weight.data.mul_(8)  # opinions, as in training: at the start every probability is about 1/3
    train(model, chosen, 3)
    before = snapshot(model, chosen)
    [(x, y)] = batches(1, 6)
    chosen.zero_grad()
    NOT_LIKELIHOODS[loss](model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"not a negative log-likelihood.*cross_entropy.*Nothing has been"):
        chosen.step()
    assert same(snapshot(model, chosen), before)
    train(model, chosen, 1)  # and it goes on, with the right loss
    assert not same(snapshot(model, chosen), before)


@pytest.mark.parametrize(
    ("likelihood", "loss", "criterion"),
    [("gaussian", F.mse_loss, "MixtureMSELoss"), ("bernoulli", F.l1_loss, "MixtureBCELoss")],
)
def test_a_loss_past_the_criterion_is_refused_with_nothing_changed(likelihood, loss, criterion):
    model = alrao.Alrao(deep_mlp(), likelihood=likelihood)
    optimizer = alrao.SGD(model)
    before = snapshot(model, optimizer)
    loss(model(torch.randn(5, 6)), torch.rand(5, 3)).backward()
    with pytest.raises(RuntimeError, match=criterion):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)
