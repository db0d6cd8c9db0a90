"""How many operations a step dispatches: each is a launch on a device. Its host reads no number."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import alrao

READS = {"aten._local_scalar_dense.default", "aten.item.default", "aten.equal.default"}
FREE = {"aten.detach.default", "aten.promote_types.default", "aten.empty_like.default"}  # no launches


class Operations(TorchDispatchMode):
    """Counts operations, without views."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returned = [each.alias_info for each in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returned)
        if not is_view and str(function) not in FREE and function.namespace == "aten":
            self.found[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Block(nn.Module):
    """The tensors of a block of GPT-2, whose hidden matrices have four shapes."""

    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.ModuleList([nn.Linear(width, 3 * width), nn.Linear(width, width)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        queries, keys, values = self.attention[0](self.norms[0](x)).chunk(3, -1)
        x = x + self.attention[1](queries.sigmoid() * keys + values)
        return x + self.mlp(self.norms[1](x))


def network(tensors):
    if tensors == 148:
        blocks = (Block(16) for _ in range(12))
        return nn.Sequential(
            nn.Linear(16, 16, bias=False), *blocks, nn.LayerNorm(16), nn.Linear(16, 5, False)
        )
    layers = [nn.Linear(16, 8)]
    for _ in range(tensors // 2 - 2):
        layers += [nn.ReLU(), nn.Linear(8, 8)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 5))


def auto(model, **settings):
    return alrao.Auto(model, steps=20, **settings)


def built(make, tensors, *, wrapped=True, **settings):
    torch.manual_seed(0)
    model = alrao.Alrao(network(tensors)) if wrapped else network(tensors)
    assert len(list(model.parameters())) == tensors
    return model, make(model, **settings)


def counted(model, optimizer, steps, device="cpu", dtype=torch.float32):
    """Return the operations of each of some steps."""
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        x, target = torch.randn(8, 16, device=device, dtype=dtype), torch.randint(0, 5, (8,), device=device)
        F.cross_entropy(model(x), target).backward()
        with Operations() as operations:
            optimizer.step()
        found.append(operations.found)
    return found


def searched(tensors, *, wrapped=True, **settings):
    model, optimizer = built(auto, tensors, wrapped=wrapped, **settings)
    found = counted(model, optimizer, 8)
    assert optimizer.search.over
    return model, optimizer, found


@pytest.mark.parametrize("tensors", [18, 148])
@pytest.mark.parametrize(
    ("make", "most"), [(alrao.SGD, 40), (alrao.Adam, 65), (alrao.AdamW, 72)], ids=["SGD", "Adam", "AdamW"]
)
def test_a_capturable_step_takes_as_many_operations_for_many_tensors_as_for_few(make, most, tensors):
    model, optimizer = built(make, tensors, capturable=True)
    for found in counted(model, optimizer, 3)[1:]:
        assert found.total() <= most, found
        assert not READS & found.keys()


@pytest.mark.parametrize("tensors", [18, 148])
@pytest.mark.parametrize(("wrapped", "most"), [(True, 76), (False, 57)], ids=["copies", "plain"])
def test_autos_capturable_step_after_the_search_is_short_and_reads_nothing(wrapped, most, tensors):
    """All matrices move at each of these steps."""
    model, optimizer, _ = searched(tensors, wrapped=wrapped, capturable=True)
    for found in counted(model, optimizer, 8)[1:]:
        assert found.total() <= most, found
        assert not READS & found.keys()


@pytest.mark.parametrize("tensors", [18, 148])
@pytest.mark.parametrize(("wrapped", "most"), [(True, 60), (False, 41)], ids=["copies", "plain"])
def test_autos_step_on_another_device_after_the_search_is_short_and_reads_nothing(wrapped, most, tensors):
    _, before, _ = searched(tensors, wrapped=wrapped)
    model = (alrao.Alrao(network(tensors)) if wrapped else network(tensors)).to("meta")
    optimizer = auto(model)
    optimizer.load_state_dict(before.state_dict())
    found = counted(model, optimizer, 12, "meta")[1:]
    taken = [each.total() for each in found]
    assert max(taken) <= most, "also where matrices move"
    shapes = {18: 2, 148: 3}[tensors]
    assert sum(each["aten.baddbmm.default"] > 0 for each in found[:5]) == shapes, "each shape at its turn"
    for each in found:
        assert not READS & each.keys()


@pytest.mark.parametrize("tensors", [18, 148])
@pytest.mark.parametrize(("wrapped", "most"), [(True, 90), (False, 70)], ids=["copies", "plain"])
def test_weights_of_a_narrow_type_take_no_more_operations_each(wrapped, most, tensors):
    torch.manual_seed(0)
    net = network(tensors).bfloat16()
    model = alrao.Alrao(net) if wrapped else net
    optimizer = auto(model, capturable=True)
    counted(model, optimizer, 8, dtype=torch.bfloat16)
    assert optimizer.search.over
    for found in counted(model, optimizer, 4, dtype=torch.bfloat16)[1:]:
        assert found.total() <= most, found
        assert not READS & found.keys()


@pytest.mark.parametrize("wrapped", [True, False], ids=["copies", "plain"])
@pytest.mark.parametrize("capturable", [True, False])
def test_a_step_of_autos_search_is_short_also_where_it_moves_the_interval(wrapped, capturable):
    _, _, found = searched(18, wrapped=wrapped, capturable=capturable)
    assert max(each.total() for each in found) <= 250, [each.total() for each in found]


def test_layers_with_running_statistics_cost_no_more_each():
    def operations(layers):
        hidden = [module for _ in range(layers) for module in (nn.Linear(8, 8), nn.BatchNorm1d(8))]
        model = alrao.Alrao(nn.Sequential(nn.Linear(16, 8), *hidden, nn.Linear(8, 5)))
        return counted(model, auto(model, capturable=True), 30)[-1].total()

    assert operations(12) == operations(3)
