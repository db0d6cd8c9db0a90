"""The networks and the task that are there for the suite of workloads."""

import pytest
import torch
from torch import nn

import alrao
from alrao_lab.methods import learner
from alrao_lab.resolve import resolve
from alrao_lab.settings import Settings
from alrao_lab.tasks.task import evaluate
from alrao_lab.team import Team
from alrao_lab.zoo import small

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("width", [0.25, 1.0, 2.0])
@pytest.mark.parametrize(
    "build", [small.residual, lambda classes, width: small.VisionTransformer(classes, width=width)]
)
def test_images_are_classified_one_by_one(build, width):
    net = build(7, width).eval()
    images = torch.randn(5, 3, 32, 32)
    together = net(images)
    assert together.shape == (5, 7)
    for image, expected in zip(images, together, strict=True):
        torch.testing.assert_close(net(image[None])[0], expected, rtol=1e-4, atol=1e-5)


def test_a_vision_transformer_sees_where_a_patch_is():
    net = small.VisionTransformer(4)
    image = torch.randn(1, 3, 32, 32)
    assert not torch.allclose(net(image), net(image.flip(-1)), atol=1e-4)


def test_a_language_model_does_not_see_the_future():
    net = small.TransformerLM(11).train()
    tokens = torch.randint(11, (3, 20))
    before, state = net(tokens)
    assert before.shape == (3, 20, 11)
    assert state == ()
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 11
    after, _ = net(changed, state)
    torch.testing.assert_close(after[:, :12], before[:, :12])
    assert (after[:, 12:] - before[:, 12:]).abs().amin(-1).max() > 1e-4


def test_the_layers_of_a_transformer_start_apart():
    encoder = small.TransformerLM(5, layers=3).encoder
    first, second, _ = (layer.self_attn.in_proj_weight for layer in encoder.layers)
    assert (first - second).abs().max() > 0.01


def test_every_new_network_has_copies_of_its_output_layer():
    for net, inputs in [
        (small.residual(3), torch.randn(2, 3, 32, 32)),
        (small.VisionTransformer(3), torch.randn(2, 3, 32, 32)),
        (small.TransformerLM(3), torch.randint(3, (2, 9))),
    ]:
        outputs = alrao.Alrao(net, copies=4)(inputs)
        log_probs = outputs[0] if isinstance(outputs, tuple) else outputs
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:-1]))


def test_the_autoencoder_is_measured_by_its_pixels():
    task, settings = resolve(Settings(task="autoencoder", method="sgd@0.1"))
    problem = task.load(settings, CPU)
    part = problem.parts["test"]
    inputs, targets = part.inputs, part.targets
    assert inputs is targets or torch.equal(inputs, targets)
    net = problem.network().eval()
    with torch.no_grad():
        error = (net(inputs) - targets).numpy()
    found = evaluate(problem, net, "test", Team(CPU))
    assert found["loss"] == pytest.approx((error**2).mean(), rel=1e-5)
    assert found["r2"] == pytest.approx(1 - (error**2).mean() / targets.numpy().var(), rel=1e-5)


@pytest.mark.parametrize("method", ["alrao", "alrao-adam", "sgd@0.01", "adam"])
def test_the_autoencoder_learns(method):
    task, settings = resolve(Settings(task="autoencoder", method=method))
    problem = task.load(settings, CPU)
    trained = learner(problem.network(), settings, problem)
    before = evaluate(problem, trained.model.eval(), "valid", Team(CPU))["loss"]
    trained.train()
    for epoch in (1, 2, 3):
        for inputs, targets in problem.batches(epoch):
            trained.step(problem.loss(trained.model(inputs), targets))
    after = evaluate(problem, trained.model.eval(), "valid", Team(CPU))["loss"]
    assert after < 0.8 * before


def test_sigmoid_units_are_sigmoid():
    task, settings = resolve(Settings(task="digits", model="sigmoid"))
    net = task.load(settings, CPU).network()
    assert [type(m) for m in net if not isinstance(m, nn.Linear | nn.Flatten)] == [nn.Sigmoid, nn.Sigmoid]
