"""The head of a classifier where arithmetic is hard: underflow, wrecked copies and features, narrow types."""

import copy
from math import inf, log, nan

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

COPIES, ROWS, INPUTS, CLASSES = 4, 6, 3, 5
TARGET = torch.tensor([0, 4, 2, 2, 1, 3])
WRECKS = pytest.mark.parametrize("wreck", [nan, inf, -inf])


def mlp():
    # Positive features: a weight of -inf gives logits of -inf, one of inf gives nan.
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Sigmoid(), nn.Linear(8, CLASSES))


def converted(net=None, dtype=torch.float64, **options):
    model = alrao.Alrao(mlp() if net is None else net, COPIES, **options).to(dtype)
    for _ in range(3):
        model.head.averaging.update(torch.randn(COPIES))
    return model


def trained(model, **options):
    return model, alrao.SGD(model, lr=(1e-3, 0.1), **options)


def batch(dtype=torch.float64):
    return torch.randn(ROWS, INPUTS, dtype=dtype)


def finite(model):
    return all(p.isfinite().all() for p in model.parameters())


def loss_in_logarithms(a, z, weight, bias, target):
    """The mixture's loss, and each copy's own, in double precision."""
    logits = torch.einsum("rd,jkd->jrk", z, weight) + bias[:, None, :]
    log_p = logits.log_softmax(-1)
    log_m = (log_p + a.log()[:, None, None]).logsumexp(0)
    return F.nll_loss(log_m, target), [F.nll_loss(own, target) for own in log_p]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [1.0, 100.0, 1e3, 1e4])
def test_probabilities_that_underflow(dtype, gap):
    model = converted(nn.Linear(2, CLASSES), dtype)
    # Whole numbers: the logits are exact in both types.
    weight = torch.randint(-4, 5, model.head.weight.shape).double() * gap / 4
    with torch.no_grad():
        model.head.weight.copy_(weight)
    z = torch.tensor([[1, 0], [0, 1], [1, 1], [-1, 1], [2, -1], [0, 0]], dtype=dtype, requires_grad=True)
    loss = F.cross_entropy(model(z), TARGET)
    loss.backward()

    exact = {"z": z.detach().double(), "weight": weight, "bias": model.head.bias.detach().double()}
    exact = {name: value.requires_grad_() for name, value in exact.items()}
    expected, owns = loss_in_logarithms(model.posterior, target=TARGET, **exact)
    (grad_z,) = torch.autograd.grad(expected, exact["z"], retain_graph=True)
    grad_weight, grad_bias = torch.autograd.grad(sum(owns), [exact["weight"], exact["bias"]])
    # Single precision resolves a log-probability of -1e4 to 1e-3, and so the ratio of two of them.
    single = {"rtol": 3e-3, "atol": 1e-5 + 1e-8 * gap}
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else single
    torch.testing.assert_close(loss.detach().double(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(z.grad.double(), grad_z, **close)
    torch.testing.assert_close(model.head.weight.grad.double(), grad_weight, **close)
    torch.testing.assert_close(model.head.bias.grad.double(), grad_bias, **close)
    evidence = model.head.evidence.grad.double()
    expected = -torch.stack(owns).detach()
    torch.testing.assert_close(evidence[:COPIES] / evidence[COPIES], expected, rtol=1e-5, atol=1e-6)


# A copy that is wrecked.


def wrecked(wreck, where):
    model = converted()
    with torch.no_grad():
        if where == "whole":
            model.head.weight[1] = wreck
            model.head.bias[1] = wreck
        else:
            model.head.weight[1, 2, 3] = wreck
    return model


WHERE = pytest.mark.parametrize("where", ["whole", "one weight"])


@WRECKS
@WHERE
def test_a_wrecked_copy_has_no_weight_and_no_gradient(wreck, where):
    model, optimizer = trained(wrecked(wreck, where))
    loss = F.cross_entropy(model(batch()), TARGET)
    assert loss.isfinite()
    loss.backward()
    assert (model.head.weight.grad[1] == 0).all()
    assert (model.head.bias.grad[1] == 0).all()
    optimizer.step()
    assert model.posterior[1] == 0
    assert abs(model.posterior.sum() - 1) < 1e-12
    assert all(p.isfinite().all() for p in model.body_parameters())


@WRECKS
@WHERE
def test_the_others_train_as_if_the_wrecked_copy_were_not_there(wreck, where):
    model = wrecked(wreck, where)
    living = [0, 2, 3]
    x = batch()
    F.cross_entropy(model(x), TARGET).backward()
    body = copy.deepcopy(model.net[:-1])
    body.zero_grad()
    weight = model.head.weight.detach()[living].requires_grad_()
    bias = model.head.bias.detach()[living].requires_grad_()
    a = model.posterior[living] / model.posterior[living].sum()
    mixture, _ = loss_in_logarithms(a, body(x), weight.detach(), bias.detach(), TARGET)
    mixture.backward()
    _, owns = loss_in_logarithms(a, body(x).detach(), weight, bias, TARGET)
    sum(owns).backward()
    for parameter, reference in zip(model.body_parameters(), body.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, reference.grad)
    torch.testing.assert_close(model.head.weight.grad[living], weight.grad)
    torch.testing.assert_close(model.head.bias.grad[living], bias.grad)
    evidence = model.head.evidence.grad.double()
    own = -torch.stack(owns).detach()
    torch.testing.assert_close(evidence[living] / evidence[COPIES], own, rtol=1e-5, atol=1e-6)
    assert evidence[1] / evidence[COPIES] == -inf


@WRECKS
@WHERE
def test_the_output_is_a_distribution_with_a_wrecked_copy(wreck, where):
    model = wrecked(wreck, where)
    total = model(batch()).exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


@WRECKS
def test_the_posterior_after_a_wreck_is_that_of_a_failed_copy(wreck):
    model, optimizer = trained(wrecked(wreck, "whole"))
    reference = copy.deepcopy(model.head.averaging)
    x = batch()
    own = [-F.cross_entropy(model.head.layer(j)(model.net[:-1](x)), TARGET).item() for j in (0, 2, 3)]
    F.cross_entropy(model(x), TARGET).backward()
    optimizer.step()
    reference.update(torch.tensor([own[0], nan, own[1], own[2]]))
    torch.testing.assert_close(model.posterior, reference.weights, rtol=1e-5, atol=1e-6)


def test_a_mended_copy_returns():
    model, optimizer = trained(wrecked(nan, "whole"))
    for _ in range(2):
        F.cross_entropy(model(batch()), TARGET).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert model.posterior[1] == 0
    with torch.no_grad():
        model.head.weight[1] = 0
        model.head.bias[1] = 0
    F.cross_entropy(model(batch()), TARGET).backward()
    assert model.head.weight.grad[1].norm() > 0
    optimizer.step()
    assert 0 < model.posterior[1] < 1


@WRECKS
def test_with_all_copies_wrecked_the_posterior_stays(wreck):
    model, optimizer = trained(converted())
    with torch.no_grad():
        model.head.weight.fill_(wreck)
    before = copy.deepcopy(model.head.averaging.state_dict())
    loss = F.cross_entropy(model(batch()), TARGET)
    assert loss.item() == pytest.approx(log(CLASSES))
    loss.backward()
    assert all((p.grad == 0).all() for p in model.parameters())
    optimizer.step()
    for name, value in model.head.averaging.state_dict().items():
        assert torch.equal(value, before[name]), name


# Inputs and features that are wrecked.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wreck", [nan, inf, -inf])
def test_wrecked_input_rows(wreck, dtype):
    model, optimizer = trained(converted(dtype=dtype))
    x = batch(dtype)
    x[2] = wreck
    x[4, 1] = wreck
    loss = F.cross_entropy(model(x), TARGET)
    assert loss.isfinite()
    loss.backward()
    assert model.head.weight.grad.isfinite().all()
    assert model.head.bias.grad.isfinite().all()
    optimizer.step()
    assert finite(model)
    assert model.posterior.isfinite().all()
    assert (model.posterior > 0).all()


@pytest.mark.parametrize("wreck", [nan, inf, 1e200])
def test_a_wrecked_feature_counts_as_zero(wreck):
    model = converted(nn.Linear(INPUTS, CLASSES))
    clean, spoilt = batch(), None
    clean[:, 1] = 0
    spoilt = clean.clone()
    spoilt[:, 1] = wreck
    clean.requires_grad_()
    spoilt.requires_grad_()
    reference = copy.deepcopy(model)
    expected = F.cross_entropy(reference(clean), TARGET)
    loss = F.cross_entropy(model(spoilt), TARGET)
    expected.backward()
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(model.head.weight.grad, reference.head.weight.grad)
    torch.testing.assert_close(spoilt.grad[:, [0, 2]], clean.grad[:, [0, 2]])
    assert (spoilt.grad[:, 1] == 0).all()


# Narrow types, and the order of things.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_the_output_in_single_precision(dtype):
    model = converted(dtype=torch.float32)
    x = batch(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        out = model(x)
        loss = F.cross_entropy(out, TARGET)
    assert out.dtype == loss.dtype == torch.float32
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    assert {grad.dtype for grad in grads} == {torch.float32}
    total = out.detach().exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-5, atol=1e-5)
    model.zero_grad()
    F.cross_entropy(model(x), TARGET).backward()
    for p, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_model_trains(dtype):
    model, optimizer = trained(converted(dtype=dtype))
    before = [p.detach().clone() for p in model.parameters()]
    posterior = model.posterior
    out = model(batch(dtype))
    assert out.dtype == torch.float32
    F.cross_entropy(out, TARGET).backward()
    assert {p.grad.dtype for p in model.parameters()} == {dtype}
    optimizer.step()
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert not torch.equal(model.posterior, posterior)
    assert torch.finfo(model.posterior.dtype).bits >= 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_uses_the_posterior_of_its_own_forward(dtype):
    model, x = converted(dtype=dtype), batch(dtype)
    reference = copy.deepcopy(model)
    loss = F.cross_entropy(model(x), TARGET)
    model.head.averaging.update(torch.tensor([-5.0, 0.0, -2.0, -1.0]))
    loss.backward()
    F.cross_entropy(reference(x), TARGET).backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
