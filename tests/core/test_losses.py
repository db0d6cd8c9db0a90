"""Regression and multi-label outputs: their definition by plain autograd, numerical limits, wrong use."""

import copy
from math import inf, log, nan, pi

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

COPIES, ROWS, INPUTS, OUTPUTS = 4, 6, 3, 2
LABELS = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]], dtype=torch.float64)
LIKELIHOODS = {"gaussian": alrao.MixtureMSELoss, "bernoulli": alrao.MixtureBCELoss}


def converted(likelihood, outputs=OUTPUTS, net=None):
    """A model in double precision with spread copies and a posterior that is not uniform."""
    net = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, outputs)) if net is None else net
    model = alrao.Alrao(net, COPIES, likelihood=likelihood).double()
    with torch.no_grad():
        model.head.weight.mul_(3)
    for _ in range(3):
        model.head.averaging.update(torch.randn(COPIES))
    return model


def batch():
    return torch.randn(ROWS, INPUTS, dtype=torch.float64)


TARGET = torch.linspace(-2, 2, ROWS * OUTPUTS, dtype=torch.float64).cos().view(ROWS, OUTPUTS) * 2
SOFT_LABELS = torch.linspace(0, 1, ROWS * OUTPUTS, dtype=torch.float64).view(ROWS, OUTPUTS)
ROW_WEIGHTS = torch.tensor([1.0, 0.5, 3.0, 0.0, 2.0, 0.25], dtype=torch.float64)
WEIGHT = torch.rand(ROWS, OUTPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
POS_WEIGHT = torch.tensor([0.5, 3.0], dtype=torch.float64)
ACTION = torch.tensor([0, 1, 1, 0, 1, 0])


def outputs_of_copies(model, z):
    return torch.stack([model.head.layer(j)(z) for j in range(COPIES)])


def mixture(model, log_p):
    log_a = model.posterior.log().view([-1] + [1] * (log_p.ndim - 1))
    return -(log_p + log_a).logsumexp(0)


def assert_two_passes(model, x, criterion, log_likelihoods, reduce, shown=1.0):
    """Compare with the definition; the value may be ``shown`` in other units.

    ``log_likelihoods`` takes one plain output to the observations' log-likelihoods, a list of tensors each
    with its importance; ``reduce`` takes the tensor of weighted losses to the loss.
    """
    body, posterior = copy.deepcopy(model.net[:-1]), model.posterior
    z = body(x)

    def loss_of(outputs, combine):
        parts = log_likelihoods(outputs)
        return reduce(sum(importance * combine(log_p) for log_p, importance in parts))

    expected = loss_of(outputs_of_copies(model, z), lambda log_p: mixture(model, log_p))
    grads = torch.autograd.grad(expected, list(body.parameters()))
    loss = criterion(model(x))
    loss.backward()
    close = {"rtol": 1e-11, "atol": 1e-13}
    torch.testing.assert_close(loss.detach(), shown * expected.detach(), **close)
    for parameter, grad in zip(model.body_parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad, **close)
    scores = []
    for j in range(COPIES):
        layer = model.head.layer(j)
        output = layer(z.detach())
        loss_of(output, lambda log_p: -log_p).backward()
        torch.testing.assert_close(model.head.weight.grad[j], layer.weight.grad.flatten(1), **close)
        torch.testing.assert_close(model.head.bias.grad[j], layer.bias.grad, **close)
        # The evidence: the mean of the log-likelihoods, weighted by what the loss makes of each.
        log_ps, importances = zip(*log_likelihoods(output.detach()), strict=True)
        log_ps = [log_p.requires_grad_() for log_p in log_ps]
        weighted = reduce(sum(w * log_p for log_p, w in zip(log_ps, importances, strict=True)))
        counts = torch.autograd.grad(weighted, log_ps)
        total = sum(count.sum() for count in counts)
        scores.append(sum((c * p).sum() for c, p in zip(counts, log_ps, strict=True)).detach() / total)
    evidence = model.head.evidence.grad.double()
    torch.testing.assert_close(
        evidence[:COPIES] / evidence[COPIES], torch.stack(scores), rtol=1e-5, atol=1e-6
    )
    assert torch.equal(model.posterior, posterior)


REDUCTIONS = {
    "mean": torch.mean,
    "sum": torch.sum,
    "none": lambda losses: (losses.movedim(0, -1) * ROW_WEIGHTS).sum(),
}
REDUCED = pytest.mark.parametrize("reduction", REDUCTIONS)


def reduced(criterion, reduction):
    """With ``reduction="none"``, the user weighs the losses."""
    return lambda out, target: (REDUCTIONS["none"] if reduction == "none" else torch.as_tensor)(
        criterion(out, target)
    )


@REDUCED
@pytest.mark.parametrize(("variance", "full"), [(1.0, False), (0.3, False), (2.5, True)])
def test_gaussian_is_one_mixture_over_the_joint_normal(reduction, variance, full):
    criterion = alrao.MixtureMSELoss(variance=variance, full=full, reduction=reduction)

    def log_likelihoods(out):
        scores = -((out - TARGET) ** 2).sum(-1) / (2 * variance)
        return [(scores - full * OUTPUTS / 2 * log(2 * pi * variance), 1.0)]

    loss_of = reduced(criterion, reduction)
    assert_two_passes(
        converted("gaussian"),
        batch(),
        lambda out: loss_of(out, TARGET),
        log_likelihoods,
        REDUCTIONS[reduction],
        shown=1 if full else 2 * variance / (1 if reduction == "sum" else OUTPUTS),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("variance", [1.0, 0.3])
def test_its_value_is_the_squared_error(reduction, variance):
    # A program that reports its criterion reports the same as with a plain network.
    criterion, squared = alrao.MixtureMSELoss(variance=variance, reduction=reduction), nn.MSELoss
    net = nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, OUTPUTS)).double()
    x = batch()
    plain = net(x).detach()
    expected = squared(reduction=reduction)(plain, TARGET)
    torch.testing.assert_close(criterion(plain, TARGET), expected)
    for copies in (1, 3):
        out = alrao.Alrao(copy.deepcopy(net), copies, likelihood="gaussian", keep_output=True)(x)
        torch.testing.assert_close(criterion(out, TARGET).detach(), expected)
        torch.testing.assert_close(
            criterion(out[:, 0], TARGET[:, 0]).detach(),
            squared(reduction=reduction)(plain[:, 0], TARGET[:, 0]),
        )


@REDUCED
@pytest.mark.parametrize("labels", [LABELS, SOFT_LABELS], ids=["hard", "soft"])
@pytest.mark.parametrize("pos_weight", [None, POS_WEIGHT], ids=["alike", "pos_weight"])
def test_bernoulli_is_one_mixture_for_each_label(reduction, labels, pos_weight):
    criterion = alrao.MixtureBCELoss(reduction=reduction, pos_weight=pos_weight)
    importance = labels if pos_weight is None else labels * pos_weight

    def log_likelihoods(out):
        return [(F.logsigmoid(out), importance), (F.logsigmoid(-out), 1 - labels)]

    loss_of = reduced(criterion, reduction)
    assert_two_passes(
        converted("bernoulli"),
        batch(),
        lambda out: loss_of(out, labels),
        log_likelihoods,
        REDUCTIONS[reduction],
    )


@REDUCED
def test_torchs_own_loss_of_logits_is_routed(reduction):
    criterion = nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=POS_WEIGHT, reduction=reduction)

    def log_likelihoods(out):
        return [
            (F.logsigmoid(out), WEIGHT * LABELS * POS_WEIGHT),
            (F.logsigmoid(-out), WEIGHT * (1 - LABELS)),
        ]

    loss_of = reduced(criterion, reduction)
    assert_two_passes(
        converted("bernoulli"),
        batch(),
        lambda out: loss_of(out, LABELS),
        log_likelihoods,
        REDUCTIONS[reduction],
    )


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_one_copy_has_the_plain_gradient(likelihood):
    model = alrao.Alrao(nn.Linear(INPUTS, OUTPUTS), 1, likelihood=likelihood).double()
    x, plain = batch(), model.collapse()
    criterion = LIKELIHOODS[likelihood]()
    criterion(model(x), LABELS).backward()
    out = plain(x)
    expected = ((out - LABELS) ** 2).sum(1).mean() / 2
    if likelihood == "bernoulli":
        expected = F.binary_cross_entropy_with_logits(out, LABELS)
    expected.backward()
    torch.testing.assert_close(model.head.weight.grad[0], plain.weight.grad)


# Shapes.


SQUEEZES = {
    "squeeze": lambda out: out.squeeze(-1),
    "torch.squeeze": lambda out: torch.squeeze(out, 1),
    "flatten": lambda out: out.flatten(),
    "index": lambda out: out[:, 0],
    "view": lambda out: out.view(-1),
}


@pytest.mark.parametrize("squeeze", SQUEEZES)
def test_a_single_output_may_be_squeezed(squeeze):
    target = TARGET[:, 0]
    assert_two_passes(
        converted("gaussian", 1),
        batch(),
        lambda out: alrao.MixtureMSELoss()(SQUEEZES[squeeze](out), target),
        lambda out: [(-((out.squeeze(-1) - target) ** 2) / 2, 1.0)],
        torch.mean,
        shown=2,
    )


CHOICES = {
    "gather": lambda q: q.gather(1, ACTION[:, None]).squeeze(1),
    "torch.gather": lambda q: torch.gather(q, 1, ACTION.unsqueeze(-1)).squeeze(-1),
    "index": lambda q: q[torch.arange(ROWS), ACTION],
}


@pytest.mark.parametrize("choice", CHOICES)
def test_only_the_action_taken_trains_and_gives_evidence(choice):
    target = TARGET[:, 0]
    rows = torch.arange(ROWS)
    assert_two_passes(
        converted("gaussian"),
        batch(),
        lambda out: alrao.MixtureMSELoss()(CHOICES[choice](out), target),
        lambda out: [(-((out[..., rows, ACTION] - target) ** 2) / 2, 1.0)],
        torch.mean,
        shown=2,
    )


def test_an_action_never_taken_has_no_gradient():
    model = converted("gaussian", 3)
    alrao.MixtureMSELoss()(model(batch()).gather(1, ACTION[:, None]), TARGET[:, :1]).backward()
    assert (model.head.weight.grad[:, 2] == 0).all()
    assert (model.head.weight.grad[:, :2] != 0).all()


def test_rows_may_be_chosen():
    mask = torch.tensor([True, False, True, True, False, False])
    assert_two_passes(
        converted("gaussian"),
        batch(),
        lambda out: alrao.MixtureMSELoss()(out[mask], TARGET[mask]),
        lambda out: [(-((out[..., mask, :] - TARGET[mask]) ** 2).sum(-1) / 2, 1.0)],
        torch.mean,
    )


def test_outputs_of_a_convolution_are_one_mixture_at_each_place():
    model = converted("gaussian", net=nn.Sequential(nn.Conv2d(INPUTS, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 1)))
    x, target = (torch.randn(2, c, 3, 2, dtype=torch.float64) for c in (INPUTS, 2))
    assert_two_passes(
        model,
        x,
        lambda out: alrao.MixtureMSELoss()(out, target),
        lambda out: [(-((out - target) ** 2).sum(-3) / 2, 1.0)],
        torch.mean,
    )


# What the model returns.


def test_prediction_of_a_regressor_is_the_mean_of_the_mixture():
    model, x = converted("gaussian"), batch()
    expected = sum(
        a * out for a, out in zip(model.posterior, outputs_of_copies(model, model.net[:-1](x)), strict=True)
    )
    for out in (model(x), model.collapse(mixture=True)(x)):
        torch.testing.assert_close(out.as_subclass(torch.Tensor), expected)


def test_prediction_of_labels_is_the_logit_of_the_mixture():
    model, x = converted("bernoulli"), batch()
    probabilities = outputs_of_copies(model, model.net[:-1](x)).sigmoid()
    expected = sum(a * p for a, p in zip(model.posterior, probabilities, strict=True)).logit()
    for out in (model(x), model.collapse(mixture=True)(x)):
        torch.testing.assert_close(out.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_plain_tensors_have_the_plain_loss(likelihood):
    out = converted(likelihood).collapse()(batch())
    expected = {
        "gaussian": ((out - LABELS) ** 2).sum(1).mean() / 2,
        "bernoulli": F.binary_cross_entropy_with_logits(out, LABELS),
    }
    torch.testing.assert_close(LIKELIHOODS[likelihood]()(out, LABELS), expected[likelihood])


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_posterior_after_a_step_is_the_switch_fed_by_hand(likelihood):
    model, x = converted(likelihood), batch()
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1))
    reference = copy.deepcopy(model.head.averaging)
    outputs = outputs_of_copies(model, model.net[:-1](x)).detach()
    if likelihood == "gaussian":
        scores = -((outputs - LABELS) ** 2).sum(-1) / 2
    else:
        scores = LABELS * F.logsigmoid(outputs) + (1 - LABELS) * F.logsigmoid(-outputs)
    reference.update(scores.flatten(1).mean(1))
    LIKELIHOODS[likelihood]()(model(x), LABELS).backward()
    optimizer.step()
    torch.testing.assert_close(model.posterior, reference.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_narrow_models_give_gradients_of_their_own_type(likelihood, dtype):
    model = converted(likelihood).to(dtype)
    loss = LIKELIHOODS[likelihood]()(model(batch().to(dtype)), LABELS.float())
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in model.parameters())


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
    outputs = outputs_of_copies(model, model.net[:-1](x)).detach()
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
    outputs = outputs_of_copies(model, model.net[:-1](x)).detach()
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
