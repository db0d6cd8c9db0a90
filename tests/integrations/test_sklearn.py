"""The scikit-learn estimators: its own checks, learning, and hard data."""

import doctest
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sklearn", minversion="1.6", reason="needs alrao[sklearn]")

from sklearn.datasets import load_iris, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from support.sklearn_tables import both, fitted, quick, two_kinds

import alrao.integrations.sklearn
from alrao.integrations._tabular import held_out
from alrao.integrations.sklearn import AlraoClassifier, AlraoRegressor

WEIGHTS = (
    "weighted samples and repeated ones fall into different batches and held-out parts: equal in "
    "distribution, not in every number, as scikit-learn declares for its own networks"
)
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": WEIGHTS}

slow = pytest.mark.slow


@slow
@parametrize_with_checks(
    [AlraoClassifier(), AlraoRegressor()], expected_failed_checks=lambda estimator: EXPECTED
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


# scikit-learn runs its own networks with fewer iterations there, too.
@parametrize_with_checks([AlraoClassifier(**quick)], expected_failed_checks=lambda estimator: EXPECTED)
def test_the_checks_of_scikit_learn_in_short(estimator, check):
    check(estimator)


@slow
def test_the_check_that_needs_a_setting_of_scipy():
    # check_array_api_input, which is skipped without it.
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "in_short and array_api"]
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


def test_doctests():
    assert doctest.testmod(alrao.integrations.sklearn).failed == 0


# It learns.


def test_iris():
    X, y = load_iris(return_X_y=True)
    assert cross_val_score(AlraoClassifier(random_state=0, max_iter=60), X, y, cv=2).mean() > 0.85


def test_friedman():
    X, y = make_friedman1(300, noise=0.5, random_state=0)
    assert cross_val_score(AlraoRegressor(random_state=0, max_iter=60), X, y, cv=2).mean() > 0.65


def test_several_targets():
    X, _, y = two_kinds(120)
    Y = np.stack([y, 1e6 - 1e5 * y, X[:, 1]], 1)
    regressor = AlraoRegressor(random_state=0, max_iter=60).fit(X, Y)
    assert regressor.predict(X).shape == Y.shape
    assert regressor.score(X, Y) > 0.9
    column = AlraoRegressor(random_state=0, **quick).fit(X, Y[:, :1])
    assert column.predict(X).shape == (120, 1)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes"], dtype=object),
        np.array([False, True]),
        np.array([-7, 12]),
        np.array([0.0, 1.0]),
    ],
)
def test_labels_of_any_type(labels):
    X, y, _ = two_kinds(100)
    classifier = AlraoClassifier(random_state=0, max_iter=30).fit(X, labels[y])
    assert (classifier.classes_ == labels).all()
    assert classifier.predict(X).dtype == labels.dtype
    assert classifier.score(X, labels[y]) > 0.8
    proba = classifier.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1)
    np.testing.assert_allclose(classifier.predict_log_proba(X), np.log(proba), atol=1e-12)


def test_rare_classes_are_learnt_from():
    X, y, _ = two_kinds(50)
    y[0] = 5  # a single sample
    classifier = AlraoClassifier(random_state=0, **quick).fit(X, y)
    assert classifier.predict_proba(X).shape == (50, 3)
    held = held_out(np.unique(y, return_inverse=True)[1], 50, 0.1, np.random.RandomState(0))
    assert held.any()
    assert not held[0]


# Hard data.


@both
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    samples=st.integers(1, 40),
    features=st.integers(1, 5),
    scale=st.sampled_from([1e-300, 1e-30, 1e-5, 1.0, 1e10, 1e150, 1e300]),
    shift=st.sampled_from([0.0, 1.0, 1e8]),
    dtype=st.sampled_from([np.float32, np.float64]),
    constant=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whatever_the_table_predictions_are_finite(
    kind, samples, features, scale, shift, dtype, constant, seed
):
    rng = np.random.RandomState(seed)
    with np.errstate(over="ignore"):
        X = ((rng.randn(samples, features) + shift) * scale).astype(dtype)
    X = np.clip(X, np.finfo(dtype).min, np.finfo(dtype).max)
    if constant:
        X[:, 0] = X[0, 0]
    y = rng.randint(3, size=samples) if kind is AlraoClassifier else (X.astype(np.float64) / features).sum(1)
    estimator = kind(max_iter=2, hidden_layer_sizes=8, random_state=0).fit(X, y)
    out = estimator.predict_proba(X) if kind is AlraoClassifier else estimator.predict(X)
    assert np.isfinite(out).all()
    assert len(out) == samples


@both
@pytest.mark.parametrize("samples", [1, 2, 3, 5])
def test_a_few_samples_are_learnt(kind, samples):
    X = np.arange(samples, dtype=float)[:, None]
    y = np.arange(samples) * (10 if kind is AlraoRegressor else 1)
    estimator = kind(random_state=0, max_iter=60).fit(X, y)
    if kind is AlraoClassifier:
        assert (estimator.predict(X) == y).all()
    else:
        np.testing.assert_allclose(estimator.predict(X), y, atol=2)


def test_one_class():
    X, *_ = two_kinds()
    classifier = AlraoClassifier().fit(X, ["only"] * len(X))
    assert (classifier.predict(X) == "only").all()
    assert (classifier.predict_proba(X) == 1).all()
    assert (classifier.predict_log_proba(X) == 0).all()


@both
def test_the_units_do_not_matter(kind):
    X, *_ = two_kinds()
    one = fitted(kind, X)
    units = 2.0 ** np.array([40, -40, 3, 0])
    other = fitted(kind, X * units)
    predict = "predict_proba" if kind is AlraoClassifier else "predict"
    scale = 1 if kind is AlraoClassifier else units[0]
    np.testing.assert_allclose(
        getattr(other, predict)(X * units) / scale, getattr(one, predict)(X), rtol=1e-6
    )


@both
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_what_is_no_number_is_refused_in_the_words_of_scikit_learn(kind, value, word):
    X, y, _ = two_kinds()
    estimator = kind(**quick).fit(X, y)
    bad = X.copy()
    bad[3, 1] = value
    for call in (lambda: kind().fit(bad, y), lambda: estimator.predict(bad)):
        with pytest.raises(ValueError, match=f"Input X contains {word}"):
            call()


def test_targets_that_are_no_numbers():
    X, _, y = two_kinds()
    y[2] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN"):
        AlraoRegressor().fit(X, y)
    with pytest.raises(ValueError, match="Unknown label type"):
        AlraoClassifier().fit(X, np.arange(60) / 7)


@both
def test_before_fit(kind):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        kind().predict(np.ones((2, 2)))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"copies": 0}, "copies"),
        ({"max_iter": 0}, "max_iter"),
        ({"batch_size": "all"}, "batch_size"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"hidden_layer_sizes": "wide"}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (8, 0)}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (8, 1.5)}, "hidden_layer_sizes"),
        ({"n_iter_no_change": -1}, "n_iter_no_change"),
        ({"random_state": "seed"}, "random_state"),
    ],
)
@both
def test_wrong_arguments(kind, options, name):
    X, y, _ = two_kinds()
    with pytest.raises(ValueError, match=name):
        kind(**options).fit(X, y)


@both
def test_a_wrong_interval_is_refused_in_our_words(kind):
    X, y, _ = two_kinds()
    with pytest.raises(ValueError, match="from low to high"):
        kind(lr=(1.0, 0.1)).fit(X, y)


def test_the_network_can_be_used_without_the_estimator():
    X, y, _ = two_kinds()
    X = np.column_stack([X * 100 + 5, np.ones(len(X))])
    classifier = AlraoClassifier(random_state=0, max_iter=2).fit(X, y)
    standardised = torch.from_numpy((X - classifier.input_mean_) / classifier.input_scale_)
    with torch.no_grad():
        probabilities = classifier.network_(standardised).softmax(1).numpy()
    np.testing.assert_allclose(probabilities, classifier.predict_proba(X), rtol=1e-6)
    assert not hasattr(AlraoClassifier(), "input_mean_")


def linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs)


@both
def test_the_losses_of_each_iteration_are_kept_and_printed(kind, capsys):
    X, _, _ = two_kinds()
    estimator = fitted(kind, X)
    assert capsys.readouterr().out == ""
    assert len(estimator.loss_curve_) == estimator.n_iter_
    assert estimator.loss_curve_[-1] < estimator.loss_curve_[0]
    again = fitted(kind, X, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("Iteration ") for line in lines] == [True] * again.n_iter_
    assert all(f"loss = {loss:.8f}" in line for loss, line in zip(again.loss_curve_, lines, strict=True))
    assert again.loss_curve_ == estimator.loss_curve_


@both
def test_a_network_a_decay_and_a_device_of_ones_own(kind):
    X, _, _ = two_kinds()
    estimator = fitted(kind, X, network=linear, weight_decay=0.1, device="cpu")
    assert not any(isinstance(layer, torch.nn.ReLU) for layer in estimator.network_.modules())
    assert estimator.score(X, X[:, 0] > np.median(X[:, 0]) if kind is AlraoClassifier else X[:, 0]) > 0.5
    (group,) = estimator._tabular.optimizer.param_groups
    assert group["weight_decay"] == 0.1
    assert (group["params"][0].device.type, group["lr"]) == ("cpu", 1.0)
    with pytest.raises(TypeError, match=r"function of the numbers of inputs.*got a Linear: pass "):
        fitted(kind, X, network=linear(4, 1))
    with pytest.raises(RuntimeError, match="nowhere"):
        fitted(kind, X, device="nowhere")
