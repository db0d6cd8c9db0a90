"""A compiled model trains like an eager one, in one graph that is compiled once."""

import copy
import pickle
import shutil

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_compile
from torch import nn

import alrao

# torch's compiler makes an instance of the class itself while it traces.
pytestmark = [
    needs_compile,
    pytest.mark.filterwarnings(
        "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
    ),
]


def mlp(outputs=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp(1)

    def forward(self, x):
        return self.inner(x).squeeze(-1)


def images():
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 3, 1))


def flat_cross_entropy(out, y):
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


# The likelihood, the network, the shape of a batch, the criterion.
CASES = {
    "categorical": ("categorical", mlp, (12, 4), F.cross_entropy),
    "gaussian": ("gaussian", mlp, (12, 4), alrao.MixtureMSELoss()),
    "bernoulli": ("bernoulli", mlp, (12, 4), alrao.MixtureBCELoss()),
    "sequences": ("categorical", mlp, (3, 4, 4), flat_cross_entropy),
    "sequences of numbers": ("gaussian", mlp, (3, 4, 4), alrao.MixtureMSELoss()),
    "sequences of labels": ("bernoulli", mlp, (3, 4, 4), alrao.MixtureBCELoss()),
    "one number": ("gaussian", Squeezed, (12, 4), alrao.MixtureMSELoss()),
    "images": ("categorical", images, (2, 4, 5, 5), F.cross_entropy),
}


def batch(case, model):
    likelihood, _, shape, _ = CASES[case]
    x = torch.randn(shape)
    with torch.no_grad():
        y = torch.randn_like(model(x).as_subclass(torch.Tensor))
    classes = 1 if case == "images" else -1
    return x, {"categorical": y.argmax(classes), "gaussian": y, "bernoulli": (y > 0).float()}[likelihood]


def compare(case, backend, what):
    """Five steps, compiled and eager; a second compilation is an error."""
    torch._dynamo.reset()
    likelihood, net, _, criterion = CASES[case]
    model = alrao.Alrao(net(), 4, likelihood=likelihood)
    eager = copy.deepcopy(model)
    optimizer, of_eager = (
        alrao.SGD(each, lr=(1e-3, 1.0), generator=torch.Generator().manual_seed(1)) for each in (model, eager)
    )
    if what == "model":
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        losses = [lambda x, y: criterion(compiled(x), y), lambda x, y: criterion(eager(x), y)]
    else:
        whole = torch.compile(lambda x, y: criterion(model(x), y), fullgraph=True, backend=backend)
        losses = [whole, lambda x, y: criterion(eager(x), y)]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(5):
            x, y = batch(case, eager)
            values = []
            for loss_of, its in zip(losses, (optimizer, of_eager), strict=True):
                its.zero_grad()
                values.append(loss_of(x, y))
                values[-1].backward()
                its.step()
            torch.testing.assert_close(*values)
    assert model.head.averaging.t == 6
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, eager.state_dict()[name], rtol=1e-4, atol=1e-5)


FAST = [(case, "model") for case in CASES]
FAST += [(case, "loss") for case in ("categorical", "one number", "images")]
SLOW = [(case, "loss") for case in CASES if (case, "loss") not in FAST]


@pytest.mark.parametrize(
    ("case", "what"), FAST + [pytest.param(*each, marks=pytest.mark.slow) for each in SLOW]
)
def test_compiled_equals_eager_without_recompilation(case, what):
    compare(case, "aot_eager", what)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("case", CASES)
def test_inductor_equals_eager_without_recompilation(case):
    compare(case, "inductor", "model")


def test_an_optimizer_takes_a_compiled_model():
    model = alrao.Alrao(mlp(), 4)
    optimizer = alrao.SGD(torch.compile(model, backend="eager"))
    assert optimizer.rates(model.head.weight).shape == (4, 1, 1)


def test_a_copy_of_a_compiled_model_is_another_one():
    model, x = alrao.Alrao(mlp(), 4), torch.randn(12, 4)
    model.compile(backend="eager")
    out = model(x)
    other, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert torch.allclose(other(x).exp(), torch.tensor(1 / 3))
    torch.testing.assert_close(again(x), out)
