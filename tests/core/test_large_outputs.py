"""Large outputs, computed in chunks where they are read, against the head that holds all copies at once."""

import pytest
import torch
import torch.nn.functional as F
from support.large import (
    CLASSES,
    LOSSES,
    TARGET,
    assert_equal_to_the_present_head,
    batch,
    converted,
    count_as_large,
)

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
