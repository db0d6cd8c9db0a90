"""One step on every network of the paper at its full size."""

import pytest
import torch
import torch.nn.functional as F

import alrao
from alrao.lab.zoo import RecurrentLM, googlenet, mobilenet_v2, vgg19
from alrao.lab.zoo.vision import classifier

pytestmark = pytest.mark.slow


def check_step(net, x, y, copies=10, lr=(1e-5, 10.0)):
    model = alrao.Alrao(net, copies)
    optimizer = alrao.SGD(model, lr=lr)
    # What is compared is a sum of each parameter: copies of 200 million numbers would not fit everywhere.
    before = {name: parameter.detach().double().sum().item() for name, parameter in model.named_parameters()}
    out = model(x)
    out = out[0].flatten(0, 1) if isinstance(out, tuple) else out
    loss = F.cross_entropy(out, y.flatten())
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    after = {name: parameter.detach().double().sum().item() for name, parameter in model.named_parameters()}
    assert torch.tensor(list(after.values())).isfinite().all()
    moved = [name for name in after if after[name] != before[name]]
    assert f"{model.output_name}.weight" in moved
    assert len(moved) > 0.9 * len(after)


@pytest.mark.parametrize("build", [vgg19, googlenet, mobilenet_v2])
@pytest.mark.parametrize("width", [1, 3])
def test_cifar(build, width):
    check_step(build(width=width), torch.randn(4, 3, 32, 32), torch.randint(10, (4,)))


@pytest.mark.parametrize(
    ("name", "width"), [("alexnet", 1), ("densenet121", 1), ("resnet50", 1), ("resnet50", 3)]
)
def test_imagenet(name, width):
    check_step(classifier(name, 1000, width=width), torch.randn(2, 3, 224, 224), torch.randint(1000, (2,)))


@pytest.mark.parametrize("symbols", [50, 9_999])
def test_penn_treebank(symbols):
    text = torch.randint(symbols, (20, 71))
    check_step(RecurrentLM(symbols), text[:, :-1], text[:, 1:], copies=6, lr=(1e-3, 100.0))
