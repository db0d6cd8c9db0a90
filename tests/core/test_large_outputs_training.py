"""Large outputs in training loops: failed copies, narrow types, checkpointing, DDP, compile, memory."""

import gc

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.large import (
    CLASSES,
    INPUTS,
    LOSSES,
    ROWS,
    TARGET,
    assert_equal_to_the_present_head,
    batch,
    converted,
    count_as_large,
)
from support.needs import needs_compile
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import alrao
from alrao.heads import vocabulary
from alrao.tensors import LazyLogProbs


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    count_as_large(monkeypatch)


# Failed copies and features.

FAILURES = {
    "nan_weight": lambda model, x: model.head.weight[1].fill_(torch.nan),
    "one_nan": lambda model, x: model.head.weight[1, 2, 3].fill_(torch.nan),
    "inf_bias": lambda model, x: model.head.bias[2].fill_(torch.inf),
    "far_behind": lambda model, x: model.head.weight[0].mul_(1e4),
    "absurd": lambda model, x: model.head.weight[0].mul_(1e300),
    "all": lambda model, x: model.head.weight.fill_(torch.nan),
    "nan_input": lambda model, x: x[3].fill_(torch.nan),
}


@pytest.mark.parametrize("loss", ["mean", "none", "smoothing"])
@pytest.mark.parametrize("failure", FAILURES)
def test_failed_copies_have_no_part(failure, loss, monkeypatch):
    model, x = converted(), batch()
    with torch.no_grad():
        FAILURES[failure](model, x)
    assert_equal_to_the_present_head(model, x, LOSSES[loss], monkeypatch)
    loss = LOSSES[loss](model(x))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.head.parameters())


# Training loops.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_narrow_models_train_to_rounding(dtype, monkeypatch):
    def loss_of(out):
        assert out.dtype is torch.float32
        return F.cross_entropy(out, TARGET)

    model, x = converted(dtype=torch.float32), batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        assert_equal_to_the_present_head(model, x, loss_of, monkeypatch, rtol=0.05, atol=0.01)
    narrow = converted(dtype=dtype)
    assert_equal_to_the_present_head(narrow, x.to(dtype), loss_of, monkeypatch, rtol=0.05, atol=0.01)


def images(outputs=CLASSES):
    return nn.Sequential(nn.Conv2d(INPUTS, 6, 3), nn.ReLU(), nn.Conv2d(6, outputs, 1))


def test_a_convolution_as_the_output_layer(monkeypatch):
    x = torch.randn(2, INPUTS, 6, 5, dtype=torch.float64)
    target = torch.randint(CLASSES, (2, 4, 3))
    model = converted(net=images())
    assert_equal_to_the_present_head(model, x, lambda out: F.cross_entropy(out, target), monkeypatch)
    torch.testing.assert_close(model(x).argmax(1), model(x).detach().argmax(1))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    plain, saving = converted(), converted()
    x = batch().requires_grad_()
    F.cross_entropy(plain(x), TARGET).backward()
    F.cross_entropy(checkpoint(saving, x, use_reentrant=reentrant), TARGET).backward()
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def trained(steps=8, make=alrao.SGD, wrap=lambda model: model):
    model = converted()
    torch.manual_seed(3)
    optimizer = make(model)
    wrapped = wrap(model)
    for step in range(steps):
        x = torch.randn(ROWS, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), TARGET).backward()
        optimizer.step()
    return [*(p.detach() for p in model.parameters()), model.posterior]


@pytest.mark.parametrize("make", [alrao.SGD, alrao.Adam, alrao.Auto])
def test_a_training_with_chunks_is_one_without(make, monkeypatch):
    in_chunks = trained(make=make)
    monkeypatch.setattr(vocabulary, "CHUNK", 10**6)
    in_one = trained(make=make)
    monkeypatch.setattr(vocabulary, "LARGE", 10**9)
    at_once = trained(make=make)
    for a, b, c in zip(in_chunks, in_one, at_once, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(a, c, rtol=1e-8, atol=1e-10)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_ddp(options, tmp_path):
    expected = trained()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = trained(wrap=lambda model: DistributedDataParallel(model, **options))
    finally:
        dist.destroy_process_group()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_the_evidence_counts_the_rows():
    for name, rows in {"mean": ROWS, "none": ROWS - 1, "ignore": (TARGET != 3).sum(), "soft": ROWS}.items():
        model = converted()
        LOSSES[name](model(batch())).backward()
        assert model.head.evidence.grad[-1] == rows


@pytest.mark.slow
@needs_compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_models_and_losses():
    expected = trained()
    loss_of = torch.compile(lambda out: F.cross_entropy(out, TARGET), backend="aot_eager")
    model = converted()
    loss = loss_of(model(batch()))
    torch.testing.assert_close(loss, F.cross_entropy(model(batch()), TARGET))
    for a, b in zip(trained(wrap=lambda m: torch.compile(m, backend="aot_eager")), expected, strict=True):
        torch.testing.assert_close(a, b)


# Memory.


class Live(TorchDispatchMode):
    """The bytes of the tensors that operations return: the largest, and the most at any time."""

    largest = most = now = 0

    def __init__(self):
        super().__init__()
        self.known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        old = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if is_plain(leaf)}
        for leaf in tree_leaves(result):
            if is_plain(leaf) and (storage := leaf.untyped_storage())._cdata not in old:
                self.largest = max(self.largest, storage.nbytes())
                self.known[storage._cdata] = (
                    torch.multiprocessing.reductions.StorageWeakRef(storage),
                    storage.nbytes(),
                )
        alive = {k: (ref, size) for k, (ref, size) in self.known.items() if not ref.expired()}
        self.known = alive
        self.most = max(self.most, sum(size for _, size in alive.values()))
        return result


def is_plain(leaf):
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, LazyLogProbs)


def test_memory_is_that_of_the_gradients_and_a_chunk(monkeypatch):
    copies, classes, rows, width, chunk = 10, 500, 200, 16, 20
    monkeypatch.setattr(vocabulary, "CHUNK", chunk * classes)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, classes))
    model = alrao.Alrao(net, copies)
    x, y = torch.randn(rows, 4), torch.randint(classes, (rows,))
    gradients = 4 * copies * classes * (width + 1)
    gc.collect()
    with Live() as live:
        F.cross_entropy(model(x), y).backward()
    assert live.largest <= gradients
    assert live.most <= 1.5 * gradients + 3 * 4 * chunk * classes + 40 * 4 * rows * (width + copies)
    monkeypatch.setattr(vocabulary, "LARGE", 10**9)  # the same measure of the other head is not idle
    model.zero_grad()
    with Live() as at_once:
        F.cross_entropy(model(x), y).backward()
    assert at_once.most > 3 * 4 * rows * copies * classes > 3 * live.most
