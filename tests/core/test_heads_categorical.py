"""The head of a classifier, against its definition in two passes by plain autograd in double precision."""

import copy
from math import log

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

COPIES, ROWS, INPUTS, CLASSES = 4, 6, 3, 5
TARGET = torch.tensor([0, 4, 2, 2, 1, 3])
IGNORING = torch.tensor([0, -100, 2, 4, -100, 3])
SOFT = torch.softmax(torch.linspace(-2, 3, ROWS * CLASSES, dtype=torch.float64).sin().view(ROWS, CLASSES), 1)
CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)
ROW_WEIGHTS = torch.tensor([1.0, 0.5, 3.0, 0.0, 2.0, 0.25], dtype=torch.float64)
ONE_HOT = F.one_hot(TARGET, CLASSES).double()
KEPT = (F.one_hot(IGNORING.clamp(min=0), CLASSES) * (IGNORING >= 0)[:, None]).double()


def smoothed(weights, smoothing):
    return (1 - smoothing) * weights + smoothing / CLASSES * (weights.sum(1, keepdim=True) > 0)


# Name: the loss as a user writes it, and how much each class of each row counts in it, up to a factor.
CASES = {
    "cross_entropy": (lambda out: F.cross_entropy(out, TARGET), ONE_HOT),
    "CrossEntropyLoss": (lambda out: nn.CrossEntropyLoss()(out, TARGET), ONE_HOT),
    "nll_loss": (lambda out: F.nll_loss(out.log_softmax(1), TARGET), ONE_HOT),
    "log_softmax_nll_loss": (lambda out: nn.NLLLoss()(nn.LogSoftmax(dim=-1)(out), TARGET), ONE_HOT),
    "sum": (lambda out: F.cross_entropy(out, TARGET, reduction="sum"), ONE_HOT),
    "none": (
        lambda out: (F.cross_entropy(out, TARGET, reduction="none") * ROW_WEIGHTS).sum(),
        ONE_HOT * ROW_WEIGHTS[:, None],
    ),
    "class_weights": (lambda out: F.cross_entropy(out, TARGET, CLASS_WEIGHTS), ONE_HOT * CLASS_WEIGHTS),
    "class_weights_sum": (
        lambda out: F.cross_entropy(out, TARGET, CLASS_WEIGHTS, reduction="sum"),
        ONE_HOT * CLASS_WEIGHTS,
    ),
    "ignore_index": (lambda out: F.cross_entropy(out, IGNORING), KEPT),
    "ignore_a_class": (
        lambda out: F.cross_entropy(out, TARGET, ignore_index=2),
        ONE_HOT * (TARGET != 2)[:, None],
    ),
    "ignore_index_sum": (lambda out: F.cross_entropy(out, IGNORING, reduction="sum"), KEPT),
    "smoothing": (lambda out: F.cross_entropy(out, TARGET, label_smoothing=0.3), smoothed(ONE_HOT, 0.3)),
    "smoothing_none": (
        lambda out: (
            F.cross_entropy(out, TARGET, label_smoothing=0.3, reduction="none") * ROW_WEIGHTS
        ).mean(),
        smoothed(ONE_HOT, 0.3) * ROW_WEIGHTS[:, None],
    ),
    "smoothing_weights_ignore": (
        lambda out: F.cross_entropy(out, IGNORING, CLASS_WEIGHTS, label_smoothing=0.2),
        smoothed(KEPT, 0.2) * CLASS_WEIGHTS,
    ),
    "soft": (lambda out: F.cross_entropy(out, SOFT), SOFT),
    "soft_sum": (lambda out: F.cross_entropy(out, SOFT, reduction="sum"), SOFT),
    "soft_none": (
        lambda out: (F.cross_entropy(out, SOFT, reduction="none") * ROW_WEIGHTS).sum(),
        SOFT * ROW_WEIGHTS[:, None],
    ),
    "soft_weights_smoothing": (
        lambda out: F.cross_entropy(out, SOFT, CLASS_WEIGHTS, label_smoothing=0.1),
        smoothed(SOFT, 0.1) * CLASS_WEIGHTS,
    ),
    "kl_div": (lambda out: F.kl_div(out.log_softmax(1), SOFT, reduction="batchmean"), SOFT),
    "scaled": (lambda out: 2.0**16 * F.cross_entropy(out, TARGET) / 3, ONE_HOT),
}


def mlp(bias=True, outputs=CLASSES):
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, outputs, bias=bias))


def converted(net, copies=COPIES, **options):
    """A model in double precision with spread copies and a posterior that is not uniform."""
    model = alrao.Alrao(net, copies, **options).double()
    with torch.no_grad():
        model.head.weight.mul_(3)
    for _ in range(3):
        model.head.averaging.update(torch.randn(copies))
    return model


def batch(rows=ROWS):
    return torch.randn(rows, INPUTS, dtype=torch.float64)


def own_log_probs(model, z, axis=-1):
    """Log-probabilities of each copy, by the plain layers."""
    return [model.head.layer(j)(z).log_softmax(axis) for j in range(model.head.copies)]


def two_passes(model, x, loss_of, axis=-1):
    """Definition: the mixture's loss, the body's gradients, and each copy's gradients of its own loss."""
    *layers, _ = copy.deepcopy(model.net) if isinstance(model.net, nn.Sequential) else [None]
    body = nn.Sequential(*layers) if layers else nn.Identity()
    body.zero_grad()
    z = body(x)
    a = model.posterior
    log_m = sum(
        weight * log_p.exp() for weight, log_p in zip(a, own_log_probs(model, z, axis), strict=True)
    ).log()
    loss = loss_of(log_m)
    loss.backward()
    weights, biases = [], []
    for j in range(model.head.copies):
        layer = model.head.layer(j)
        loss_of(layer(z.detach()).log_softmax(axis)).backward()
        weights.append(layer.weight.grad.flatten(1))
        biases.append(None if layer.bias is None else layer.bias.grad)
    return loss.detach(), [p.grad for p in body.parameters()], weights, biases


def assert_two_passes(model, x, loss_of, axis=-1):
    expected, body, weights, biases = two_passes(model, x, loss_of, axis)
    loss = loss_of(model(x))
    loss.backward()
    close = {"rtol": 1e-11, "atol": 1e-12 * max(1, abs(expected.item()))}
    torch.testing.assert_close(loss.detach(), expected, **close)
    for parameter, grad in zip(model.body_parameters(), body, strict=True):
        torch.testing.assert_close(parameter.grad, grad, **close)
    torch.testing.assert_close(model.head.weight.grad, torch.stack(weights), **close)
    if model.head.bias is not None:
        torch.testing.assert_close(model.head.bias.grad, torch.stack(biases), **close)


def evidence_of(model):
    """Each copy's weighted mean log-likelihood, as backward left it."""
    gathered = model.head.evidence.grad.double()
    return gathered[: model.head.copies] / gathered[model.head.copies]


def body_output(model, x):
    return model.net[:-1](x).detach() if isinstance(model.net, nn.Sequential) else x


def evidence_by_hand(model, x, counts):
    log_p = torch.stack(own_log_probs(model, body_output(model, x))).detach()
    return (log_p * counts).sum((1, 2)) / counts.sum()


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_the_two_passes(case):
    assert_two_passes(converted(mlp()), batch(), CASES[case][0])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", [alrao.Switch, alrao.paper.BayesianAverage])
def test_evidence_is_the_mean_log_likelihood_and_moves_the_posterior(case, method):
    loss_of, counts = CASES[case]
    model = alrao.Alrao(mlp(), COPIES, averaging=method(COPIES)).double()
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1))
    reference = method(COPIES)
    for _ in range(3):
        x = batch()
        optimizer.zero_grad()
        expected = evidence_by_hand(model, x, counts)
        loss_of(model(x)).backward()
        torch.testing.assert_close(evidence_of(model), expected, rtol=1e-5, atol=1e-6)
        optimizer.step()
        reference.update(expected)
        torch.testing.assert_close(model.posterior, reference.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_evidence_sum_is_the_log_likelihood_of_the_whole_batch(reduction):
    model = alrao.Alrao(mlp(), COPIES).double()
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1), evidence="sum")
    x = batch()
    expected = alrao.Switch(COPIES)
    expected.update(evidence_by_hand(model, x, KEPT) * KEPT.sum())
    F.cross_entropy(model(x), IGNORING, reduction=reduction).backward()
    optimizer.step()
    torch.testing.assert_close(model.posterior, expected.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("copies", [1, 2, 10])
def test_any_number_of_copies_with_and_without_bias(copies, bias):
    assert_two_passes(converted(mlp(bias), copies), batch(), CASES["smoothing_weights_ignore"][0])


@pytest.mark.parametrize("classes", [2, 7, 8, 15, 16, 17, 40])
def test_few_classes_and_many(classes):
    """The softmax of few classes is computed in another way than that of many."""
    target = torch.arange(ROWS) * 7 % classes
    assert_two_passes(converted(mlp(outputs=classes)), batch(), lambda out: F.cross_entropy(out, target))


@pytest.mark.parametrize("classes", [10, 40])
def test_large_logits_lose_no_digits(classes):
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Linear(INPUTS, classes), COPIES)
    with torch.no_grad():
        model.head.bias += 1e4
    x = torch.randn(ROWS, INPUTS)
    logits = F.linear(x, model.head.weight.flatten(0, 1), model.head.bias.flatten())
    of_copies = logits.view(ROWS, COPIES, classes).log_softmax(-1)
    torch.testing.assert_close(model(x).as_subclass(torch.Tensor), of_copies.logsumexp(1) - log(COPIES))


def test_the_network_may_be_the_output_layer_alone():
    assert_two_passes(converted(nn.Linear(INPUTS, CLASSES)), batch(), CASES["cross_entropy"][0])


SHAPES = {
    "sequence_flattened": (
        mlp, (2, 3, INPUTS), -1, lambda out: F.cross_entropy(out.reshape(-1, CLASSES), hard_targets(6))),
    "sequence_transposed": (
        mlp, (2, 3, INPUTS), -1, lambda out: F.cross_entropy(out.transpose(1, 2), hard_targets(2, 3))),
    "image_channels_last": (
        mlp, (2, 3, 2, INPUTS), -1,
        lambda out: F.cross_entropy(out.permute(0, 3, 1, 2), hard_targets(2, 3, 2))),
    "one_sample": (mlp, (INPUTS,), -1, lambda out: F.cross_entropy(out, torch.tensor(2))),
    "conv1d": (
        lambda: conv(nn.Conv1d), (2, INPUTS, 4), 1,
        lambda out: F.cross_entropy(out, hard_targets(2, 4), CLASS_WEIGHTS, label_smoothing=0.1)),
    "conv2d": (
        lambda: conv(nn.Conv2d), (2, INPUTS, 3, 2), 1,
        lambda out: F.nll_loss(out.log_softmax(1), hard_targets(2, 3, 2), CLASS_WEIGHTS)),
    "conv2d_soft": (
        lambda: conv(nn.Conv2d), (2, INPUTS, 3, 2), 1,
        lambda out: F.cross_entropy(out, soft_targets(2, 3, 2), CLASS_WEIGHTS)),
    "conv3d": (
        lambda: conv(nn.Conv3d), (2, INPUTS, 2, 1, 2), 1,
        lambda out: F.cross_entropy(out, hard_targets(2, 2, 1, 2), reduction="sum")),
}  # fmt: skip


def conv(kind):
    return nn.Sequential(kind(INPUTS, 6, 1), nn.Tanh(), kind(6, CLASSES, 1))


def hard_targets(*shape):
    target = torch.arange(torch.Size(shape).numel()).view(shape) % CLASSES
    return target.where(target != 1, -100)


def soft_targets(rows, *places):
    target = torch.linspace(0, 9, rows * CLASSES * torch.Size(places).numel(), dtype=torch.float64)
    return target.sin().view(rows, CLASSES, *places).softmax(1)


@pytest.mark.parametrize("case", SHAPES)
def test_outputs_of_any_shape(case):
    make, shape, axis, loss_of = SHAPES[case]
    assert_two_passes(converted(make()), torch.randn(shape, dtype=torch.float64), loss_of, axis)


def test_evidence_counts_every_place_of_an_image_once():
    model = converted(conv(nn.Conv2d))
    x, target = torch.randn(2, INPUTS, 3, 2, dtype=torch.float64), hard_targets(2, 3, 2)
    own = own_log_probs(model, body_output(model, x), 1)
    expected = torch.stack([-F.nll_loss(log_p, target) for log_p in own]).detach()
    F.cross_entropy(model(x), target).backward()
    torch.testing.assert_close(evidence_of(model), expected, rtol=1e-5, atol=1e-6)


def test_several_backward_passes_add_up_to_the_large_batch():
    whole = converted(mlp())
    halves = copy.deepcopy(whole)
    x = batch()
    F.cross_entropy(whole(x), TARGET).backward()
    for rows in (slice(0, 2), slice(2, 6)):
        (F.cross_entropy(halves(x[rows]), TARGET[rows], reduction="sum") / ROWS).backward()
    torch.testing.assert_close(evidence_of(halves), evidence_of(whole), rtol=1e-5, atol=1e-6)
    for p, q in zip(halves.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("copies", [1, COPIES])
def test_gradcheck_of_the_way_into_the_body(copies):
    # Into the copies goes another gradient than the output's: theirs are not checked here.
    model = converted(nn.Linear(INPUTS, CLASSES), copies)
    z = batch().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model(z).as_subclass(torch.Tensor), (z,))


def test_second_derivatives_are_refused():
    model = converted(mlp())
    loss = F.cross_entropy(model(batch()), TARGET)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(loss, model.body_parameters(), create_graph=True)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_functional_transforms_are_refused(transform):
    model = converted(mlp())
    with pytest.raises(RuntimeError, match=r"torch\.func.*do not apply"):
        transform(lambda x: model(x).sum())(batch())
