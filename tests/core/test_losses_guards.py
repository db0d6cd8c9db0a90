"""Regression and multi-label outputs where arithmetic is hard or the use is wrong."""

import copy
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from support.mixtures import COPIES, LABELS, LIKELIHOODS, OUTPUTS, ROWS, batch, converted
from torch import nn

import alrao

TARGET = torch.linspace(-2, 2, ROWS * OUTPUTS, dtype=torch.float64).cos().view(ROWS, OUTPUTS) * 2


def outputs_of_copies(model, x):
    z = model.net[:-1](x)
    return torch.stack([model.head.layer(j)(z) for j in range(COPIES)]).detach()


def log_likelihoods(likelihood, outputs):
    """Of LABELS, under plain outputs: of whole samples, or of each label."""
    if likelihood == "gaussian":
        return -((outputs - LABELS) ** 2).sum(-1) / 2
    return F.logsigmoid((2 * LABELS - 1) * outputs)


def everything(model, optimizer):
    """All tensors that a step could change."""
    of_optimizer = (value for state in optimizer.state_dict()["state"].values() for value in state.values())
    return [tensor.clone() for tensor in (*model.state_dict().values(), *of_optimizer)]


# Copies that are wrecked.

WRECKS = pytest.mark.parametrize("wreck", [nan, inf, -inf])


@WRECKS
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_wrecked_copy_is_out_and_the_others_train_without_it(likelihood, wreck):
    model, x, living = converted(likelihood), batch(), [0, 2, 3]
    with torch.no_grad():
        model.head.weight[1] = wreck
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1))
    body = copy.deepcopy(model.net[:-1])
    layers = [model.head.layer(j) for j in living]
    log_p = log_likelihoods(likelihood, torch.stack([layer(body(x)) for layer in layers]))
    mixture = (log_p.movedim(0, -1) + model.posterior[living].log()).logsumexp(-1).mean()
    expected = torch.autograd.grad(-mixture, list(body.parameters()))

    loss = LIKELIHOODS[likelihood]()(model(x), LABELS)
    assert loss.isfinite()
    loss.backward()
    assert (model.head.weight.grad[1] == 0).all()
    assert (model.head.bias.grad[1] == 0).all()
    for j, layer in zip(living, layers, strict=True):
        (-log_likelihoods(likelihood, layer(body(x).detach())).mean()).backward()
        torch.testing.assert_close(model.head.weight.grad[j], layer.weight.grad)
        torch.testing.assert_close(model.head.bias.grad[j], layer.bias.grad)
    for parameter, grad in zip(model.body_parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    optimizer.step()
    assert model.posterior[1] == 0
    assert model(x).isfinite().all()


@WRECKS
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_predictions_before_the_posterior_knows_of_a_wreck(likelihood, wreck):
    # The mixture of the others, at their weights beside each other: not their sum beside a zero.
    model, x = converted(likelihood), batch()
    outputs = outputs_of_copies(model, x)
    a = model.posterior * torch.tensor([1, 0, 1, 1])
    a = (a / a.sum()).view(-1, 1, 1)
    expected = (a * outputs).sum(0) if likelihood == "gaussian" else (a * outputs.sigmoid()).sum(0).logit()
    with torch.no_grad():
        model.head.weight[1] = wreck
    torch.testing.assert_close(model(x).detach(), expected)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_with_all_copies_wrecked_nothing_moves(likelihood):
    model = converted(likelihood)
    with torch.no_grad():
        model.head.weight.fill_(nan)
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1))
    before = model.posterior
    loss = LIKELIHOODS[likelihood]()(model(batch()), LABELS)
    assert loss.isfinite()
    loss.backward()
    assert all((p.grad == 0).all() for p in model.parameters())
    optimizer.step()
    assert torch.equal(model.posterior, before)


@pytest.mark.parametrize("scale", [1e3, 1e4])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_likelihoods_that_underflow(likelihood, scale):
    model, x = converted(likelihood), batch()
    with torch.no_grad():
        model.head.weight.mul_(scale)
    outputs = outputs_of_copies(model, x)
    log_p = log_likelihoods(likelihood, outputs)
    expected = -(log_p.movedim(0, -1) + model.posterior.log()).logsumexp(-1).mean()
    loss = LIKELIHOODS[likelihood]()(model(x), LABELS)
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-10, atol=0)
    assert all(p.grad.isfinite().all() for p in model.parameters())


# Wrong use.

WRONG_LOSSES = {
    "mse_loss": lambda out, target: F.mse_loss(out, target),
    "arithmetic": lambda out, target: alrao.MixtureMSELoss()(out * 2, target),
    "shifted": lambda out, target: alrao.MixtureMSELoss()(out + 1, target),
    "own_square": lambda out, target: ((out - target) ** 2).mean(),
    "huber": lambda out, target: F.smooth_l1_loss(out, target),
    "in_place": lambda out, target: alrao.MixtureMSELoss()(out.clone().mul_(2), target),
}


@pytest.mark.parametrize("name", WRONG_LOSSES)
def test_another_loss_is_refused_at_the_step_and_nothing_has_changed(name):
    model = converted("gaussian")
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1), momentum=0.9)
    alrao.MixtureMSELoss()(model(batch()), TARGET).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = everything(model, optimizer)
    WRONG_LOSSES[name](model(batch()), TARGET).backward()
    with pytest.raises(RuntimeError, match=r"alrao\.MixtureMSELoss"):
        optimizer.step()
    assert all(torch.equal(now, then) for now, then in zip(everything(model, optimizer), before, strict=True))


@pytest.mark.parametrize("loss", [F.mse_loss, lambda out, y: F.binary_cross_entropy(out.sigmoid(), y)])
def test_another_loss_of_labels_is_refused(loss):
    model = converted("bernoulli")
    optimizer = alrao.SGD(model)
    loss(model(batch()), LABELS).backward()
    with pytest.raises(RuntimeError, match=r"alrao\.MixtureBCELoss"):
        optimizer.step()


@pytest.mark.parametrize("criterion", [alrao.MixtureMSELoss(), alrao.MixtureBCELoss()])
def test_targets_of_another_shape_are_refused(criterion):
    likelihood = {type(criterion): name for name, kind in LIKELIHOODS.items() if type(criterion) is kind}
    model = converted(likelihood[type(criterion)], 1)
    for target in (torch.zeros(ROWS), torch.zeros(1, 1), torch.zeros(ROWS, 2)):
        with pytest.raises(ValueError, match=r"needs a target of the prediction's shape \(6, 1\)"):
            criterion(model(batch()), target.double())


@pytest.mark.parametrize(
    ("likelihood", "criterion", "message"),
    [
        ("categorical", alrao.MixtureMSELoss(), r"cross_entropy.*likelihood='gaussian'"),
        ("categorical", alrao.MixtureBCELoss(), r"cross_entropy.*likelihood='bernoulli'"),
        ("bernoulli", alrao.MixtureMSELoss(), r"'gaussian'.*'bernoulli'"),
        ("gaussian", alrao.MixtureBCELoss(), r"'bernoulli'.*'gaussian'"),
        ("gaussian", nn.BCEWithLogitsLoss(), r"'bernoulli'.*'gaussian'"),
    ],
)
def test_the_criterion_of_another_likelihood_is_refused(likelihood, criterion, message):
    out = converted(likelihood)(batch())
    with pytest.raises(TypeError, match=message):
        criterion(out, LABELS)


@pytest.mark.parametrize("variance", [0.0, -1.0, nan, inf])
def test_wrong_variances_are_refused(variance):
    with pytest.raises(ValueError, match="variance must be positive and finite"):
        alrao.MixtureMSELoss(variance=variance)


@pytest.mark.parametrize("criterion", LIKELIHOODS.values())
def test_wrong_reductions_are_refused(criterion):
    with pytest.raises(ValueError, match="reduction must be"):
        criterion(reduction="max")


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_second_derivatives_are_refused(likelihood):
    model = converted(likelihood)
    loss = LIKELIHOODS[likelihood]()(model(batch()), LABELS)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(loss, model.body_parameters(), create_graph=True)
