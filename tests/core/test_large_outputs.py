"""Large outputs, computed in chunks where they are read, against the head that holds all copies at once."""

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
from alrao.tensors import LazyLogProbs, LogProbs, lazy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    count_as_large(monkeypatch)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_equal_to_the_head_that_holds_all_copies(loss, bias, monkeypatch):
    assert_equal_to_the_present_head(converted(bias=bias), batch(), LOSSES[loss], monkeypatch)


def test_a_hard_loss_never_computes_the_output(monkeypatch):
    computed, seen = LazyLogProbs.computed, []
    monkeypatch.setattr(LazyLogProbs, "computed", lambda out: seen.append(out) or computed(out))
    for name in ("mean", "sum", "none", "nll", "ignore", "ignore_none", "weights", "two_losses", "scaled"):
        LOSSES[name](converted()(batch())).backward()
        assert not seen, name
    LOSSES["temperature"](converted()(batch())).backward()
    assert seen


CHANGES = {
    "view": ((4, 3), lambda out: out.view(-1, CLASSES), TARGET),
    "flatten": ((4, 3), lambda out: out.flatten(0, 1), TARGET),
    "transpose": ((4, 3), lambda out: out.transpose(1, 2), TARGET.view(4, 3)),
    "permute": ((4, 3), lambda out: out.permute(0, 2, 1).contiguous(), TARGET.view(4, 3)),
    "shift": ((4, 3), lambda out: out[..., :-1, :].contiguous().view(-1, CLASSES), TARGET[:8]),
    "last": ((4, 3), lambda out: out[:, -1], TARGET[:4]),
    "mask": ((4, 3), lambda out: out[TARGET.view(4, 3) < 3], TARGET[TARGET < 3]),
    "index": ((12,), lambda out: out[[3, 1, 4]], TARGET[[3, 1, 4]]),
    "float": ((12,), lambda out: out.to(torch.float64).double().clone(), TARGET),
    "reshape_sizes": ((4, 3), lambda out: torch.reshape(out, (2, 6, CLASSES)).mT, TARGET.view(2, 6)),
    "one_row": ((4, 3), lambda out: out[1, 2], TARGET[3]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_shape_stay_lazy(name, monkeypatch):
    shape, change, target = CHANGES[name]
    model, x = converted(), batch(*shape)
    changed = change(model(x))
    assert isinstance(changed, LazyLogProbs)
    with torch.no_grad():
        expected = change(model(x))
    assert not isinstance(expected, LazyLogProbs)
    torch.testing.assert_close(changed.detach().as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert_equal_to_the_present_head(model, x, lambda out: F.cross_entropy(change(out), target), monkeypatch)


@pytest.mark.parametrize(
    "index",
    [slice(0, 3), (slice(None), slice(1, None)), (..., 2), (..., [0, 1]), (..., slice(None, CLASSES))],
)
def test_some_of_the_classes_are_plain_numbers(index):
    model, x = converted(), batch()
    with torch.no_grad():
        expected = model(x)[index]
    part = model(x)[index]
    assert isinstance(part, LazyLogProbs) == (index == slice(0, 3))
    torch.testing.assert_close(part.detach().as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


READINGS = {
    "argmax": lambda out: out.argmax(-1),
    "argmax_keepdim": lambda out: torch.argmax(out, 1, keepdim=True),
    "argmax_of_all": lambda out: out.argmax(),
    "argmax_of_rows": lambda out: out.argmax(0),
    "topk": lambda out: out.topk(3).indices,
    "topk_values": lambda out: torch.topk(out, 2, 1, largest=False).values,
    "max": lambda out: out.max(1).values,
    "softmax": lambda out: out.softmax(-1),
    "detach": lambda out: out.detach(),
    "data": lambda out: out.data,
    "numpy": lambda out: torch.from_numpy(out.detach().numpy()),
    "list": lambda out: torch.tensor(out.tolist(), dtype=torch.float64),
    "item": lambda out: torch.tensor(out[0, 0].item(), dtype=torch.float64),
    "cat": lambda out: torch.cat([out, out]),
    "index_select": lambda out: out.index_select(0, torch.tensor([2, 2])),
    "split": lambda out: out.split(5)[1],
    "unbind": lambda out: out.unbind(1)[2],
    "rows": lambda out: torch.stack([row.sum() for row in out]),
    "arithmetic": lambda out: 1 + 2 * out - out.mean(),
}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("grad", [True, False])
def test_numbers_that_are_read_are_those_of_the_present_head(name, grad, monkeypatch):
    model, x = converted(), batch()
    out = model(x)
    monkeypatch.setattr(vocabulary, "LARGE", 10**9)
    expected = READINGS[name](model(x)).detach()
    monkeypatch.setattr(vocabulary, "LARGE", 1)
    with torch.set_grad_enabled(grad):
        found = READINGS[name](out).detach()
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


def test_argmax_never_holds_the_output(monkeypatch):
    monkeypatch.setattr(lazy, "ROWS", 5)
    sizes, values = [], vocabulary.Vocabulary.values
    monkeypatch.setattr(
        vocabulary.Vocabulary,
        "values",
        lambda layer, rows, *shape: sizes.append(len(rows)) or values(layer, rows, *shape),
    )
    model, x = converted(), batch(4, 3)
    out = model(x)
    best, moved = out.argmax(-1), out.transpose(1, 2).argmax(1, keepdim=True)
    assert max(sizes) == 5
    with torch.no_grad():
        assert torch.equal(best, model(x).argmax(-1))
    assert torch.equal(moved, best[:, None])


def test_without_a_graph_the_numbers_are_computed_at_once():
    model, x = converted(), batch()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert type(model(x)) is LogProbs
    model.requires_grad_(False)
    assert type(model(x)) is LogProbs


# Outputs that are read late, changed, or watched.


@pytest.mark.parametrize("name", ["mean", "soft", "temperature"])
def test_a_reading_after_the_weights_have_changed_is_refused(name):
    model = converted()
    optimizer = alrao.SGD(model)
    out = model(batch())
    kept, detached = model(batch()), model(batch()).detach()
    before = detached.clone()
    F.cross_entropy(out, TARGET).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="weights of the head have changed"):
        LOSSES[name](kept)
    with pytest.raises(RuntimeError, match="weights of the head have changed"):
        kept.argmax(-1)
    assert torch.equal(detached, before)


def test_numbers_that_were_read_stay_as_they_were():
    model = converted()
    out = model(batch())
    before = out.exp().detach()
    with torch.no_grad():
        model.head.weight.mul_(2)
    assert torch.equal(out.exp(), before)


IN_PLACE = {
    "div_": lambda out: out.div_(2),
    "setitem": lambda out: out.__setitem__((slice(None), 0), -9.0),
    "view": lambda out: out[:, :3].zero_(),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_in_place_count(name):
    out = converted()(batch())
    values = out.detach().as_subclass(torch.Tensor).clone()
    IN_PLACE[name](out)
    IN_PLACE[name](values)
    torch.testing.assert_close(out.detach().as_subclass(torch.Tensor), values)
    if name != "view":  # torch renormalises what is no distribution any more
        torch.testing.assert_close(F.cross_entropy(out, TARGET).detach(), F.cross_entropy(values, TARGET))


@pytest.mark.parametrize("watch", ["register_hook", "retain_grad"])
def test_hooks_see_the_gradient(watch, monkeypatch):
    seen = []

    def loss_of(out):
        if watch == "retain_grad":
            out.retain_grad()
        else:
            out.register_hook(lambda g: seen.append(g.clone()))
        loss = F.cross_entropy(out, TARGET)
        seen.append(out)
        return loss

    assert_equal_to_the_present_head(converted(), batch(), loss_of, monkeypatch)
    lazily, at_once = [x for x in seen if type(x) is torch.Tensor] if watch != "retain_grad" else [
        out.grad for out in seen
    ]  # fmt: skip
    torch.testing.assert_close(lazily, at_once)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_functions_of_users_get_the_numbers(monkeypatch):
    assert_equal_to_the_present_head(
        converted(), batch(), lambda out: F.nll_loss(Doubled.apply(out), TARGET), monkeypatch
    )


def test_what_passes_torch_function_by_gets_the_numbers():
    model = converted()
    out = model(batch())
    with torch._C.DisableTorchFunctionSubclass():
        found = out + 1
        with pytest.raises(RuntimeError, match="in place: clone it first"):
            out.mul_(2)
    torch.testing.assert_close(found, out.as_subclass(torch.Tensor) + 1)
    F.nll_loss(found, TARGET).backward()
    assert model.head.weight.grad.any()


def test_a_second_backward_pass_adds_the_same_again():
    model = converted()
    loss = F.cross_entropy(model(batch()), TARGET)
    loss.backward(retain_graph=True)
    once = model.head.weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(model.head.weight.grad, 2 * once)


def test_create_graph_is_refused():
    loss = F.cross_entropy(converted()(batch()), TARGET)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        loss.backward(create_graph=True)


def test_targets_out_of_range_raise_as_in_torch():
    with pytest.raises(IndexError, match="out of bounds"):
        F.cross_entropy(converted()(batch()), TARGET + 5)
    with pytest.raises(ValueError, match="batch_size"):
        F.cross_entropy(converted()(batch()), TARGET[:5])


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
