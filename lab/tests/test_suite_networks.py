"""The networks and the task that are there for the suite of workloads."""

import pytest
import torch

import alrao
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
