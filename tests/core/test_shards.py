"""Fingerprints of weights: equal for equal bits, whatever their layout, and not for others."""

import itertools

import pytest
import torch
from support.small import mlp

import alrao
from alrao.runtime.sharding import fingerprint


def test_heads_of_other_seeds_have_other_fingerprints():
    """Their copies are permutations of the same output layer."""
    marks = []
    for seed in range(3):
        torch.manual_seed(0)
        net = mlp()
        torch.manual_seed(seed)
        marks.append([fingerprint(p) for p in alrao.Alrao(net).head.parameters()])
    for of_parameter in zip(*marks, strict=True):
        assert len(set(of_parameter)) == len(marks)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.complex64])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 2)])
@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5, 6), (0, 0, 0, 1, 1, 1), (2, 2, 3, 3, 2, 3)])
def test_every_order_has_its_own_fingerprint(values, shape, dtype):
    orders = sorted(set(itertools.permutations(values)))
    marks = {fingerprint(torch.tensor(order).to(dtype).view(shape)) for order in orders}
    assert len(marks) == len(orders)


def test_a_fingerprint_does_not_depend_on_the_layout():
    x = torch.randn(5, 3, 4, 2)
    assert fingerprint(x.contiguous(memory_format=torch.channels_last)) == fingerprint(x)
    assert fingerprint(x.mT.contiguous().mT) == fingerprint(x)
    assert fingerprint(x.mT) != fingerprint(x)
    large = torch.randn(3000, 2000)
    assert fingerprint(large.T.contiguous().T) == fingerprint(large)
    exchanged = large.clone()
    exchanged[2999, 1998:] = large[2999, 1998:].flip(0)
    assert fingerprint(exchanged) != fingerprint(large)


@pytest.mark.parametrize("x", [torch.ones(()), torch.ones(0, 3), torch.ones(3, 0), torch.ones(1)])
def test_tensors_of_few_entries_have_one(x):
    assert fingerprint(x) == fingerprint(x.clone())
