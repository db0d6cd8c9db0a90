"""What a model returns: log-probabilities and predictions, through changes of shape, and only those."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import alrao
from alrao.tensors import LogProbs, Members, Prediction

# Log-probabilities of classifiers.


ROWS, STEPS, INPUTS, CLASSES = 6, 4, 3, 5
INDEX = torch.tensor([0, 3, 3])
MASK = torch.tensor([[True, False, True], [False, False, True]])


class Foreign(torch.Tensor):
    """As fastai's TensorBase."""


def written(out):
    """Return the steps of a sequence, written one by one as in a decoder's loop."""
    outputs = torch.zeros(out.shape[1], out.shape[0], out.shape[2], dtype=out.dtype)
    for t in range(len(outputs)):
        outputs[t] = out[:, t]
    return outputs


def model():
    converted = alrao.Alrao(nn.Linear(INPUTS, CLASSES), 3).double()
    converted.head.averaging.update(torch.tensor([0.0, 1.0, -2.0]))
    return converted


def output(*shape):
    """The output of a classifier, of this shape and the classes behind."""
    return model()(torch.randn(*shape, INPUTS, dtype=torch.float64))


def plain(out):
    return out.as_subclass(torch.Tensor)


def normalised_axes(tensor):
    """The axes along which the probabilities add up to 1: by this, not by its word, the type is judged."""
    probabilities = plain(tensor).detach().exp()
    return [i for i in range(tensor.ndim) if torch.allclose(probabilities.sum(i), torch.ones(()).double())]


# How a user brings (N, K) and (N, T, K) into shape.
SHAPE_CHANGES = {
    "view": ((2, 3), lambda out: out.view(-1, CLASSES)),
    "reshape": ((6,), lambda out: out.reshape(2, 3, CLASSES)),
    "torch.reshape": ((6,), lambda out: torch.reshape(out, (3, 2, CLASSES))),
    "flatten": ((2, 3), lambda out: out.flatten(0, 1)),
    "unflatten": ((6,), lambda out: out.unflatten(0, (2, 3))),
    "squeeze": ((6, 1), lambda out: out.squeeze(1)),
    "unsqueeze": ((6,), lambda out: out.unsqueeze(0)),
    "unsqueeze_last": ((6,), lambda out: torch.unsqueeze(out, -1)),
    "transpose": ((2, 3), lambda out: out.transpose(1, 2)),
    "torch.transpose": ((2, 3), lambda out: torch.transpose(out, 0, 2)),
    "swapaxes": ((2, 3), lambda out: out.swapaxes(-1, -2)),
    "permute": ((2, 3), lambda out: out.permute(1, 2, 0)),
    "permute_list": ((2, 3), lambda out: out.permute([2, 0, 1])),
    "movedim": ((2, 3), lambda out: out.movedim(-1, 1)),
    "t": ((6,), lambda out: out.t()),
    "contiguous": ((2, 3), lambda out: out.transpose(1, 2).contiguous()),
    "clone": ((6,), lambda out: out.clone()),
    "float": ((6,), lambda out: out.float().double()),
    "to": ((6,), lambda out: out.to(torch.float64)),
    "to_device": ((6,), lambda out: out.to("cpu", torch.float64)),
    "slice": ((6,), lambda out: out[1:4]),
    "slice_time": ((2, 3), lambda out: out[:, :-1]),
    "last_time": ((2, 3), lambda out: out[:, -1]),
    "integer": ((2, 3), lambda out: out[1]),
    "ellipsis": ((2, 3), lambda out: out[..., :]),
    "none": ((6,), lambda out: out[:, None]),
    "mask": ((6,), lambda out: out[torch.arange(6) % 2 == 0]),
    "mask_of_two_axes": ((2, 3), lambda out: out[torch.arange(6).view(2, 3) > 2]),
    "choice_of_rows": ((6,), lambda out: out[INDEX]),
    "index_select": ((6,), lambda out: out.index_select(0, INDEX)),
    "narrow": ((6,), lambda out: out.narrow(0, 1, 3)),
    "cat": ((6,), lambda out: torch.cat([out, out[:2]])),
    "cat_time": ((2, 3), lambda out: torch.cat([out, out], dim=1)),
    "stack": ((6,), lambda out: torch.stack([out, out])),
    "stack_last": ((6,), lambda out: torch.stack([out, out], dim=-1)),
    "gather_rows": ((6,), lambda out: out.gather(0, INDEX[:, None].expand(-1, CLASSES))),
    "repeat_interleave": ((6,), lambda out: out.repeat_interleave(2, 0)),
    "torch.repeat_interleave": (
        (6,),
        lambda out: torch.repeat_interleave(out, INDEX[[1, 1, 0, 0, 1, 2]], dim=0),
    ),
    "repeat": ((6,), lambda out: out.repeat(2, 3, 1)),
    "tile": ((6,), lambda out: torch.tile(out, (3, 1))),
    "flip": ((2, 3), lambda out: out.flip(1)),
    "flip_classes": ((2, 3), lambda out: torch.flip(out, [0, 2])),
    "fliplr": ((2, 3), lambda out: out.fliplr()),
    "type": ((6,), lambda out: out.type(torch.float32).type("torch.DoubleTensor")),
    "tensor_split": ((6,), lambda out: torch.tensor_split(out, 2)[1]),
    "masked_select": ((2, 3), lambda out: out.masked_select(MASK[..., None]).view(-1, CLASSES)),
    "masked_select_expanded": (
        (2, 3),
        lambda out: torch.masked_select(out, MASK[..., None].repeat(1, 1, CLASSES)).reshape(-1, 1, CLASSES),
    ),
    "flat": ((2, 3), lambda out: out.flatten().view(3, 2, CLASSES)),
    "packed": ((3, 2), lambda out: pack_padded_sequence(out, torch.tensor([3, 1])).data),
    "packed_batch_first": (
        (2, 3),
        lambda out: (
            pack_padded_sequence(out, torch.tensor([1, 3]), batch_first=True, enforce_sorted=False).data
        ),
    ),
    "type_of_another_package": ((6,), lambda out: out.as_subclass(Foreign).view(2, 3, CLASSES)),
    "written": ((2, 3), lambda out: written(out)),
    "log_softmax": ((6,), lambda out: out.log_softmax(1)),
    "F.log_softmax": ((2, 3), lambda out: F.log_softmax(out, dim=-1)),
    "torch.log_softmax": ((6,), lambda out: torch.log_softmax(out, 1)),
    "LogSoftmax": ((6,), lambda out: nn.LogSoftmax(1)(out)),
}


@pytest.mark.parametrize("name", SHAPE_CHANGES)
def test_changes_of_shape_keep_the_type_and_the_softmax_passes_gradients_as_they_are(name):
    shape, change = SHAPE_CHANGES[name]
    out = output(*shape)
    changed = change(out)
    assert type(changed) is LogProbs
    torch.testing.assert_close(plain(changed), change(plain(out)), rtol=1e-12, atol=1e-14)
    (axis,) = normalised_axes(changed)
    g = torch.randn_like(plain(changed))
    before, after = (
        torch.autograd.grad(x, out, g, retain_graph=True) for x in (plain(changed), changed.log_softmax(axis))
    )
    assert torch.equal(*before, *after)


LOSE_THE_TYPE = {
    "scale": lambda out: out / 2,
    "add": lambda out: out + 1,
    "multiply": lambda out: 3 * out,
    "negate": lambda out: -out,
    "exp": lambda out: out.exp(),
    "softmax": lambda out: out.softmax(1),
    "sum": lambda out: out.sum(1),
    "mean": lambda out: out.mean(),
    "argmax": lambda out: out.argmax(1),
    "masked_fill": lambda out: out.masked_fill(torch.eye(6, 5, dtype=torch.bool), -9.0),
    "clamp": lambda out: out.clamp(min=-1),
    "cat_with_plain": lambda out: torch.cat([out, torch.zeros(2, CLASSES)]),
    "detach": lambda out: out.detach(),
}


@pytest.mark.parametrize("name", LOSE_THE_TYPE)
def test_everything_else_gives_no_log_probabilities(name):
    out = output(ROWS)
    with torch.no_grad():
        assert type(LOSE_THE_TYPE[name](out)) is torch.Tensor
    result = LOSE_THE_TYPE[name](out)
    assert type(result) is torch.Tensor or not result.intact
    result = plain(result)
    torch.testing.assert_close(result, LOSE_THE_TYPE[name](plain(out)), rtol=1e-12, atol=1e-14)


CHOSEN = torch.tensor([0, 0, 1, 2, 3])
PICKS = {
    "some_classes": lambda out: out[:, :3],
    "listed_classes": lambda out: out[:, [0, 1, 3]],
    "classes_of_two_outputs": lambda out: torch.cat([out, out], 1),
    "classes_twice": lambda out: out.index_select(1, CHOSEN),
    "gather_classes": lambda out: out.gather(1, CHOSEN.expand(ROWS, -1)),
    "gather_rows": lambda out: torch.gather(out, 0, CHOSEN.expand(ROWS, -1)),
    "indexed_classes": lambda out: out[:, CHOSEN],
}


@pytest.mark.parametrize("name", PICKS)
def test_picking_single_probabilities_gives_no_distribution(name):
    out = output(ROWS)
    target = torch.arange(ROWS) % 3
    picked = PICKS[name](out)
    assert normalised_axes(picked) == []
    expected = F.cross_entropy(PICKS[name](plain(out)), target)
    torch.testing.assert_close(F.cross_entropy(picked, target), expected)


def set_items(out):
    out[:, 2] = -9.0


IN_PLACE = {
    "div_": lambda out: out.div_(2),
    "mul_": lambda out: out.mul_(0.5),
    "masked_fill_": lambda out: out.masked_fill_(torch.eye(ROWS, CLASSES, dtype=torch.bool), -9.0),
    "setitem": set_items,
    "fill_": lambda out: out.fill_(1.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("training", [True, False])
def test_changes_in_place_leave_no_distribution(name, training):
    # A temperature, or classes that are masked out: logits may be treated so, and cross_entropy renormalises.
    with torch.set_grad_enabled(training):
        out, target = output(ROWS).clone(), torch.arange(ROWS) % CLASSES
    values = plain(out).detach().clone()
    IN_PLACE[name](out)
    IN_PLACE[name](values)
    torch.testing.assert_close(F.cross_entropy(out, target).detach(), F.cross_entropy(values, target))
    assert type(out) is torch.Tensor or not out.intact


def test_softmax_over_the_classes_gives_the_probabilities():
    out = output(2, 3)
    for probabilities in (
        out.softmax(-1),
        F.softmax(out, dim=2),
        torch.softmax(out, -1),
        nn.Softmax(-1)(out),
    ):
        assert type(probabilities) is torch.Tensor
        torch.testing.assert_close(probabilities, plain(out).exp(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("op", [torch.softmax, torch.log_softmax, F.softmax, F.log_softmax])
def test_softmax_over_another_axis_is_torchs(op):
    out = output(2, 3)
    torch.testing.assert_close(op(out, dim=1), op(plain(out), dim=1), rtol=1e-12, atol=1e-14)


def test_the_axis_of_a_softmax_may_have_numpys_name():
    out = output(2, 3)
    for op in (torch.softmax, torch.log_softmax, torch.logsumexp):
        assert torch.equal(plain(op(out, axis=-1)), plain(op(out, -1)))


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: torch.softmax(x, 1, torch.float32),
        lambda x: torch.log_softmax(x, 1, torch.float32),
        lambda x: x.log_softmax(1, torch.float32),
        lambda x: F.softmax(x, dim=1, dtype=torch.float32),
        lambda x: F.log_softmax(x, dim=1, dtype=torch.float32),
    ],
)
def test_softmax_gives_the_type_asked_for(convert):
    out = output(ROWS)
    assert convert(out).dtype == torch.float32
    torch.testing.assert_close(plain(convert(out)), convert(plain(out)))


def test_log_softmax_of_the_output_passes_the_gradient_as_it_is():
    x = torch.randn(ROWS, INPUTS, dtype=torch.float64)
    target = torch.arange(ROWS) % CLASSES
    one, other = model(), model()
    other.load_state_dict(one.state_dict())
    F.nll_loss(one(x), target).backward()
    F.nll_loss(other(x).log_softmax(1).log_softmax(1), target).backward()
    assert torch.equal(one.head.weight.grad, other.head.weight.grad)


SHAPES = st.sampled_from([(), (ROWS,), (2, 3), (2, 2, 3), (2, 1, 2, 2)])


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    shape=SHAPES,
    weighted=st.booleans(),
    ignore_index=st.sampled_from([-100, 0, 3, 255]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    soft=st.booleans(),
    as_module=st.booleans(),
)
def test_cross_entropy_has_torchs_value(shape, weighted, ignore_index, smoothing, reduction, soft, as_module):
    torch.manual_seed(0)
    out = output(*shape)
    out = out.movedim(-1, min(1, out.ndim - 1))
    options = {"reduction": reduction, "label_smoothing": smoothing}
    options["weight"] = torch.rand(CLASSES, dtype=torch.float64) if weighted else None
    if soft:
        target = torch.rand_like(plain(out)).softmax(min(1, out.ndim - 1))
    else:
        target = torch.randint(CLASSES, shape)
        target.view(-1)[-1] = ignore_index
        target.view(-1)[0] = 1  # not all are ignored
        options["ignore_index"] = ignore_index
    expected = F.cross_entropy(plain(out), target, **options)
    got = (
        nn.CrossEntropyLoss(**options)(out, target) if as_module else F.cross_entropy(out, target, **options)
    )
    assert type(got) is torch.Tensor
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_cross_entropy_takes_keywords():
    out, target = output(ROWS), torch.arange(ROWS) % CLASSES
    got = F.cross_entropy(input=out, target=target)
    torch.testing.assert_close(got, F.nll_loss(plain(out), target))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_of_an_ignored_batch_is_torchs(reduction):
    out, target = output(ROWS), torch.full((ROWS,), -100)
    expected = F.cross_entropy(plain(out), target, reduction=reduction)
    got = F.cross_entropy(out, target, reduction=reduction)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("target", [torch.arange(ROWS) % CLASSES, torch.full((ROWS, CLASSES), 0.2).double()])
@pytest.mark.parametrize(
    "option", [{"label_smoothing": 1.5}, {"label_smoothing": -0.1}, {"reduction": "max"}]
)
def test_cross_entropy_refuses_what_torch_refuses(target, option):
    with pytest.raises((ValueError, RuntimeError), match=r"label_smoothing|max"):
        F.cross_entropy(output(ROWS), target, **option)


@pytest.mark.parametrize(
    "target", [torch.zeros(4).long(), torch.full((ROWS,), CLASSES), torch.zeros(ROWS, 2)]
)
def test_cross_entropy_refuses_targets_that_do_not_fit(target):
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        F.cross_entropy(output(ROWS), target)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda out: pickle.loads(pickle.dumps(out)), copy.copy])
@pytest.mark.parametrize("detached", ["no_grad", "detach"])
def test_a_detached_output_can_be_copied_and_pickled(again, detached):
    if detached == "detach":
        out = output(ROWS).detach()
    else:
        with torch.no_grad():
            out = output(ROWS)
    target = torch.arange(ROWS) % CLASSES
    same = again(out)
    assert torch.equal(plain(same), plain(out))
    assert type(same) is type(out)
    torch.testing.assert_close(F.cross_entropy(same, target), F.cross_entropy(plain(out), target))


@pytest.mark.parametrize("classes", [2, 5, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounded_log_probabilities_are_still_distributions(dtype, classes):
    torch.manual_seed(0)
    converted = alrao.Alrao(nn.Linear(INPUTS, classes), 3)
    for scale in (0.1, 3.0, 30.0):
        out = converted(scale * torch.randn(500, INPUTS)).to(dtype).clone()
        loss = F.cross_entropy(out, torch.arange(500) % classes)
        (g,) = torch.autograd.grad(loss, out)
        assert g.count_nonzero() == 500, "a target has a gradient, and no other class"


@pytest.mark.parametrize("rows", [slice(0, 2), [0, 3]], ids=["narrowed", "listed"])
def test_a_loss_of_some_of_the_classes_is_refused(rows):
    converted = model()
    optimizer = alrao.SGD(converted)
    out = converted(torch.randn(ROWS, INPUTS, dtype=torch.float64))
    F.cross_entropy(out[:, rows], torch.arange(ROWS) % 2).backward()
    with pytest.raises(RuntimeError, match=r"not a negative log-likelihood.*cross_entropy at test_tensors"):
        optimizer.step()


# Predictions through cat, stack and split: the loss is that of all of them together.


OUTPUTS, COPIES = 2, 3


def regressor():
    torch.manual_seed(0)
    converted = alrao.Alrao(nn.Linear(4, OUTPUTS), COPIES, likelihood="gaussian").double()
    converted.head.averaging.update([0.0, 1.0, -2.0])
    return converted


JOINS = {
    "cat": lambda out: torch.cat([out(slice(0, 2)), out(slice(2, 6))]),
    "stack": lambda out: torch.stack([out(slice(0, 3)), out(slice(3, 6))]),
    "stack_behind": lambda out: torch.stack([out(slice(0, 3)), out(slice(3, 6))], dim=-1),
    "cat_by_name": lambda out: torch.cat(tensors=[out(slice(0, 2)), out(slice(2, 6))], axis=0),
    "stack_along": lambda out: torch.stack([out(slice(0, 3)), out(slice(3, 6))], axis=-1),
    "split": lambda out: torch.cat(out(slice(0, 6)).split([4, 2])[::-1]),
    "chunk": lambda out: out(slice(0, 6)).chunk(3)[1],
    "unbind": lambda out: torch.stack(out(slice(0, 6)).unbind()),
    "flip": lambda out: out(slice(0, 6)).flip(0),
    "repeat_interleave": lambda out: out(slice(0, 6)).repeat_interleave(2, 0),
}


@pytest.mark.parametrize("name", JOINS)
def test_joined_and_split_predictions(name):
    converted, x = regressor(), torch.randn(ROWS, 4).double()
    prediction = JOINS[name](lambda rows: converted(x[rows]))
    assert type(prediction) is Prediction
    target = torch.linspace(-2, 2, prediction.numel()).double().cos().view(prediction.shape)
    loss = alrao.MixtureMSELoss()(prediction, target)
    loss.backward()

    layers = [converted.head.layer(j) for j in range(COPIES)]
    outputs = torch.stack([JOINS[name](lambda rows, layer=layer: layer(x[rows])) for layer in layers])
    scores = -(outputs - target).square() / 2
    axis = {"stack_behind": 2, "stack_along": 2}.get(name, outputs.ndim - 1)  # that of the outputs
    scores = scores.sum(axis)
    log_a = converted.head.averaging.weights.log().view([-1] + [1] * (scores.ndim - 1))
    torch.testing.assert_close(loss, -(scores + log_a).logsumexp(0).mean())
    for j, layer in enumerate(layers):
        (grad,) = torch.autograd.grad(-scores[j].mean(), layer.weight, retain_graph=True)
        torch.testing.assert_close(converted.head.weight.grad[j], grad)


def test_predictions_of_different_models_are_not_joined():
    x = torch.randn(ROWS, 4).double()
    joined = torch.cat([regressor()(x), regressor()(x)])
    assert type(joined) is torch.Tensor


# Where the outputs are after a change of shape: found again by their values, not by our rules.


SHAPE = (4, 5, 3, 6)


def numbered(axis, shape=SHAPE):
    """Predictions whose value is the number of their output: wrong ones, but easy to find again."""
    size = shape[axis]
    numbers = torch.arange(size, dtype=torch.float64).view(
        [size if i == axis else 1 for i in range(len(shape))]
    )
    values = numbers.expand(shape).clone()
    members = Members(values[None], values[None], torch.ones(1), torch.zeros(4), "gaussian")
    return Prediction.of(values.clone(), axis, members)


def axes_of_outputs(x, size):
    """All axes along which the values are 0, 1, 2, …: those that could be the outputs'."""
    numbers = torch.arange(size, dtype=x.dtype)
    return [
        i
        for i in range(x.ndim)
        if x.shape[i] == size and x.numel() and bool((x.movedim(i, -1) == numbers).all())
    ]


def check_followed(source, result):
    found = axes_of_outputs(plain(result), source.shape[source.axis])
    assert type(result) is Prediction
    assert torch.equal(result.members.own[0], plain(result))
    assert result.axis in found or not found


ORDER = torch.tensor([2, 0, 1])
INDICES = {
    "one": 2,
    "last": -1,
    "part": slice(1, 3),
    "ellipsis": (Ellipsis, 0),
    "new axis": (None, slice(None), 0),
    "rows": ORDER,
    "rows of rows": torch.tensor([[0, 1], [2, 0]]),
    "a list": [2, 0],
    "mask": torch.tensor([True, False, True, True]),
    "mask of two axes": torch.arange(20).view(4, 5) % 3 == 0,
    "the last of each": (torch.arange(3), torch.tensor([1, 0, 2])),
    "each and one": (torch.arange(3), -1),
    "side by side, later": (slice(None), ORDER, ORDER),
    "apart": (ORDER, slice(None), ORDER),
    "apart by a new axis": (ORDER, None, ORDER),
    "a number, then apart": (0, slice(None), ORDER),
    "number between": (ORDER, 0, ORDER),
    "mask, then rows": (torch.tensor([True, False, True, True]), ORDER),
    "behind the ellipsis": (Ellipsis, ORDER, slice(None)),
    "two of different width": (torch.tensor([[0], [1]]), ORDER),
    "a zero-dimensional tensor": (torch.tensor(1), slice(None), ORDER),
}


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_indexing(index, axis):
    source = numbered(axis)
    check_followed(source, source[index])


parts = st.one_of(
    st.integers(-3, 2),
    st.just(slice(None)),
    st.just(slice(0, 3)),
    st.none(),
    st.sampled_from([ORDER, torch.tensor([[1], [0]]), torch.tensor(1)]),
)


@settings(deadline=None, max_examples=300)
@given(index=st.lists(parts, max_size=6), axis=st.integers(0, 3), ellipsis=st.integers(-6, 6))
def test_any_index(index, axis, ellipsis):
    while sum(part is not None for part in index) > 4:
        index.remove(next(part for part in index if part is not None))
    if 0 <= ellipsis <= len(index):
        index.insert(ellipsis, Ellipsis)
    source = numbered(axis)
    check_followed(source, source[tuple(index)])


OPERATIONS = {
    "select": lambda x: x.select(1, 2),
    "select, by name": lambda x: torch.select(x, dim=-2, index=0),
    "T": lambda x: x[0, 0].T,
    "mT": lambda x: x.mT,
    "swapdims": lambda x: x.swapdims(0, 2),
    "moveaxis": lambda x: torch.moveaxis(x, 0, -1),
    "view_as": lambda x: x.view_as(torch.empty(20, 3, 6)),
    "reshape_as": lambda x: x.reshape_as(torch.empty(4, 15, 6)),
    "ravel": lambda x: x[0, 0].ravel(),
    "expand": lambda x: x.expand(2, *SHAPE),
    "expand_as": lambda x: x.expand_as(torch.empty(7, *SHAPE)),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, *SHAPE)),
    "narrow": lambda x: x.narrow(1, 0, 2),
    "index_select": lambda x: x.index_select(0, ORDER),
    "gather of rows": lambda x: torch.gather(x, 0, ORDER.view(3, 1, 1, 1).expand(3, *SHAPE[1:])),
    "take_along_dim of rows": lambda x: x.take_along_dim(ORDER.view(3, 1, 1, 1).expand(3, *SHAPE[1:]), 0),
    "take_along_dim of all": lambda x: torch.take_along_dim(x, torch.tensor([0, 3])),
    "gather": lambda x: x.gather(0, torch.zeros(2, *SHAPE[1:], dtype=torch.long)),
}


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operations(operation, axis):
    source = numbered(axis)
    check_followed(source, operation(source))


SEVERAL = {
    "split": lambda x: x.split(2),
    "split, other axis": lambda x: torch.split(x, 2, dim=1),
    "split by sizes": lambda x: x.split([1, 2], -2),
    "chunk": lambda x: x.chunk(2, 1),
    "unbind": lambda x: x.unbind(1),
    "unbind, by name": lambda x: torch.unbind(x, dim=-1),
    "iteration": tuple,
    "all in one": lambda x: x.split(100, 2),
}


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("operation", SEVERAL.values(), ids=SEVERAL)
def test_operations_with_several_results(operation, axis):
    source = numbered(axis)
    results = operation(source)
    assert isinstance(results, tuple)
    for result in results:
        check_followed(source, result)


class LastOfEach(nn.Module):
    """Takes the last position that is not padding, as causal classifiers do."""

    def __init__(self):
        super().__init__()
        self.body, self.score = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, lengths):
        return self.score(self.body(x).relu())[torch.arange(len(x)), lengths - 1]


def test_a_network_that_takes_one_position_of_each_sequence_trains():
    torch.manual_seed(0)
    model = alrao.Alrao(LastOfEach())
    optimizer = alrao.SGD(model)
    x, lengths, y = torch.randn(16, 5, 6), torch.randint(1, 6, (16,)), torch.randint(3, (16,))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, lengths), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model.posterior.max() > 0.11


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "bernoulli"])
def test_saved_predictions_load_with_the_default_of_torch(likelihood):
    model = alrao.Alrao(nn.Linear(4, 3), likelihood=likelihood)
    with torch.no_grad():
        out = model(torch.randn(5, 4))
    file = io.BytesIO()
    torch.save(out, file)
    file.seek(0)
    assert torch.equal(plain(torch.load(file, weights_only=True)), plain(out))
