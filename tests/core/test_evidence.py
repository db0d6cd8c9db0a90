"""What backward reports to step: its layout, and what it says of a loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alrao import evidence as reports

COPIES = 3
numbers = st.floats(-50, 0)


@settings(deadline=None)
@given(
    log_p=st.lists(st.lists(numbers, min_size=COPIES, max_size=COPIES), min_size=1, max_size=8),
    weights=st.lists(st.floats(0.1, 5), min_size=8, max_size=8),
    scale=st.floats(1e-3, 1e3),
)
def test_the_mean_and_the_sum_do_not_depend_on_a_factor_of_the_loss(log_p, weights, scale):
    log_p = torch.tensor(log_p, dtype=torch.float64)
    weight = torch.tensor(weights[: len(log_p)], dtype=torch.float64)
    g = -scale * weight
    packed = reports.pack(g @ log_p, g.sum(), g.relu().sum(), (g != 0).sum())
    evidence = reports.read(packed, COPIES)
    mean = (weight @ log_p / weight.sum()).tolist()
    assert evidence.log_likelihood("mean") == pytest.approx(mean)
    assert evidence.log_likelihood("sum") == pytest.approx([len(log_p) * x for x in mean])
    assert not evidence.refused(maximize=False)
    assert evidence.refused(maximize=True)


def test_rows_of_a_softmax_are_packed_alike():
    g = torch.zeros(4, 1, 5, dtype=torch.float64)
    g[0, 0, 2], g[3, 0, 1] = -2.0, -0.5  # two rows are ignored
    log_p = torch.randn(4, COPIES, 5, dtype=torch.float64).log_softmax(-1)
    packed = reports.of_rows(log_p * g, g, g.sum(-1, keepdim=True))
    expected = reports.pack((log_p * g).sum((0, 2)), g.sum(), g.relu().sum(), torch.tensor(2))
    torch.testing.assert_close(packed, expected)
    assert len(reports.new_leaf(COPIES, packed)) == len(packed)


def test_evidence_of_several_passes_adds_up():
    one, two = (torch.cat([torch.randn(COPIES), torch.tensor([-1.0, 0.0, 2.0])]) for _ in range(2))
    together = reports.read(one + two, COPIES)
    assert together.rows == 4
    mean = ((one + two)[:COPIES] / -2).tolist()
    assert together.log_likelihood("mean") == pytest.approx(mean)


def test_a_loss_that_is_no_likelihood_is_told_apart():
    packed = reports.no_likelihood(COPIES, torch.tensor(2.0))
    assert reports.read(packed, COPIES).refused(maximize=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_leaf_is_at_least_single(dtype):
    leaf = reports.new_leaf(COPIES, torch.zeros(1, dtype=dtype))
    assert leaf.dtype == torch.promote_types(dtype, torch.float32)
    assert leaf.is_leaf
    assert leaf.requires_grad
