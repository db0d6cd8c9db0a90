"""The features of bare parameters, and of the layers that transformers, timm and torchvision ship."""

import warnings

import pytest
import torch
from support.vision import torchvision
from torch import nn

import alrao
from alrao.features import guess_axis

SHAPES = {
    # torchvision and timm: vision transformers
    ("class_token", (1, 1, 8)): 2,
    ("cls_token", (1, 1, 8)): 2,
    ("cls_token", (1, 8)): 1,
    ("pos_embedding", (1, 5, 8)): 2,
    ("pos_embed", (1, 8, 5)): 2,
    ("pos_embed", (1, 8, 4, 4)): 1,
    ("pos_embed", (1, 4, 4, 8)): 3,
    ("pos_embed", (1, 3, 4, 8)): 3,
    ("positional_embedding", (5, 8)): 1,
    ("relative_position_bias_table", (49, 3)): 1,
    ("height_rel", (7, 4)): 1,
    ("reg_token", (1, 4, 8)): 2,
    ("latent", (1, 1, 8)): 2,
    ("query_tokens", (1, 4, 8)): 2,
    # scales
    ("layer_scale", (8, 1, 1)): 0,
    ("gamma", (1, 8, 1, 1)): 1,
    ("gamma", (1, 1, 1, 8)): 3,
    ("temperature", (3, 1, 1)): 0,
    ("alpha", (1, 1, 8)): 2,
    ("attention_biases", (3, 49)): 0,
    # everything else
    ("weight", (5, 8)): 0,
    ("embedding_weight", (5, 8)): 0,
    ("key_proj", (5, 8)): 0,
    ("scale", (1, 1)): 0,
    ("scale", ()): 0,
}


@pytest.mark.parametrize(("name", "shape"), SHAPES, ids=str)
def test_the_axis_of_a_bare_parameter(name, shape):
    assert guess_axis(name, torch.empty(shape)) == SHAPES[name, shape]


def optimizer_of(net):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return alrao.SGD(alrao.Alrao(net.double(), copies=2), lr=(1e-5, 10.0))


def with_output(layer):
    return nn.ModuleDict({"layer": layer, "out": nn.Linear(2, 2)})


def has_the_rates_of_its_outputs(optimizer, weight, outputs):
    """Whether entries have one rate if and only if they move the same output unit.

    Args:
        optimizer: the optimizer that drew the rates.
        weight: a parameter.
        outputs: a vector, computed from it; each entry of the weight moves one of them.
    """
    rates = optimizer.rates(weight).expand_as(weight)
    found = []
    for output in outputs:
        (moves,) = torch.autograd.grad(output, weight, retain_graph=True)
        found.append(rates[moves != 0].unique().tolist())
    single = [own[0] for own in found if len(own) == 1]
    return len(set(single)) == len(found) == len(rates.unique())


def test_vision_transformer_of_torchvision():
    net = torchvision.models.VisionTransformer(
        image_size=8, patch_size=4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8, num_classes=3
    )
    optimizer = optimizer_of(net)
    assert optimizer.rates(net.class_token).shape == (1, 1, 8)
    assert optimizer.rates(net.encoder.pos_embedding).shape == (1, 1, 8)
    assert len(optimizer.rates(net.class_token).unique()) == 8


def test_conv1d_of_transformers_has_a_rate_for_each_output():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    layer = conv1d(4, 3)
    optimizer = optimizer_of(with_output(layer))
    assert has_the_rates_of_its_outputs(optimizer, layer.weight, layer(torch.rand(3).double() + 1))
    assert torch.equal(optimizer.rates(layer.weight).flatten(), optimizer.rates(layer.bias))


@pytest.mark.parametrize("kind", ["Mixtral", "GptOss", "Llama4Text"])
def test_experts_of_transformers_have_a_rate_for_each_output(kind):
    transformers = pytest.importorskip("transformers")
    name = {"Mixtral": "mixtral", "GptOss": "gpt_oss", "Llama4Text": "llama4"}[kind]
    module = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=["x"])
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=4, intermediate_size=3, num_local_experts=2, num_attention_heads=2, num_key_value_heads=2
    )
    layer = getattr(module, f"{kind}Experts")(config)
    optimizer = optimizer_of(with_output(layer))
    transposed = kind != "Mixtral"
    for weight, inputs in ((layer.gate_up_proj, 4), (layer.down_proj, 3)):
        assert weight.shape[1 if transposed else 2] == inputs
        z = torch.rand(2, 1, inputs).double() + 1
        outputs = (z @ (weight if transposed else weight.mT)).flatten()
        assert has_the_rates_of_its_outputs(optimizer, weight, outputs)
    if kind == "GptOss":
        rates = optimizer.rates(layer.gate_up_proj).flatten()
        assert torch.equal(rates, optimizer.rates(layer.gate_up_proj_bias).flatten())
