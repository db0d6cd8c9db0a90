"""Where the outputs are after a change of shape: found again by their values, not by our rules."""

import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import alrao
from alrao.tensors import Members, Prediction

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


def plain(x):
    return x.as_subclass(torch.Tensor)


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


ROWS = torch.tensor([2, 0, 1])
INDICES = {
    "one": 2,
    "last": -1,
    "part": slice(1, 3),
    "ellipsis": (Ellipsis, 0),
    "new axis": (None, slice(None), 0),
    "rows": ROWS,
    "rows of rows": torch.tensor([[0, 1], [2, 0]]),
    "a list": [2, 0],
    "mask": torch.tensor([True, False, True, True]),
    "mask of two axes": torch.arange(20).view(4, 5) % 3 == 0,
    "the last of each": (torch.arange(3), torch.tensor([1, 0, 2])),
    "each and one": (torch.arange(3), -1),
    "side by side, later": (slice(None), ROWS, ROWS),
    "apart": (ROWS, slice(None), ROWS),
    "apart by a new axis": (ROWS, None, ROWS),
    "a number, then apart": (0, slice(None), ROWS),
    "number between": (ROWS, 0, ROWS),
    "mask, then rows": (torch.tensor([True, False, True, True]), ROWS),
    "behind the ellipsis": (Ellipsis, ROWS, slice(None)),
    "two of different width": (torch.tensor([[0], [1]]), ROWS),
    "a zero-dimensional tensor": (torch.tensor(1), slice(None), ROWS),
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
    st.sampled_from([ROWS, torch.tensor([[1], [0]]), torch.tensor(1)]),
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
    "index_select": lambda x: x.index_select(0, ROWS),
    "gather of rows": lambda x: torch.gather(x, 0, ROWS.view(3, 1, 1, 1).expand(3, *SHAPE[1:])),
    "take_along_dim of rows": lambda x: x.take_along_dim(ROWS.view(3, 1, 1, 1).expand(3, *SHAPE[1:]), 0),
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
