"""The posterior over copies, against plain enumeration of what it averages over."""

import copy
import io
import pickle
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.switching import enumerate_switches
from torch import nn

import alrao

METHODS = [alrao.Switch, alrao.paper.BayesianAverage]
quick = settings(deadline=None, max_examples=12, derandomize=True)


def enumerate_product(likelihoods):
    mass = likelihoods.prod(0)
    return mass / mass.sum()


def made(method, likelihoods, **options):
    average = method(likelihoods.shape[1], **options)
    for row in likelihoods:
        average.update(torch.from_numpy(row).log())
    return average


def random_likelihoods(seed, steps=5, models=3):
    return np.exp(np.random.default_rng(seed).normal(0, 2, (steps, models)))


def assert_close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=tolerance)


@quick
@given(seed=st.integers(0, 2**32 - 1), theta=st.floats(0.01, 0.9999), models=st.integers(2, 4))
def test_switch_equals_enumeration_of_all_switching_sequences(seed, theta, models):
    likelihoods = random_likelihoods(seed, models=models)
    switch = alrao.Switch(models, theta)
    for step in range(len(likelihoods)):
        switch.update(torch.from_numpy(likelihoods[step]).log())
        assert_close(switch.weights, enumerate_switches(likelihoods[: step + 1], theta))


def test_switch_has_the_default_theta_of_the_paper():
    likelihoods = random_likelihoods(1, steps=6)
    assert_close(made(alrao.Switch, likelihoods).weights, enumerate_switches(likelihoods, 0.999))


@quick
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 40), models=st.integers(1, 6))
def test_bayesian_average_equals_the_product_of_likelihoods(seed, steps, models):
    likelihoods = random_likelihoods(seed, steps, models)
    average = made(alrao.paper.BayesianAverage, likelihoods)
    assert_close(average.weights, enumerate_product(likelihoods))
    logs = np.log(likelihoods).sum(0)
    assert_close(average.log_weights, logs - np.logaddexp.reduce(logs), 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_starts_uniform_and_stays_a_distribution(method):
    average = method(7)
    assert_close(average.weights, np.full(7, 1 / 7), 1e-15)
    for _ in range(50):
        average.update(10 * torch.randn(7))
        assert abs(average.weights.sum().item() - 1) < 1e-12
        assert_close(average.log_weights.exp(), average.weights, 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_one_model_keeps_all_the_weight(method):
    average = method(1)
    for _ in range(20):
        average.update(torch.tensor([-3.0]))
    assert_close(average.weights, [1.0], 1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_evidence_far_beyond_the_range_of_exp(method):
    average = method(3)
    for _ in range(3):
        average.update(torch.tensor([-1e5, -2e5, -1e5]))
    assert average.weights.isfinite().all()
    assert average.weights[0] == average.weights[2] > 0.4
    assert average.weights[1] < 0.2


def test_bayesian_log_weights_are_exact_where_weights_underflow():
    average = alrao.paper.BayesianAverage(2)
    average.update(torch.tensor([0.0, -5000.0]))
    assert average.weights.tolist() == [1.0, 0.0]
    assert average.log_weights.tolist() == [0.0, -5000.0]


def test_switch_recovers_where_the_bayesian_average_is_stuck():
    # The catch-up phenomenon: long good, then bad.
    likelihoods = np.concatenate([np.tile([0.9, 0.1], (30, 1)), np.tile([0.1, 0.9], (8, 1))])
    assert made(alrao.Switch, likelihoods).weights[1] > 0.9
    assert made(alrao.paper.BayesianAverage, likelihoods).weights[1] < 1e-6


# Models that fail.

FAILURES = pytest.mark.parametrize("failure", [-inf, nan, inf])


def with_failure(likelihoods, model, *steps):
    """What a failure means: that model's likelihood in these steps is 0."""
    likelihoods = likelihoods.copy()
    likelihoods[list(steps), model] = 0
    return likelihoods


@FAILURES
def test_switch_takes_a_failed_copy_out_and_lets_it_return(failure):
    likelihoods = random_likelihoods(2, steps=6)
    switch = made(alrao.Switch, likelihoods[:2])
    failed = torch.from_numpy(likelihoods[2]).log()
    failed[1] = failure
    switch.update(failed)
    # It predicts nothing now: the sequences that use it in this batch, or in the next, have likelihood 0.
    expected = enumerate_switches(with_failure(likelihoods, 1, 2)[:3], 0.999) * [1, 0, 1]
    assert_close(switch.weights, expected / expected.sum())
    assert switch.weights[1] == 0
    assert switch.log_weights[1] == -inf
    for step in range(3, 6):
        switch.update(torch.from_numpy(likelihoods[step]).log())
        assert_close(
            switch.weights, enumerate_switches(with_failure(likelihoods, 1, 2, 3)[: step + 1], 0.999)
        )
        assert switch.weights[1] > 0


def test_a_copy_that_returns_has_its_share_of_the_pool_only():
    # However well it does: no sequence with any probability used it in the batch that it returns in.
    switch = alrao.Switch(3)
    switch.update(torch.tensor([-1.0, nan, -2.0]))
    switch.update(torch.tensor([-1001.0, 0.0, -1002.0]))
    likelihoods = np.exp([[-1.0, -inf, -2.0], [-1.0, -inf, -2.0]])
    assert_close(switch.weights, enumerate_switches(likelihoods, 0.999))


@pytest.mark.parametrize("method", METHODS)
def test_stays_a_distribution_when_copies_fail_in_turn(method):
    average = method(3)
    for failures in ([0, 1], [2], [0, 2], [1], [0], [1, 2]):
        log_likelihood = torch.randn(3)
        log_likelihood[failures] = nan
        average.update(log_likelihood)
        assert abs(average.weights.sum().item() - 1) < 1e-12
        if method is alrao.Switch:
            assert average.weights[failures].tolist() == [0.0] * len(failures)


@FAILURES
def test_bayesian_average_takes_a_failed_copy_out_for_good(failure):
    likelihoods = with_failure(random_likelihoods(3, steps=4), 2, 1)
    average = made(alrao.paper.BayesianAverage, likelihoods[:1])
    failed = torch.from_numpy(likelihoods[1]).clamp(min=1e-9).log()
    failed[2] = failure
    average.update(failed)
    for row in likelihoods[2:]:
        average.update(torch.from_numpy(row).log())
    assert_close(average.weights, enumerate_product(likelihoods))
    assert average.weights[2] == 0
    assert average.log_weights[2] == -inf


@FAILURES
@pytest.mark.parametrize("method", METHODS)
def test_nothing_changes_when_all_fail(method, failure):
    average = made(method, random_likelihoods(4))
    before = copy.deepcopy(average.state_dict())
    average.update(torch.full((3,), failure))
    assert average.state_dict().keys() == before.keys()
    for name, value in average.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_nothing_changes_when_all_that_the_bayesian_average_believes_in_fail():
    average = alrao.paper.BayesianAverage(3)
    average.update(torch.tensor([-inf, 0.0, 1.0]))
    before = average.weights.clone()
    average.update(torch.tensor([-1.0, nan, -inf]))
    assert torch.equal(average.weights, before)


# State.


@pytest.mark.parametrize("method", METHODS)
def test_reset_forgets_everything(method):
    likelihoods = random_likelihoods(5)
    average = made(method, random_likelihoods(6))
    average.update(torch.tensor([nan, 0.0, 0.0]))
    average.reset()
    assert_close(average.weights, np.full(3, 1 / 3), 1e-15)
    for row in likelihoods:
        average.update(torch.from_numpy(row).log())
    assert torch.equal(average.weights, made(method, likelihoods).weights)


@pytest.mark.parametrize("method", METHODS)
def test_state_dict_continues_where_it_was(method):
    likelihoods = random_likelihoods(7, steps=9)
    average = made(method, likelihoods[:5])
    file = io.BytesIO()
    torch.save(average.state_dict(), file)
    file.seek(0)
    resumed = method(3)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for row in likelihoods[5:]:
        average.update(torch.from_numpy(row).log())
        resumed.update(torch.from_numpy(row).log())
        assert torch.equal(average.weights, resumed.weights)
        assert torch.equal(average.log_weights, resumed.log_weights)


def test_state_dict_of_the_switch_has_the_time():
    switch, other = made(alrao.Switch, random_likelihoods(8, steps=4)), alrao.Switch(3)
    assert int(switch.t) == 5
    other.load_state_dict(switch.state_dict())
    assert int(other.t) == 5
    switch.reset()
    assert int(switch.t) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_takes_any_float_type(method, dtype):
    log_likelihood = torch.tensor([-0.5, -1.25, -4.0])  # exact in all of them
    average, reference = method(3), method(3)
    for _ in range(5):
        average.update(log_likelihood.to(dtype))
        reference.update(log_likelihood)
    assert torch.equal(average.weights, reference.weights)


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "double"])
@pytest.mark.parametrize("method", METHODS)
def test_state_is_not_rounded_when_the_model_is_cast(method, cast):
    average = made(method, random_likelihoods(9, steps=30))
    reference = copy.deepcopy(average)
    getattr(nn.Sequential(average, nn.Linear(2, 2)), cast)()
    for name, buffer in average.named_buffers():
        assert torch.finfo(buffer.dtype).bits >= 32, name
    average.update(torch.tensor([-1.0, -2.0, -3.0]))
    reference.update(torch.tensor([-1.0, -2.0, -3.0]))
    assert_close(average.weights, reference.weights, 1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("made_on_meta", [True, False])
def test_starts_afresh_when_it_leaves_the_meta_device(method, made_on_meta):
    if made_on_meta:
        with torch.device("meta"):
            average = method(3)
    else:
        average = made(method, random_likelihoods(10)).to("meta")
    assert average.weights.is_meta
    average = average.to_empty(device="cpu")
    assert torch.equal(average.weights, method(3).weights)
    likelihoods = random_likelihoods(11)
    for row in likelihoods:
        average.update(torch.from_numpy(row).log())
    assert_close(average.weights, made(method, likelihoods).weights)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_do_not_flow_through_the_posterior(method):
    average = method(2)
    average.update(torch.tensor([-1.0, -2.0], requires_grad=True))
    assert not average.weights.requires_grad


def _assigned(average):
    other = type(average)(average.copies)
    other.load_state_dict(copy.deepcopy(average.state_dict()), assign=True)
    return other


def _moved(average):
    average._state.data = average._state.data.clone()
    return average


def _shared(average):
    average._state.share_memory_()
    return average


ELSEWHERE = {
    "made": lambda average: average,
    "copied": copy.deepcopy,
    "pickled": lambda average: pickle.loads(pickle.dumps(average)),
    "assigned": _assigned,
    "moved": _moved,
    "shared": _shared,
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("way", ELSEWHERE)
@pytest.mark.parametrize("method", METHODS)
def test_goes_on_alike_wherever_its_state_lives(method, way, inference):
    likelihoods = random_likelihoods(13, steps=12)
    reference = made(method, likelihoods)
    average = made(method, likelihoods[:5])
    average.column(torch.float32)
    average = ELSEWHERE[way](average)
    with torch.inference_mode(inference):
        before, weights = average.column(torch.float32), average.weights
        for row in likelihoods[5:]:
            average.update(torch.from_numpy(row).log())
    assert torch.equal(average.weights, reference.weights)
    assert torch.equal(average.column(torch.float64).flatten(), reference.weights)
    assert torch.equal(before.flatten(), weights.float()), "a column is not touched by later updates"


# Wrong arguments.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(), (2,), (4,), (1, 3), (3, 1)])
def test_refuses_another_number_of_likelihoods(method, shape):
    average = made(method, random_likelihoods(12))
    before = average.weights.clone()
    with pytest.raises(ValueError, match=r"one number for each of the 3 copies"):
        average.update(torch.zeros(shape))
    assert torch.equal(average.weights, before)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("copies", [0, -1, 2.0, True, "3", None])
def test_refuses_a_wrong_number_of_copies(method, copies):
    with pytest.raises(ValueError, match="copies must be a whole number of at least 1"):
        method(copies)


@pytest.mark.parametrize("theta", [0.0, 1.0, -0.1, 1.5, nan])
def test_switch_refuses_theta_outside_of_0_and_1(theta):
    with pytest.raises(ValueError, match="theta must lie strictly between 0 and 1"):
        alrao.Switch(3, theta)
