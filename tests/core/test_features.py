"""Which entries of a layer's parameters share a learning rate: the table of layers and features."""

import warnings

import pytest
import torch
from torch import nn

import alrao


class Holder(nn.Module):
    """Some layers, and an output layer for the copies. Nothing is ever run through it."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(2, 2)


def optimizer_of(net):
    # In double precision two rates drawn apart are never equal by chance.
    return alrao.SGD(alrao.Alrao(net.double(), copies=3), lr=(1e-5, 10.0))


def rates_by_name(layer):
    optimizer = optimizer_of(Holder(layer))
    return {name: optimizer.rates(p).expand_as(p) for name, p in layer.named_parameters()}


def assert_features(layer, expected):
    """Equal rate if and only if same feature; ``expected`` numbers them for each parameter."""
    rates = rates_by_name(layer)
    assert rates.keys() == expected.keys()
    flat_rates = torch.cat([rates[name].flatten() for name in rates])
    flat_numbers = torch.cat(
        [torch.as_tensor(expected[name]).expand(rates[name].shape).flatten() for name in rates]
    )
    _, same_rate = flat_rates.unique(return_inverse=True)
    pairs = torch.stack([same_rate, flat_numbers])
    features = len(flat_numbers.unique())
    assert len(same_rate.unique()) == features, "as many different rates as features"
    assert pairs.unique(dim=1).shape[1] == features, "each feature has one rate"


def along(ndim, axis, size, start=0):
    shape = [1] * ndim
    shape[axis] = size
    return torch.arange(start, start + size).view(shape)


def rows(layer, ndim):
    return {"weight": along(ndim, 0, layer.weight.shape[0]), "bias": torch.arange(layer.weight.shape[0])}


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 4),
        nn.Conv1d(3, 4, 2),
        nn.Conv2d(3, 4, 2),
        nn.Conv3d(3, 4, 2),
        nn.Conv1d(4, 6, 2, groups=2),
        nn.Conv2d(4, 6, 2, groups=2),
        nn.Conv2d(4, 8, 3, groups=4),
        nn.Conv3d(4, 4, 3, groups=4),
        nn.Bilinear(2, 3, 4),
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm1d(4, affine=True),
        nn.InstanceNorm2d(4, affine=True),
        nn.InstanceNorm3d(4, affine=True),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
    ],
    ids=str,
)
def test_output_units_lie_along_the_first_axis(layer):
    assert_features(layer, rows(layer, layer.weight.ndim))


@pytest.mark.parametrize("layer", [nn.Linear(3, 4, bias=False), nn.Conv2d(3, 4, 2, bias=False)], ids=str)
def test_layers_without_bias(layer):
    assert_features(layer, {"weight": along(layer.weight.ndim, 0, 4)})


@pytest.mark.parametrize("layer", [nn.RMSNorm(4), nn.PReLU(4), nn.PReLU()], ids=str)
def test_layers_with_a_weight_alone(layer):
    assert_features(layer, {"weight": torch.arange(len(layer.weight))})


@pytest.mark.parametrize("layer", [nn.Embedding(7, 3), nn.EmbeddingBag(7, 3)], ids=str)
def test_embedding_components_are_columns(layer):
    assert_features(layer, {"weight": along(2, 1, 3)})


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolution(dims, groups):
    # weight[i, o] leads from input channel i to output channel o of the group that i belongs to.
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    layer = kind(4, 8, 2, groups=groups)
    of_group = 8 // groups
    numbers = torch.tensor([[i // (4 // groups) * of_group + o for o in range(of_group)] for i in range(4)])
    assert_features(layer, {"weight": numbers.view(4, of_group, *[1] * dims), "bias": torch.arange(8)})


def test_transposed_convolution_output_channels_by_use():
    # The same claim without an index formula: the entries of a feature are those that move its channel.
    layer = nn.ConvTranspose2d(4, 6, 2, groups=2)
    rates = rates_by_name(layer)
    out = layer(torch.randn(1, 4, 3, 3).double())
    for channel in range(6):
        moves, _ = torch.autograd.grad(out[0, channel].sum(), list(layer.parameters()), retain_graph=True)
        own = rates["weight"][moves != 0].unique()
        assert own.tolist() == [rates["bias"][channel]]


GATES = {nn.RNN: 1, nn.LSTM: 4, nn.GRU: 3, nn.RNNCell: 1, nn.LSTMCell: 4, nn.GRUCell: 3}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_cells_share_a_rate_over_the_gates(cell, bias):
    layer = cell(3, 5, bias=bias)
    units = torch.arange(5).repeat(GATES[cell])
    expected = {"weight_ih": units[:, None], "weight_hh": units[:, None]}
    assert_features(layer, expected | ({"bias_ih": units, "bias_hh": units} if bias else {}))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.RNN, {}),
        (nn.GRU, {"num_layers": 2}),
        (nn.GRU, {"bidirectional": True}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"bias": False, "num_layers": 2}),
        (nn.LSTM, {"proj_size": 2}),
        (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
    ],
)
def test_recurrent_layers_share_a_rate_over_the_gates(kind, options):
    layer = kind(3, 5, **options)
    expected, start = {}, 0
    for place in sorted({name.partition("_l")[2] for name, _ in layer.named_parameters()}):
        units = torch.arange(start, start + 5).repeat(GATES[kind])
        expected |= {f"weight_{kind_}_l{place}": units[:, None] for kind_ in ("ih", "hh")}
        if layer.bias:
            expected |= {f"bias_{kind_}_l{place}": units for kind_ in ("ih", "hh")}
        start += 5
        if layer.proj_size:  # the projection's outputs are units of their own
            expected[f"weight_hr_l{place}"] = along(2, 0, 2, start)
            start += 2
    assert_features(layer, expected)


@pytest.mark.parametrize("add_bias_kv", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_attention(separate, add_bias_kv):
    layer = nn.MultiheadAttention(
        4, 2, add_bias_kv=add_bias_kv, **({"kdim": 3, "vdim": 5} if separate else {})
    )
    q, k, v = torch.arange(12).view(3, 4)
    expected = {"out_proj.weight": along(2, 0, 4, 12), "out_proj.bias": torch.arange(12, 16)}
    expected["in_proj_bias"] = torch.arange(12)
    if separate:
        expected |= {f"{name}_proj_weight": n[:, None] for name, n in zip("qkv", (q, k, v), strict=True)}
    else:
        expected["in_proj_weight"] = along(2, 0, 12)
    if add_bias_kv:  # an extra key and value: they belong to the units of k and v
        expected |= {"bias_k": k.view(1, 1, 4), "bias_v": v.view(1, 1, 4)}
    assert_features(layer, expected)


class WithBareParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.basis = nn.Parameter(torch.zeros(3, 2))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.inner = nn.Identity()


def test_bare_parameters_go_by_the_first_axis_and_a_scalar_is_one_feature():
    layer = WithBareParameters()
    optimizer = optimizer_of(Holder(layer))
    assert optimizer.rates(layer.basis).shape == (3, 1)
    assert len(optimizer.rates(layer.basis).unique()) == 3
    assert optimizer.rates(layer.scale).shape == ()


def test_layers_do_not_share_features():
    layers = [nn.Linear(3, 4), nn.Linear(3, 4), nn.BatchNorm1d(4)]
    optimizer = optimizer_of(Holder(*layers))
    rates = torch.cat([optimizer.rates(layer.weight).flatten() for layer in layers])
    assert len(rates.unique()) == 12


def test_copies_have_the_even_grid():
    optimizer = optimizer_of(Holder())
    head = optimizer.model.head
    for p in (head.weight, head.bias):
        rates = optimizer.rates(p)
        assert rates.shape == (3,) + (1,) * (p.ndim - 1)
        torch.testing.assert_close(rates.flatten(), torch.tensor([1e-5, 1e-2, 10.0], dtype=torch.float64))


def test_tied_parameters_are_one_parameter_with_one_rate():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    after = nn.Linear(4, 4)
    optimizer = optimizer_of(Holder(first, second, after))
    assert sum(p is first.weight for group in optimizer.param_groups for p in group["params"]) == 1
    assert torch.equal(optimizer.rates(first.weight).flatten(), optimizer.rates(first.bias))
    # Nothing is shifted for the layers behind.
    assert torch.equal(optimizer.rates(after.weight).flatten(), optimizer.rates(after.bias))


def test_tied_across_layer_types_goes_by_the_first():
    words, decoder = nn.Embedding(6, 4), nn.Linear(4, 6)
    decoder.weight = words.weight
    optimizer = optimizer_of(Holder(words, decoder))
    assert optimizer.rates(words.weight).expand(6, 4).unique(dim=0).shape[0] == 1


def new_layer_type(*shape):
    class Novel(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(*shape))

    return Novel


def test_unknown_layers_warn_once_naming_the_type():
    novel = new_layer_type(3, 2)
    net = Holder(novel(), novel())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = optimizer_of(net)
    assert [str(warning.message).count("Novel") for warning in caught] == [1]
    assert "register_features" in str(caught[0].message)
    assert optimizer.rates(net.layers[0].scale).shape == (3, 1)


def test_unknown_layers_of_vectors_leave_nothing_to_guess():
    net = Holder(new_layer_type(3)(), nn.Linear(3, 3))  # a norm of someone's own, say
    assert optimizer_of(net).rates(net.layers[0].scale).shape == (3,)


def test_register_features_by_axis():
    novel = new_layer_type(3, 2)
    alrao.register_features(novel)(lambda layer: {"scale": 1})
    assert_features(novel(), {"scale": along(2, 1, 2)})


def test_register_features_by_tensor():
    novel = new_layer_type(4, 2)
    numbers = torch.tensor([[0], [1], [0], [1]])
    alrao.register_features(novel)(lambda layer: {"scale": numbers})
    assert_features(novel(), {"scale": numbers})


def test_parameters_that_a_rule_leaves_out_have_features_of_their_own():
    novel = new_layer_type(3, 2)
    alrao.register_features(novel)(lambda layer: {"scale": 1})
    layer = novel()
    layer.shift = nn.Parameter(torch.zeros(2))
    assert_features(layer, {"scale": along(2, 1, 2), "shift": torch.arange(2, 4)})


def test_subclasses_inherit_a_rule_and_the_last_registration_wins():
    novel = new_layer_type(3, 2)
    special = type("Special", (novel,), {})
    alrao.register_features(novel)(lambda layer: {"scale": 0})
    alrao.register_features(novel)(lambda layer: {"scale": 1})
    assert_features(special(), {"scale": along(2, 1, 2)})


@pytest.mark.parametrize("layer_type", [nn.Linear(2, 2), int, "Linear"], ids=str)
def test_register_features_takes_layer_types(layer_type):
    with pytest.raises(TypeError, match="layer types"):
        alrao.register_features(layer_type)


@pytest.mark.parametrize(
    "where",
    [torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.zeros(1, 3, 2, dtype=torch.int64), 2, -3],
    ids=["float", "does not broadcast", "too many axes", "no such axis", "no such axis from the end"],
)
def test_bad_rules_are_refused_naming_the_layer_type(where):
    novel = new_layer_type(3, 2)
    alrao.register_features(novel)(lambda layer: {"scale": where})
    with pytest.raises(ValueError, match="Novel"):
        optimizer_of(Holder(novel()))
