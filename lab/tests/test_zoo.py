"""The workbench's networks: sizes to the unit, widths, shapes, and where dropout is."""

import importlib
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao_lab.errors import LabError, optional
from alrao_lab.resolve import resolve
from alrao_lab.settings import Settings
from alrao_lab.tasks.images import digits_cnn
from alrao_lab.zoo import vision
from alrao_lab.zoo.paper import RecurrentLM, googlenet, mobilenet_v2, vgg19
from alrao_lab.zoo.small import cnn, mlp

IMAGES = [vgg19, googlenet, mobilenet_v2]


def size(net):
    return sum(parameter.numel() for parameter in net.parameters())


def millions(number):
    return f"{number / 1e6:.3f}"


def check_learns(net, x, y):
    """One step of SGD with Alrao: every parameter has a finite gradient, and every matrix of weights moves.

    Biases and scales before a BatchNorm make no difference, so their gradients are rounding errors.
    """
    model = alrao.Alrao(net, 3)
    optimizer = alrao.SGD(model, lr=(1e-3, 1e-1))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    out = model(x)
    out = out[0].flatten(0, 1) if isinstance(out, tuple) else out
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.ndim < 2 or not parameter.equal(before[name]), name


# Parameter counts: the paper's table, plain and with Alrao.


@pytest.mark.parametrize(
    ("build", "copies", "plain", "with_alrao", "printed"),
    [
        (googlenet, 10, 6_166_250, 6_258_500, ("6.166", "6.258")),
        (vgg19, 10, 20_040_522, 20_086_692, ("20.041", "20.087")),
        (mobilenet_v2, 10, 2_296_922, 2_412_212, ("2.297", "2.412")),
        (lambda: RecurrentLM(50), 6, 171_650, 196_900, ("0.172", "0.197")),
        (lambda: RecurrentLM(9_999), 6, 2_171_399, 7_220_894, ("2.171", "7.221")),
    ],
    ids=["googlenet", "vgg19", "mobilenet_v2", "lstm-characters", "lstm-words"],
)
def test_parameters_of_the_paper(build, copies, plain, with_alrao, printed):
    with torch.device("meta"):
        net = build()
        assert size(net) == plain
        model = alrao.Alrao(net, copies)
    assert size(model) == with_alrao
    assert (millions(plain), millions(with_alrao)) == printed


@pytest.mark.parametrize(
    ("name", "plain"),
    [("alexnet", 61_100_840), ("resnet50", 25_557_032), ("densenet121", 7_978_856)],
)
def test_parameters_of_torchvision(name, plain):
    with torch.device("meta"):
        net = vision.classifier(name, 1000)
        assert size(net) == plain
        outputs = size(list(net.modules())[-1])  # each has its output layer last
        assert size(alrao.Alrao(net)) == plain + 9 * outputs


@pytest.mark.parametrize(
    ("build", "plain", "features"),
    [
        (googlenet, 55_261_354, 3 * 1024),
        (vgg19, 180_224_458, 3 * 512),
        (mobilenet_v2, 19_994_362, 3 * 1280),
        (lambda width: vision.classifier("resnet50", 1000, width=width), 217_342_120, 3 * 2048),
    ],
    ids=["googlenet", "vgg19", "mobilenet_v2", "resnet50"],
)
def test_three_times_the_width(build, plain, features):
    with torch.device("meta"):
        net, narrow = build(width=3), build(width=1)
        assert size(net) == plain
        for layer, other in zip(net.modules(), narrow.modules(), strict=True):
            if isinstance(layer, nn.Conv2d):
                assert layer.out_channels == 3 * other.out_channels
                assert layer.in_channels == (3 if other.in_channels == 3 else 3 * other.in_channels)
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.num_features == 3 * other.num_features
        model = alrao.Alrao(net, 10)
        assert len(model(torch.empty(2, 3, 32, 32))) == 2
    assert model.head.weight.shape[2] == features


@pytest.mark.parametrize("name", sorted(vision.RESNETS))
def test_a_resnet_widened_by_1_is_torchvisions(name):
    with torch.device("meta"):
        net, plain = vision.classifier(name, 10), vision.classifier(name, 10)
        wide = vision._widened(net, 1.0)
    assert str(wide) == str(plain)


# Shapes, and a step of each.


@pytest.mark.parametrize("build", IMAGES)
@pytest.mark.parametrize("width", [0.01, 0.25, 0.3])
def test_networks_for_32x32(build, width):
    net = build(classes=7, width=width)
    x = torch.randn(2, 3, 32, 32)
    assert net(x).shape == (2, 7)
    assert net.eval()(x[:1]).shape == (1, 7)


@pytest.mark.parametrize("build", IMAGES)
def test_networks_for_32x32_learn(build):
    check_learns(build(classes=7, width=0.25), torch.randn(4, 3, 32, 32), torch.randint(7, (4,)))


@pytest.mark.parametrize("build", IMAGES)
def test_images_shrink_to_a_few_pixels(build):
    """The last feature maps before the mean: 1, 8 and 4 pixels a side, as is usual for these variants."""
    with torch.device("meta"):
        body = nn.Sequential(*list(build(width=0.25))[:-3])
        out = body(torch.empty(1, 3, 32, 32))
    assert out.shape[-2:] == {vgg19: (1, 1), googlenet: (8, 8), mobilenet_v2: (4, 4)}[build]


def test_mlp():
    net = mlp(12, 3, hidden=(5, 4))
    assert size(net) == 13 * 5 + 6 * 4 + 5 * 3
    check_learns(net, torch.randn(6, 3, 2, 2), torch.randint(3, (6,)))
    assert size(mlp(64, 10)) == 65 * 128 + 129 * 128 + 129 * 10
    assert size(mlp(64, 10, hidden=())) == 650


@pytest.mark.parametrize("channels", [1, 3])
def test_small_cnn(channels):
    net = cnn(5, channels=channels)
    assert [layer.out_channels for layer in net if isinstance(layer, nn.Conv2d)] == [16, 32, 64, 64]
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in net) == 3
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in net) == 4
    check_learns(net, torch.randn(4, channels, 32, 32), torch.randint(5, (4,)))


def test_small_cnns_have_widths():
    for net in (cnn(5, width=2), digits_cnn(5, width=2)):
        assert next(iter(net)).out_channels == 32
        assert net[-1].in_features == 128


def test_digits_cnn():
    check_learns(digits_cnn(10), torch.randn(4, 1, 8, 8), torch.randint(10, (4,)))


@pytest.mark.parametrize("width", [0, -1.0, float("nan"), float("inf")])
def test_a_width_is_positive(width):
    with pytest.raises(LabError, match=r"--width must be (positive and at most 1000|a finite number), got"):
        resolve(Settings(task="cifar10", width=width))


# The language model.


def test_recurrent_shapes_and_a_step():
    net = RecurrentLM(11, width=0.08)
    tokens = torch.randint(11, (4, 9))
    logits, (h, c) = net(tokens)
    assert logits.shape == (4, 9, 11)
    assert h.shape == c.shape == (2, 4, 8)
    check_learns(net, tokens, torch.randint(11, (36,)))


def test_recurrent_carries_its_state():
    net = RecurrentLM(11, width=0.08).eval()
    tokens = torch.randint(11, (4, 10))
    whole, end = net(tokens)
    first, state = net(tokens[:, :5])
    second, last = net(tokens[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last, end)
    assert not torch.allclose(net(tokens[:, 5:])[0], second)


def test_recurrent_state_with_alrao():
    model = alrao.Alrao(RecurrentLM(11, width=0.08), 3).eval()
    tokens = torch.randint(11, (4, 10))
    _, state = model(tokens[:, :5])
    torch.testing.assert_close(model(tokens[:, 5:], state)[0], model(tokens)[0][:, 5:])


def places(net):
    """What of a net in training mode is random: the embedding, the upper LSTM layer's state, the logits."""
    seen = []
    handle = net.lstm.register_forward_hook(lambda module, args, out: seen.append((args[0], out[1][0][-1])))
    tokens = torch.randint(11, (4, 9))
    outs = [net(tokens)[0] for _ in range(2)]
    handle.remove()
    (embedded, upper), (embedded_again, upper_again) = seen
    return [
        not embedded.equal(embedded_again),
        not torch.allclose(upper, upper_again),
        not torch.allclose(*outs),
    ]


def test_dropout_is_before_the_decoder():
    assert places(RecurrentLM(11)) == [False, False, True]
    assert places(RecurrentLM(11, dropout=0.0)) == [False, False, False]
    assert places(RecurrentLM(11).eval()) == [False, False, False]


def test_dropout_everywhere():
    net = RecurrentLM(11, dropout_everywhere=True)
    assert places(net) == [True, True, True]
    assert net.lstm.dropout == net.embedding_dropout.p == net.dropout.p == 0.2
    net.embedding_dropout.p = 0.0
    assert places(net) == [False, True, True]  # between the layers
    assert places(net.eval()) == [False, False, False]


def test_recurrent_width():
    net = RecurrentLM(50, width=3)
    assert size(net) == 1_474_850
    assert RecurrentLM(50, width=0.001).lstm.hidden_size == 1


# torchvision's.


def test_names_of_classifiers():
    names = vision.classifiers()
    assert {"alexnet", "resnet50", "densenet121", "vgg16", "vit_b_16", "googlenet"} <= set(names)
    assert not [name for name in names if name.startswith(("squeezenet", "quantized", "raft", "fcn", "r3d"))]


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "inception_v3", "mobilenet_v3_small"])
def test_classifiers_return_one_tensor(name):
    with torch.device("meta"):
        model = alrao.Alrao(vision.classifier(name, 7), 3)
        log_p = model(torch.empty(2, 3, 224, 224))
    assert log_p.shape == (2, 7)


@pytest.mark.slow
def test_every_classifier_can_be_copied():
    for name in vision.classifiers():
        # The RegNets compute their sizes with tensors, which needs a real device.
        regnet = name.startswith("regnet")
        if regnet and not name.endswith("mf"):
            continue
        with torch.device("cpu" if regnet else "meta"):
            model = alrao.Alrao(vision.classifier(name, 7), 3)
            log_p = model(torch.zeros(2, 3, 224, 224))
        assert log_p.shape == (2, 7), name
        assert model.head.weight.shape[1] == 7, name


def test_a_narrow_resnet_learns():
    net = vision.classifier("resnet18", 7, width=0.25)
    assert net.conv1.weight.shape == (16, 3, 7, 7)
    assert net.fc.weight.shape == (7, 128)
    fan_out = 16 * 7 * 7
    assert net.conv1.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
    check_learns(net, torch.randn(4, 3, 64, 64), torch.randint(7, (4,)))


@pytest.mark.parametrize(
    ("name", "hint"), [("resnet05", "did you mean resnet50"), ("squeezenet1_1", "unknown model")]
)
def test_unknown_models(name, hint):
    with pytest.raises(LabError, match=hint):
        resolve(Settings(task="imagefolder", model=name))


def test_only_resnets_scale():
    with pytest.raises(LabError, match=r"only the ResNets scale, got width=3 for 'alexnet'"):
        vision.classifier("alexnet", 10, width=3)


def test_torchvision_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "alrao_lab.zoo.vision", raising=False)
    with pytest.raises(LabError, match=r"torchvision, which is not installed: pip install alrao-lab"):
        importlib.import_module("alrao_lab.zoo.vision")


def test_a_package_that_is_installed_and_does_not_load_is_not_called_missing(monkeypatch, tmp_path):
    """torchvision without its operators, or a package that lacks one of its own: the cause is named."""
    monkeypatch.syspath_prepend(tmp_path)
    bodies = {
        "operators": "raise RuntimeError('operator torchvision::nms does not exist')",
        "inside": "import a_package_that_nobody_has",
        "half": "from math import no_such_name",
    }
    for name, body in bodies.items():
        (tmp_path / f"broken_{name}.py").write_text(body)
        message = rf"this task needs the package broken_{name}, which is installed and cannot be imported \("
        with pytest.raises(LabError, match=message) as caught:
            optional(f"broken_{name}", "", "this task")
        assert "pip install" not in str(caught.value)
    with pytest.raises(LabError, match=r"not installed: pip install alrao-lab"):
        optional("a_package_that_nobody_has.part", "", "this task", "its-other-name")


@pytest.mark.slow
def test_the_other_networks_do_not_import_torchvision():
    code = "import sys, alrao_lab.zoo.paper, alrao_lab.zoo.small; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0


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


@pytest.mark.slow
@pytest.mark.parametrize("build", [vgg19, googlenet, mobilenet_v2])
@pytest.mark.parametrize("width", [1, 3])
def test_a_step_at_full_size_on_cifar(build, width):
    check_step(build(width=width), torch.randn(4, 3, 32, 32), torch.randint(10, (4,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"), [("alexnet", 1), ("densenet121", 1), ("resnet50", 1), ("resnet50", 3)]
)
def test_a_step_at_full_size_on_imagenet(name, width):
    check_step(
        vision.classifier(name, 1000, width=width), torch.randn(2, 3, 224, 224), torch.randint(1000, (2,))
    )


@pytest.mark.slow
@pytest.mark.parametrize("symbols", [50, 9_999])
def test_a_step_at_full_size_on_penn_treebank(symbols):
    text = torch.randint(symbols, (20, 71))
    check_step(RecurrentLM(symbols), text[:, :-1], text[:, 1:], copies=6, lr=(1e-3, 100.0))
