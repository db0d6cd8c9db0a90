"""A module, data and a seeded fit, shared by the tests of the skorch nets."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5)).astype(np.float32)
y = X[:, :3].argmax(1)
LINEAR = (X[:, :1] - 2 * X[:, 1:2]).astype(np.float32)
QUIET = {"verbose": 0, "train_split": None, "batch_size": 20, "max_epochs": 3}


class Net(nn.Module):
    """A module as users of skorch write it: arguments, and logits at the end."""

    def __init__(self, units=16, outputs=3):
        super().__init__()
        self.hidden, self.out = nn.Linear(5, units), nn.Linear(units, outputs)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def seeded(net, inputs=X, targets=y):
    torch.manual_seed(7)
    return net.fit(inputs, targets)


def check_same_weights(net, expected):
    found = net.module_.state_dict() if hasattr(net, "module_") else net.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name
