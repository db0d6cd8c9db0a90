"""A compiled model trains like an eager one, in one graph that is compiled once."""

import copy
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

# torch's compiler makes an instance of the class itself while it traces.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
)

CRITERIA = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(likelihood):
    x, y = torch.randn(12, 4), torch.randn(12, 3)
    return x, {"categorical": y.argmax(1), "gaussian": y, "bernoulli": (y > 0).float()}[likelihood]


def compare(likelihood, backend, what):
    """Five steps, compiled and eager; a second compilation is an error."""
    torch._dynamo.reset()
    model, criterion = alrao.Alrao(mlp(), 4, likelihood=likelihood), CRITERIA[likelihood]
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
            x, y = batch(likelihood)
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


@pytest.mark.parametrize("what", ["model", "loss"])
@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_compiled_equals_eager_without_recompilation(likelihood, what):
    compare(likelihood, "aot_eager", what)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_inductor_equals_eager_without_recompilation(likelihood):
    compare(likelihood, "inductor", "model")


def test_an_optimizer_takes_a_compiled_model():
    model = alrao.Alrao(mlp(), 4)
    optimizer = alrao.SGD(torch.compile(model, backend="eager"))
    assert optimizer.rates(model.head.weight).shape == (4, 1, 1)
