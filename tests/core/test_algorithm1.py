"""The library agrees, step by step, with a literal reference of Algorithm 1."""

import pytest
import torch
import torch.nn.functional as F
from support.reference import Reference
from torch import nn

import alrao

CLASSES = 5
STEPS = 6
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Net(nn.Module):
    def __init__(self, body, width):
        super().__init__()
        self.body = body
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.out(self.body(x))


class BidirectionalLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class MeanOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 7)

    def forward(self, x):
        return self.hidden(self.words(x).mean(1)).tanh()


def images():
    return torch.randn(6, 3, 8, 8)


def cnn():
    # No biases before the normalisation: their gradients would be 0 but for rounding.
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip


def upsampling(groups):
    return nn.Sequential(
        nn.ConvTranspose2d(4, 6, 2, stride=2, groups=groups), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )


def depthwise():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3),
        nn.ReLU(),
        nn.Conv2d(6, 4, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )


def transformer():
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    )


# name: (body, width of its output, inputs, shape of the targets)
CASES = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 8), nn.Tanh()),
        8,
        lambda: torch.randn(10, 4),
        (10,),
    ),
    "cnn with batchnorm": (cnn, 16, images, (6,)),
    "depthwise convolution": (depthwise, 16, images, (6,)),
    "transposed convolution": (lambda: upsampling(1), 24, lambda: torch.randn(6, 4, 3, 3), (6,)),
    "transposed convolution in groups": (lambda: upsampling(2), 24, lambda: torch.randn(6, 4, 3, 3), (6,)),
    "bidirectional lstm": (BidirectionalLSTM, 8, lambda: torch.randn(4, 5, 3), (4, 5)),
    "embedding": (MeanOfWords, 7, lambda: torch.randint(11, (9, 4)), (9,)),
    "transformer": (transformer, 8, lambda: torch.randn(3, 4, 8), (3, 4)),
}


def as_double(x):
    return x.double() if x.is_floating_point() else x


def assert_agree(model, optimizer, reference, inputs, target_shape):
    for _ in range(STEPS):
        x, y = as_double(inputs()), torch.randint(CLASSES, target_shape)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(loss.detach().as_subclass(torch.Tensor), reference.step(x, y), **CLOSE)
        torch.testing.assert_close(
            dict(model.net.body.state_dict()), dict(reference.body.state_dict()), **CLOSE
        )  # parameters, and the running statistics of BatchNorm
        torch.testing.assert_close(model.head.weight.detach(), reference.stacked("weight"), **CLOSE)
        torch.testing.assert_close(model.head.bias.detach(), reference.stacked("bias"), **CLOSE)
        torch.testing.assert_close(model.posterior, reference.switch.weights, **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_algorithm_1(case):
    body, width, inputs, target_shape = CASES[case]
    net = Net(body(), width).double()
    before = [p.detach().clone() for p in net.body.parameters()]
    model = alrao.Alrao(net, copies=4)
    optimizer = alrao.SGD(model, lr=(1e-3, 3.0))
    assert_agree(model, optimizer, Reference(model, optimizer), inputs, target_shape)
    moved = [not torch.equal(p, old) for p, old in zip(net.body.parameters(), before, strict=True)]
    assert all(moved), "every parameter of the body takes part, or the comparison says nothing of it"


@pytest.mark.parametrize(
    "sgd",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.05},
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    ],
    ids=["momentum", "weight decay", "nesterov and weight decay"],
)
def test_agrees_with_momentum_and_weight_decay(sgd):
    body, width, inputs, target_shape = CASES["mlp"]
    model = alrao.Alrao(Net(body(), width).double(), copies=3)
    optimizer = alrao.SGD(model, lr=(1e-3, 0.5), **sgd)
    assert_agree(model, optimizer, Reference(model, optimizer, **sgd), inputs, target_shape)


def test_posterior_agrees_over_a_longer_run():
    # Rates far apart, so that the posterior leaves the uniform prior and comes to prefer some copies.
    body, width, inputs, target_shape = CASES["mlp"]
    model = alrao.Alrao(Net(body(), width).double(), copies=5)
    optimizer = alrao.SGD(model, lr=(1e-5, 1.0))
    reference = Reference(model, optimizer)
    x, y = as_double(inputs()), torch.randint(CLASSES, target_shape)
    for _ in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        reference.step(x, y)
    assert model.posterior.max() > 0.5
    torch.testing.assert_close(model.posterior, reference.switch.weights, rtol=1e-7, atol=1e-9)
