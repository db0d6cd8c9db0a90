"""Fingerprints of weights, whatever their layout; and narrow weights in the shards of one process."""

import itertools

import pytest
import torch
from support.small import mlp
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import alrao
from alrao.runtime.sharding import fingerprint, gathered


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


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
def test_narrow_shards_of_one_process_are_trained_as_without(tmp_path):
    def trained(way):
        torch.manual_seed(0)
        net = mlp().bfloat16()
        way(net)
        optimizer = alrao.Auto(net, steps=20)
        x = torch.randn(16, net[0].in_features).bfloat16()
        for _ in range(12):  # the search takes six
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        net.eval()
        return [gathered(p.detach()).clone() for p in net.parameters()]

    expected = trained(lambda net: net)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = trained(lambda net: fully_shard(net, mesh=init_device_mesh("cpu", (1,))))
    finally:
        dist.destroy_process_group()
    assert all(map(torch.equal, found, expected))
