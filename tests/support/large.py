"""Models whose outputs count as large, and the losses that they are compared on with the plain head."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao.heads import vocabulary
from alrao.tensors import LazyLogProbs

COPIES, ROWS, INPUTS, CLASSES = 4, 12, 3, 7
TARGET = torch.arange(ROWS) * 5 % CLASSES
IGNORING = torch.where(TARGET == 3, -100, TARGET)
SOFT = torch.linspace(-2, 3, ROWS * CLASSES, dtype=torch.float64).sin().view(ROWS, CLASSES).softmax(1)
BY_CLASS = torch.linspace(0.5, 2, CLASSES, dtype=torch.float64)
BY_ROW = torch.linspace(0, 3, ROWS, dtype=torch.float64)


def count_as_large(monkeypatch):
    """Take every output for a large one, and two rows for a chunk."""
    monkeypatch.setattr(vocabulary, "LARGE", 1)
    monkeypatch.setattr(vocabulary, "CHUNK", 2 * CLASSES)


def converted(outputs=CLASSES, bias=True, dtype=torch.float64, net=None):
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, outputs, bias=bias))
    model = alrao.Alrao(net, COPIES).to(dtype)
    with torch.no_grad():
        model.head.weight.mul_(3)
    model.head.averaging.update(torch.tensor([0.3, -0.2, 0.5, -1.0]))
    return model


def batch(*shape, dtype=torch.float64):
    return torch.randn(*shape or (ROWS,), INPUTS, generator=torch.Generator().manual_seed(1)).to(dtype)


def everything(model, x, loss_of, monkeypatch, at_once):
    """The loss, all gradients, and the evidence; ``at_once`` by the head that holds all copies."""
    model = copy.deepcopy(model)
    with monkeypatch.context() as patch:
        if at_once:
            patch.setattr(vocabulary, "LARGE", 10**9)
        out = model(x)
        assert isinstance(out, LazyLogProbs) != at_once
        loss = loss_of(out)
        loss.backward()
    grads = [p.grad for p in model.parameters()]
    # Rows with two losses, or two gradients that cancel to rounding, are counted otherwise: leave that out.
    return [loss.detach(), *grads, model.head.evidence.grad[:-1]]


def assert_equal_to_the_present_head(model, x, loss_of, monkeypatch, rtol=1e-10, atol=1e-12):
    lazily, at_once = (everything(model, x, loss_of, monkeypatch, at_once) for at_once in (False, True))
    for ours, expected in zip(lazily, at_once, strict=True):
        torch.testing.assert_close(ours, expected, rtol=rtol, atol=atol, equal_nan=True)


def per_row(out):
    return F.cross_entropy(out, TARGET, reduction="none")


LOSSES = {
    "mean": lambda out: F.cross_entropy(out, TARGET),
    "sum": lambda out: F.cross_entropy(out, TARGET, reduction="sum"),
    "none": lambda out: (per_row(out) * BY_ROW).sum(),
    "legacy_sum": lambda out: nn.NLLLoss(reduction="sum")(out, TARGET),
    "module": lambda out: nn.CrossEntropyLoss()(out, TARGET),
    "nll": lambda out: F.nll_loss(out.log_softmax(-1), TARGET),
    "keywords": lambda out: F.cross_entropy(input=out, target=TARGET),
    "ignore": lambda out: F.cross_entropy(out, IGNORING),
    "ignore_none": lambda out: (F.cross_entropy(out, IGNORING, reduction="none") * BY_ROW).sum(),
    "ignore_a_class": lambda out: F.cross_entropy(out, TARGET, ignore_index=2),
    "ignore_all": lambda out: F.cross_entropy(out, torch.full_like(TARGET, -100)),
    "weights": lambda out: F.cross_entropy(out, TARGET, BY_CLASS),
    "weights_ignore": lambda out: F.cross_entropy(out, IGNORING, BY_CLASS, ignore_index=-100),
    "weights_none": lambda out: (F.cross_entropy(out, TARGET, BY_CLASS, reduction="none") * BY_ROW).sum(),
    "smoothing": lambda out: F.cross_entropy(out, IGNORING, BY_CLASS, label_smoothing=0.2),
    "soft": lambda out: F.cross_entropy(out, SOFT, BY_CLASS),
    "kl_div": lambda out: F.kl_div(out.log_softmax(1), SOFT, reduction="batchmean"),
    "scaled": lambda out: 2.0**16 * F.cross_entropy(out, TARGET) / 3,
    "two_losses": lambda out: F.cross_entropy(out, TARGET) + F.cross_entropy(out[3:], TARGET[3:]),
    "gather": lambda out: -out.gather(1, TARGET[:, None]).mean(),
    "reading_before": lambda out: F.cross_entropy(out, TARGET) + 0 * out.exp().sum().detach(),
    "temperature": lambda out: F.nll_loss((out / 2).log_softmax(-1), TARGET),
}
