"""The table of losses in docs/losses.md, one by one: exact, accepted as a weighted likelihood, refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from support.tools import ROOT
from torch import nn
from torch.distributions import Categorical
from torch.nn.utils.rnn import pack_padded_sequence

import alrao

ROWS, STEPS, INPUTS, CLASSES, COPIES = 4, 3, 3, 5, 3
Y = torch.tensor([[0, 4, 2], [1, 1, 3], [2, 0, 4], [3, 2, 1]])
SOFT = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15]).double().expand(ROWS, STEPS, CLASSES)
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
ADVANTAGE = torch.tensor([1.0, -2.0, 0.5, -0.1]).double()
LENGTHS = torch.tensor([3, 3, 2, 1])


def flat(out):
    return out.reshape(-1, CLASSES)


def picked(out):
    return out.gather(-1, Y[..., None]).squeeze(-1)


def written(out):
    outputs = torch.zeros(STEPS, ROWS, CLASSES, dtype=out.dtype)
    for t in range(1, STEPS):
        outputs[t] = out[:, t]
    return F.cross_entropy(outputs.view(-1, CLASSES), Y.t().reshape(-1))


def padded(out):
    target = F.pad(Y, (0, 2), value=-100)
    return F.cross_entropy(F.pad(out, (0, 0, 0, 2)).flatten(0, 1), target.flatten())


def padded_and_counted(out):
    return F.cross_entropy(F.pad(out, (0, 0, 1, 0)).flatten(0, 1), F.pad(Y, (1, 0)).flatten())


def packed(out):
    target = pack_padded_sequence(Y, LENGTHS, batch_first=True).data
    return F.cross_entropy(pack_padded_sequence(out, LENGTHS, batch_first=True).data, target)


def implicit(out):
    with pytest.warns(UserWarning, match="Implicit dimension"):
        return F.nll_loss(F.log_softmax(flat(out)), Y.flatten())


def focal(out):
    log_p = picked(out.log_softmax(-1))
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def dice(out):
    p = picked(out.softmax(-1))
    return 1 - 2 * p.sum() / (p.numel() + p.sum())


def cross_entropy(**options):
    return lambda out: F.cross_entropy(flat(out), Y.flatten(), **options)


EXACT = {
    "`F.cross_entropy`": cross_entropy(),
    "… with class weights": cross_entropy(weight=torch.arange(1.0, 6.0).double()),
    "… with label smoothing": cross_entropy(label_smoothing=0.1),
    "… with ignored targets": cross_entropy(ignore_index=1),
    "… summed": cross_entropy(reduction="sum"),
    "… with soft targets": lambda out: F.cross_entropy(flat(out), flat(SOFT)),
    "… with the classes on axis 1": lambda out: F.cross_entropy(out.transpose(1, 2), Y),
    "… with weights of the samples": lambda out: (
        cross_entropy(reduction="none")(out) * torch.arange(12)
    ).mean(),
    "`F.nll_loss` of the output": lambda out: F.nll_loss(flat(out), Y.flatten()),
    "`F.nll_loss` after `log_softmax`": lambda out: F.nll_loss(flat(out).log_softmax(-1), Y.flatten()),
    "… after `F.log_softmax` without `dim`": implicit,
    "`-log_softmax(out)[…, y]`": lambda out: -picked(out.log_softmax(-1)).mean(),
    "`-(one_hot * log_softmax(out)).sum()`": lambda out: -(F.one_hot(Y, CLASSES) * out.log_softmax(-1)).sum(),
    "`logsumexp(out) - out[…, y]`": lambda out: (torch.logsumexp(out, -1) - picked(out)).mean(),
    "`F.kl_div` of soft targets (distillation)": lambda out: F.kl_div(
        out.log_softmax(-1), SOFT, reduction="batchmean"
    ),
    "`Categorical(logits=out).log_prob(y)`": lambda out: -Categorical(logits=out).log_prob(Y).mean(),
    "steps written by `outputs[t] = out`": written,
    "rows of `masked_select`": lambda out: F.cross_entropy(
        out.masked_select(MASK[..., None]).view(-1, CLASSES), Y[MASK]
    ),
    "rows added by `F.pad`, ignored": padded,
    "rows added by `F.pad`, counted": padded_and_counted,
    "`pack_padded_sequence(out).data`": packed,
    "`cat`, `stack`, `flip`, `repeat_interleave`, `gather` of rows": lambda out: F.cross_entropy(
        torch.stack([out.flip(0), out]).repeat_interleave(2, 1).flatten(0, 2),
        torch.stack([Y.flip(0), Y]).repeat_interleave(2, 1).flatten(),
    ),
}
WEIGHTED = {
    "focal loss": focal,
    "PolyLoss": lambda out: cross_entropy()(out) + (1 - picked(out.softmax(-1))).mean(),
    "generalised cross-entropy, `(1 - p**q) / q`": lambda out: (
        (1 - picked(out.log_softmax(-1)).exp() ** 0.7) / 0.7
    ).mean(),
    "mean absolute error of the probability, `1 - p`": lambda out: (1 - picked(out.softmax(-1))).mean(),
    "Dice loss of the target's probability": dice,
    "policy gradient, advantages of one sign": lambda out: (
        -(picked(out.log_softmax(-1)) * ADVANTAGE.abs()[:, None]).mean()
    ),
}
REFUSED = {
    "`F.mse_loss`, `F.l1_loss`, `F.huber_loss` of the output": lambda out: F.mse_loss(out, SOFT),
    "`F.mse_loss` of the probabilities (Brier score)": lambda out: F.mse_loss(out.softmax(-1), SOFT),
    "`F.multi_margin_loss` (hinge)": lambda out: F.multi_margin_loss(flat(out), Y.flatten()),
    "`F.binary_cross_entropy_with_logits` of a classifier": lambda out: F.binary_cross_entropy_with_logits(
        out, SOFT
    ),
    "an entropy bonus": lambda out: cross_entropy()(out) - 2 * Categorical(logits=out).entropy().mean(),
    "policy gradient, advantages of both signs": lambda out: (
        -(picked(out.log_softmax(-1)) * ADVANTAGE[:, None]).mean()
    ),
    "unlikelihood, `-log(1 - p)`": lambda out: -torch.log1p(-picked(out.softmax(-1))).mean(),
    "a temperature outside the network": lambda out: cross_entropy()(out / 2),
    "masked classes outside the network": lambda out: F.cross_entropy(
        flat(out).masked_fill(torch.arange(CLASSES) == 1, -9.0), torch.full_like(Y, 3).flatten()
    ),
    "`F.ctc_loss`": lambda out: F.ctc_loss(
        out.log_softmax(-1).transpose(0, 1),
        torch.ones(ROWS, 1).long(),
        torch.full((ROWS,), STEPS),
        torch.ones(ROWS).long(),
    ),
}


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()
    converted = alrao.Alrao(net, COPIES)
    converted.head.averaging.update([0.0, 1.0, -2.0])
    return converted


def by_definition(converted, x):
    """Return plain logits of the copies and log-probabilities of the mixture."""
    z = converted.net[1](converted.net[0](x))
    layers = [converted.head.layer(j) for j in range(COPIES)]
    logits = [layer(z) for layer in layers]
    log_a = converted.head.averaging.weights.log().view(-1, 1, 1, 1)
    log_m = (torch.stack(logits).log_softmax(-1) + log_a).logsumexp(0)
    return layers, logits, log_m


@pytest.mark.parametrize("name", EXACT)
def test_exact(name):
    converted, x = model(), torch.randn(ROWS, STEPS, INPUTS).double()
    loss = EXACT[name](converted(x))
    loss.backward()
    layers, logits, log_m = by_definition(converted, x)
    expected = EXACT[name](log_m)
    torch.testing.assert_close(loss.detach(), expected.detach())
    body = torch.autograd.grad(expected, converted.body_parameters(), retain_graph=True)
    for parameter, grad in zip(converted.body_parameters(), body, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    for j, layer in enumerate(layers):
        (grad,) = torch.autograd.grad(EXACT[name](logits[j].log_softmax(-1)), layer.weight, retain_graph=True)
        torch.testing.assert_close(converted.head.weight.grad[j], grad)
    alrao.SGD(converted).step()


@pytest.mark.parametrize("name", WEIGHTED)
def test_accepted_as_a_weighted_likelihood(name):
    # The body has the loss's gradient; copies have that of a likelihood whose weights are the mixture's.
    converted, x = model(), torch.randn(ROWS, STEPS, INPUTS).double()
    WEIGHTED[name](converted(x)).backward()
    layers, logits, log_m = by_definition(converted, x)
    expected = WEIGHTED[name](log_m)
    # A loss of log-probabilities: a log_softmax in it changes nothing but the derivative along their sum.
    body = torch.autograd.grad(expected, converted.body_parameters(), retain_graph=True)
    for parameter, grad in zip(converted.body_parameters(), body, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    leaf = converted(x).detach().as_subclass(torch.Tensor).requires_grad_()
    weights = _gradient_by_picked(name, leaf)
    for j, layer in enumerate(layers):
        own = (weights * picked(logits[j].log_softmax(-1))).sum()
        (grad,) = torch.autograd.grad(own, layer.weight, retain_graph=True)
        torch.testing.assert_close(converted.head.weight.grad[j], grad)
    alrao.SGD(converted).step()


def _gradient_by_picked(name, log_m):
    """Return the loss's derivative by the log-probabilities of the targets, on which alone it depends."""
    log_p = picked(log_m).detach().requires_grad_()
    rest = torch.log1p(-log_p.exp()) - torch.log(torch.tensor(CLASSES - 1.0))
    full = torch.where(F.one_hot(Y, CLASSES).bool(), log_p[..., None], rest[..., None])
    (gradient,) = torch.autograd.grad(WEIGHTED[name](full), log_p)
    return gradient


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    converted, x = model(), torch.randn(ROWS, STEPS, INPUTS).double()
    optimizer = alrao.SGD(converted)
    before = [p.detach().clone() for p in converted.parameters()]
    REFUSED[name](converted(x)).backward()
    with pytest.raises(RuntimeError, match="the loss is not a negative log-likelihood"):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(converted.parameters(), before, strict=True))


def test_the_message_names_the_operation_and_the_line():
    converted = model()
    optimizer = alrao.SGD(converted)
    scaled = converted(torch.randn(ROWS, STEPS, INPUTS).double()) * 0.5
    cross_entropy()(scaled).backward()
    with pytest.raises(
        RuntimeError, match=r"became a plain tensor in Tensor\.mul at test_loss_table\.py:\d+"
    ):
        optimizer.step()


def test_the_page_lists_these_losses():
    text = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    listed = [re.findall(r"^\| (.+?) \|", part, flags=re.MULTILINE)[1:] for part in sections]
    listed = [[row for row in rows if not row.startswith("---")] for rows in listed]
    assert listed[:3] == [list(EXACT), list(WEIGHTED), list(REFUSED)]
