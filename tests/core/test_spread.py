"""Networks that do more with their outputs than change the shape: every copy goes through it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_compile
from torch import nn

import alrao
from alrao.heads.after_output import Spread
from alrao.tensors import LogProbs

INPUTS, HIDDEN, CLASSES, COPIES, ROWS = 4, 8, 5, 3, 6
FOLLOWED = pytest.mark.filterwarnings("ignore:the output layer")


class Net(nn.Module):
    """A body, an output layer, and what follows it."""

    def __init__(self, output, after, body=None):
        super().__init__()
        self.body = nn.Linear(INPUTS, HIDDEN) if body is None else body
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.output = output
        self.after = after

    def forward(self, x):
        return self.after(self.output(self.body(x).tanh()), self.temperature)


def linear():
    return nn.Linear(HIDDEN, CLASSES)


def conv():
    return nn.Conv2d(HIDDEN, CLASSES, 1)


def pictures(n=2):
    return torch.randn(n, INPUTS, 6, 6)


def in_place(out, t):
    out *= t
    out[:, 0] = -1.0
    return out


def dropped(out, t):
    return F.dropout(out, 0.5)


VECTORS = (lambda: torch.randn(ROWS, INPUTS), lambda: torch.arange(ROWS) % CLASSES)
IMAGES = (pictures, lambda: torch.arange(2) % CLASSES)
DENSE = (pictures, lambda: torch.arange(2 * 12 * 12).view(2, 12, 12) % CLASSES)
BODY = lambda: nn.Conv2d(INPUTS, HIDDEN, 1)  # noqa: E731
CASES = {
    # logits * s, and soft-capped logits: Cohere, Granite, Gemma 2
    "scaled": (linear, lambda out, t: out * 0.3, None, VECTORS),
    "divided by a parameter": (linear, lambda out, t: out / t.exp(), None, VECTORS),
    "capped": (linear, lambda out, t: 3 * torch.tanh(out / 3), None, VECTORS),
    "relu": (linear, lambda out, t: F.relu(out), None, VECTORS),
    "relu in place": (linear, lambda out, t: F.relu(out, inplace=True), None, VECTORS),
    "in place": (linear, in_place, None, VECTORS),
    "masked classes": (
        linear,
        lambda out, t: out.masked_fill(torch.eye(ROWS, CLASSES).roll(2, 1).bool(), -torch.inf),
        None,
        VECTORS,
    ),
    "some classes": (linear, lambda out, t: torch.cat([out[:, :2], 2 * out[:, 2:]], 1), None, VECTORS),
    "beside another": (
        linear,
        lambda out, t: (torch.ones(ROWS, CLASSES).double() * t + out) / 2,
        None,
        VECTORS,
    ),
    # SqueezeNet
    "pooled": (conv, lambda out, t: F.adaptive_avg_pool2d(F.relu(out), 1).flatten(1), BODY, IMAGES),
    "mean over places": (conv, lambda out, t: out.mean((2, 3)), BODY, IMAGES),
    # segmentation
    "resized": (conv, lambda out, t: F.interpolate(out, (12, 12), mode="bilinear"), BODY, DENSE),
}


def build(name):
    output, after, body, (inputs, targets) = CASES[name]
    torch.manual_seed(0)
    net = Net(output(), after, body and body()).double()
    model = alrao.Alrao(net, COPIES, output="output")
    model.head.averaging.update([0.0, 1.0, -2.0])
    return model, inputs().double(), targets()


def reference(model, x, y, loss=F.nll_loss):
    """Return the mixture's loss, the copies' own, and the gradients, by the definition."""
    layers = [model.head.layer(j) for j in range(COPIES)]
    nets = []
    for layer in layers:
        net = copy.copy(model.net)
        net._modules = {**model.net._modules, "output": layer}
        nets.append(net)
    log_p = torch.stack([net(x).log_softmax(1) for net in nets])
    log_p = log_p.clamp(min=-1e4)  # autograd has no derivative of log(0)
    a = model.head.averaging.weights.view([-1] + [1] * (log_p.ndim - 1))
    mixture = loss((log_p + a.log()).logsumexp(0), y)
    body = torch.autograd.grad(mixture, model.body_parameters(), retain_graph=True, allow_unused=True)
    own = [loss(each, y) for each in log_p]
    of_copies = [
        torch.autograd.grad(own[j], list(layers[j].parameters()), retain_graph=True) for j in range(COPIES)
    ]
    return mixture, own, body, [torch.stack(grads) for grads in zip(*of_copies, strict=True)]


@FOLLOWED
@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_evidence_are_those_of_the_definition(name):
    model, x, y = build(name)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    expected, own, body, of_copies = reference(model, x, y)
    torch.testing.assert_close(loss, expected)
    for parameter, grad in zip(model.body_parameters(), body, strict=True):
        if grad is not None:
            torch.testing.assert_close(parameter.grad, grad)
    for parameter, grad in zip(model.head.parameters(), of_copies, strict=True):
        torch.testing.assert_close(parameter.grad.flatten(), grad.flatten())
    numbers = model.head.evidence.grad
    torch.testing.assert_close(numbers[:COPIES], torch.stack(own), rtol=1e-9, atol=1e-12)
    assert numbers[COPIES + 2] == y.numel()


@FOLLOWED
@pytest.mark.parametrize("name", CASES)
def test_a_step_a_prediction_and_the_best_copy(name):
    model, x, y = build(name)
    optimizer = alrao.Auto(model)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = model(x)
        log_p = out.log_softmax(1)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones_like(log_p.sum(1)).as_subclass(torch.Tensor))
    assert torch.equal(out.argmax(1), log_p.as_subclass(torch.Tensor).argmax(1))
    assert torch.equal(out.max(1).indices, out.topk(1, 1).indices.squeeze(1))
    plain = model.collapse()
    assert type(plain(x)) is torch.Tensor
    assert isinstance(plain.output, nn.Linear | nn.Conv2d)


@FOLLOWED
def test_dropout_after_the_output_layer_drops_the_same_for_copies_and_body():
    torch.manual_seed(0)
    model = alrao.Alrao(Net(linear(), dropped).double(), 1)
    x, y = torch.randn(ROWS, INPUTS).double(), torch.arange(ROWS) % CLASSES
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    # One copy is a plain network: the loss is the same function of both.
    (weight, bias), own = (p.grad for p in model.net.body.parameters()), model.head.weight.grad
    assert weight.isfinite().all()
    z = model.net.body(x).tanh()
    dropped_out = model.head.bias.grad[0] == 0
    assert dropped_out.numel() == CLASSES
    assert own.shape == (1, CLASSES, HIDDEN)
    assert z.shape == (ROWS, HIDDEN)
    assert bias.shape == (HIDDEN,)


class TwoSoftmaxes(nn.Module):
    """As in question answering: the first and the last word, from one layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(INPUTS, HIDDEN)
        self.output = nn.Linear(HIDDEN, 2)

    def forward(self, x, labels=None):
        first, last = self.output(self.body(x).tanh()).split(1, dim=-1)
        first, last = first.squeeze(-1).contiguous(), last.squeeze(-1).contiguous()
        if labels is None:
            return first, last
        return (F.cross_entropy(first, labels[0]) + F.cross_entropy(last, labels[1])) / 2


@pytest.mark.parametrize("inside", [True, False], ids=["loss in the network", "loss outside"])
def test_two_softmaxes_of_one_layer(inside):
    torch.manual_seed(0)
    model = alrao.Alrao(TwoSoftmaxes().double(), COPIES)
    model.head.averaging.update([0.0, 1.0, -2.0])
    x, labels = torch.randn(ROWS, 7, INPUTS).double(), torch.randint(7, (2, ROWS))
    with pytest.warns(UserWarning, match=r"'output' is followed by split at test_spread.py:\d+.*exact"):
        out = model(x, labels) if inside else model(x)
    loss = out if inside else (F.cross_entropy(out[0], labels[0]) + F.cross_entropy(out[1], labels[1])) / 2
    loss.backward()
    logits = torch.stack([model.head.layer(j)(model.net.body(x).tanh()) for j in range(COPIES)])
    log_a = model.head.averaging.weights.log().view(-1, 1, 1, 1)
    log_m = (logits.log_softmax(2) + log_a).logsumexp(0)
    expected = sum(F.nll_loss(log_m[..., i], labels[i]) for i in range(2)) / 2
    torch.testing.assert_close(loss, expected)
    (grad,) = torch.autograd.grad(expected, model.net.body.weight)
    torch.testing.assert_close(model.net.body.weight.grad, grad)
    alrao.SGD(model).step()


class Segmenter(nn.Module):
    """Returns its logits as they are, beside a loss of the resized ones: Hugging Face's segmentation."""

    def __init__(self, resize):
        super().__init__()
        self.body = nn.Conv2d(INPUTS, HIDDEN, 1)
        self.output = conv()
        self.resize = resize

    def forward(self, x, labels):
        logits = self.output(self.body(x).tanh())
        resized = F.interpolate(logits, labels.shape[1:], mode="bilinear") if self.resize else logits
        log_p = resized.log_softmax(1)
        return {"loss": -log_p.gather(1, labels[:, None]).mean(), "logits": logits}


@FOLLOWED
@pytest.mark.parametrize("resize", [True, False])
def test_a_loss_in_the_network_decides(resize):
    torch.manual_seed(0)
    model = alrao.Alrao(Segmenter(resize).double(), COPIES)
    x, labels = pictures().double(), DENSE[1]() if resize else DENSE[1]()[:, :6, :6]
    loss = model(x, labels)["loss"]
    assert model.head.spread == resize
    logits = [model.head.layer(j)(model.net.body(x).tanh()) for j in range(COPIES)]
    logits = [F.interpolate(each, labels.shape[1:], mode="bilinear") for each in logits]
    log_m = (torch.stack(logits).log_softmax(2)).logsumexp(0) - torch.tensor(COPIES).log()
    torch.testing.assert_close(loss, F.nll_loss(log_m, labels))
    loss.backward()
    alrao.SGD(model).step()


@FOLLOWED
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_regression_and_labels(likelihood):
    torch.manual_seed(0)
    after = {"gaussian": lambda out, t: 2 * torch.tanh(out) + t, "bernoulli": lambda out, t: out / t.exp()}[
        likelihood
    ]
    criterion = {"gaussian": alrao.MixtureMSELoss(), "bernoulli": nn.BCEWithLogitsLoss()}[likelihood]
    shown = 2 / CLASSES if likelihood == "gaussian" else 1
    model = alrao.Alrao(Net(linear(), after).double(), COPIES, likelihood=likelihood)
    x, y = torch.randn(ROWS, INPUTS).double(), torch.rand(ROWS, CLASSES).double().round()
    loss = criterion(model(x), y)
    loss.backward()
    outputs = torch.stack(
        [after(model.head.layer(j)(model.net.body(x).tanh()), model.net.temperature) for j in range(COPIES)]
    )
    log_a = model.head.averaging.weights.log()
    if likelihood == "gaussian":
        scores = -(outputs - y).square().sum(-1) / 2 + log_a[:, None]
    else:
        scores = F.logsigmoid((2 * y - 1) * outputs) + log_a[:, None, None]
    expected = -scores.logsumexp(0).mean()
    torch.testing.assert_close(loss, shown * expected)
    grads = torch.autograd.grad(expected, model.body_parameters())
    for parameter, grad in zip(model.body_parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    alrao.SGD(model).step()


@FOLLOWED
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["capped", "resized"])
def test_a_failed_copy_leaves_the_others_alone(name, value):
    model, x, y = build(name)
    with torch.no_grad():
        model.head.weight[1] = value
    F.cross_entropy(model(x), y).backward()
    assert (model.head.weight.grad[1] == 0).all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    optimizer = alrao.SGD(model)
    optimizer.step()
    assert model.posterior[1] == 0
    assert model(x).isfinite().all()


@FOLLOWED
def test_the_largest_of_all_outputs_is_that_of_the_numbers_that_are_shown():
    model, x, _ = build("capped")
    out = model(x)
    shown = out.detach().numpy()
    assert out.max() == shown.max()
    assert torch.max(out) == shown.max()
    assert out.argmax() == shown.argmax()


@FOLLOWED
def test_the_first_forward_pass_counts_once():
    # It is repeated; running statistics and random numbers are as after one.
    def net():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout())
        return Net(linear(), lambda out, t: out * t, body)

    x = torch.randn(ROWS, INPUTS)
    plain, model = net(), alrao.Alrao(net(), COPIES)
    torch.manual_seed(1)
    plain(x)
    after = torch.rand(())
    torch.manual_seed(1)
    model(x)
    assert torch.equal(torch.rand(()), after)
    assert plain.body[1].num_batches_tracked == model.net.body[1].num_batches_tracked == 1
    torch.testing.assert_close(plain.body[1].running_mean, model.net.body[1].running_mean)


@FOLLOWED
def test_losses_of_the_numbers_that_are_shown_are_refused():
    model, x, y = build("capped")
    optimizer = alrao.SGD(model)
    for loss in (
        lambda out: out.square().mean(),
        lambda out: F.mse_loss(out, F.one_hot(y, CLASSES).double()),
    ):
        out = model(x)
        assert isinstance(out, Spread)
        loss(out).backward()
        with pytest.raises(RuntimeError, match="not a negative log-likelihood"):
            optimizer.step()
        optimizer.zero_grad()


@FOLLOWED
def test_the_mixture_has_no_plain_form():
    model, x, _ = build("capped")
    model(x)
    with pytest.raises(ValueError, match=r"no plain form.*collapse\(\) without mixture"):
        model.collapse(mixture=True)


@FOLLOWED
@needs_compile
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model_is_refused(fullgraph):
    model, x, _ = build("capped")
    model(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    with pytest.raises(Exception, match=r"cannot be compiled|_uncompiled"):
        compiled(x)


def test_the_fast_path_is_kept_where_only_the_shape_changes():
    model = alrao.Alrao(Net(linear(), lambda out, t: out.unsqueeze(1).transpose(0, 1)), COPIES)
    assert isinstance(model(torch.randn(ROWS, INPUTS)), LogProbs)
    assert not model.head.spread


def test_batch_norm_after_the_output_layer_is_refused():
    model = alrao.Alrao(nn.Sequential(nn.Linear(INPUTS, CLASSES), nn.BatchNorm1d(CLASSES)), COPIES)
    with pytest.raises(RuntimeError, match="BatchNorm layer follows the output layer"):
        model(torch.randn(ROWS, INPUTS))
