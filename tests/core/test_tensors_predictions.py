"""Predictions of regressors through cat, stack and split: the loss is that of all of them together."""

import pytest
import torch
from torch import nn

import alrao
from alrao.tensors import Prediction

ROWS, OUTPUTS, COPIES = 6, 2, 3


def model():
    torch.manual_seed(0)
    converted = alrao.Alrao(nn.Linear(4, OUTPUTS), COPIES, likelihood="gaussian").double()
    converted.head.averaging.update([0.0, 1.0, -2.0])
    return converted


JOINS = {
    "cat": lambda out: torch.cat([out(slice(0, 2)), out(slice(2, 6))]),
    "stack": lambda out: torch.stack([out(slice(0, 3)), out(slice(3, 6))]),
    "stack_behind": lambda out: torch.stack([out(slice(0, 3)), out(slice(3, 6))], dim=-1),
    "cat_by_name": lambda out: torch.cat(tensors=[out(slice(0, 2)), out(slice(2, 6))], axis=0),
    "stack_along": lambda out: torch.stack([out(slice(0, 3)), out(slice(3, 6))], axis=-1),
    "split": lambda out: torch.cat(out(slice(0, 6)).split([4, 2])[::-1]),
    "chunk": lambda out: out(slice(0, 6)).chunk(3)[1],
    "unbind": lambda out: torch.stack(out(slice(0, 6)).unbind()),
    "flip": lambda out: out(slice(0, 6)).flip(0),
    "repeat_interleave": lambda out: out(slice(0, 6)).repeat_interleave(2, 0),
}


@pytest.mark.parametrize("name", JOINS)
def test_joined_and_split_predictions(name):
    converted, x = model(), torch.randn(ROWS, 4).double()
    prediction = JOINS[name](lambda rows: converted(x[rows]))
    assert type(prediction) is Prediction
    target = torch.linspace(-2, 2, prediction.numel()).double().cos().view(prediction.shape)
    loss = alrao.MixtureMSELoss()(prediction, target)
    loss.backward()

    layers = [converted.head.layer(j) for j in range(COPIES)]
    outputs = torch.stack([JOINS[name](lambda rows, layer=layer: layer(x[rows])) for layer in layers])
    scores = -(outputs - target).square() / 2
    axis = {"stack_behind": 2, "stack_along": 2}.get(name, outputs.ndim - 1)  # that of the outputs
    scores = scores.sum(axis)
    log_a = converted.head.averaging.weights.log().view([-1] + [1] * (scores.ndim - 1))
    torch.testing.assert_close(loss, -(scores + log_a).logsumexp(0).mean())
    for j, layer in enumerate(layers):
        (grad,) = torch.autograd.grad(-scores[j].mean(), layer.weight, retain_graph=True)
        torch.testing.assert_close(converted.head.weight.grad[j], grad)


def test_predictions_of_different_models_are_not_joined():
    x = torch.randn(ROWS, 4).double()
    joined = torch.cat([model()(x), model()(x)])
    assert type(joined) is torch.Tensor
