"""The scikit-learn estimators: its own checks, learning, hard data, its conventions, and their parts."""

import copy
import doctest
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sklearn", minversion="1.6", reason="needs alrao[sklearn]")

from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.estimator_checks import parametrize_with_checks

import alrao
import alrao.integrations.sklearn
from alrao.integrations._tabular import Scale, Table, Tabular, held_out
from alrao.integrations.sklearn import AlraoClassifier, AlraoRegressor

quick = {"max_iter": 15, "n_iter_no_change": 5}
both = pytest.mark.parametrize("kind", [AlraoClassifier, AlraoRegressor])


def two_kinds(samples=60, features=4, seed=0):
    rng = np.random.RandomState(seed)
    X = rng.randn(samples, features)
    return X, (X[:, 0] > 0).astype(int), X[:, 0] + 0.1 * rng.randn(samples)


def fitted(kind, X, **options):
    labels, numbers = (X[:, 0] > np.median(X[:, 0])).astype(int), X[:, 0]
    return kind(**{**quick, "random_state": 0, **options}).fit(
        X, labels if kind is AlraoClassifier else numbers
    )


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


# In the way of scikit-learn.


@both
def test_a_seed_decides_everything(kind):
    X, *_ = two_kinds()
    one, other, third = (fitted(kind, X, random_state=seed) for seed in (3, 3, 4))
    probe = "predict_proba" if kind is AlraoClassifier else "predict"
    assert (getattr(one, probe)(X) == getattr(other, probe)(X)).all()
    assert (getattr(one, probe)(X) != getattr(third, probe)(X)).any()


@both
def test_torch_is_left_as_it_was(kind):
    X, *_ = two_kinds()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    before = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    fitted(kind, X).predict(X)
    assert torch.equal(torch.rand(3), expected)
    assert (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()) == before


@both
def test_whatever_torch_is_set_to(kind):
    X, *_ = two_kinds()
    expected = fitted(kind, X).predict(X)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.no_grad(), torch.device("meta"):
            assert (fitted(kind, X).predict(X) == expected).all()
        with torch.inference_mode():
            assert (fitted(kind, X).predict(X) == expected).all()
    finally:
        torch.set_default_dtype(torch.float32)


@both
def test_threads_do_not_disturb_each_other(kind):
    X, *_ = two_kinds()
    expected = fitted(kind, X).predict(X)
    found = [None] * 4

    def work(i):
        found[i] = fitted(kind, X).predict(X)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((each == expected).all() for each in found)


@both
@pytest.mark.parametrize("way", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_and_pickles_go_on_alike(kind, way):
    X, y, _ = two_kinds()
    estimator = fitted(kind, X)
    twin = way(estimator)
    assert (twin.predict(X) == estimator.predict(X)).all()
    assert (twin.partial_fit(X, y).predict(X) == estimator.partial_fit(X, y).predict(X)).all()


def test_clone_pipeline_and_search():
    X, y, _ = two_kinds(90)
    estimator = AlraoClassifier(copies=3, random_state=0, **quick)
    assert clone(estimator).get_params() == estimator.get_params()
    pipeline = make_pipeline(PolynomialFeatures(2), estimator)
    search = GridSearchCV(pipeline, {"alraoclassifier__copies": [2, 4]}, cv=2, scoring="roc_auc")
    assert search.fit(X, y).best_score_ > 0.7


@both
def test_frames_with_names(kind):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    X, y, _ = two_kinds()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    estimator = kind(**quick).fit(frame, pandas.Series(y))
    assert estimator.feature_names_in_.tolist() == list("abcd")
    assert len(estimator.predict(frame)) == 60
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(frame[list("dcba")])


def test_series_of_words():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    X, y, _ = two_kinds(80)
    words = pandas.Series(np.where(y, "yes", "no"))
    for series in (words, words.astype("category")):
        assert AlraoClassifier(random_state=0, max_iter=30).fit(X, series).score(X, series) > 0.8


@both
def test_weights(kind):
    X, y, _ = two_kinds(80)
    weights = np.r_[np.ones(40), np.zeros(40)]
    options = {"random_state": 0, **quick}
    without = kind(**options).fit(X[:40], y[:40])
    assert (kind(**options).fit(X, y, sample_weight=weights).predict(X) == without.predict(X)).all()
    scaled = kind(**options).fit(X, y, sample_weight=weights * 2**20)
    assert (scaled.predict(X) == without.predict(X)).all()
    with pytest.raises(ValueError, match="at least one non-zero"):
        kind().fit(X, y, sample_weight=np.zeros(80))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        kind().fit(X, y, sample_weight=-weights)


def test_weight_draws_the_prediction():
    X = np.zeros((40, 1))
    y = np.r_[np.zeros(20), np.ones(20)]
    options = {"random_state": 0, "max_iter": 60}
    share = AlraoClassifier(**options).fit(X, y, sample_weight=1 + 8 * y).predict_proba(X[:1])[0, 1]
    assert share == pytest.approx(0.9, abs=0.05)
    value = AlraoRegressor(**options).fit(X, y, sample_weight=1 + 8 * y).predict(X[:1])[0]
    assert value == pytest.approx(0.9, abs=0.08)


@both
def test_warm_start_goes_on(kind):
    X, y, _ = two_kinds()
    estimator = kind(warm_start=True, random_state=0, max_iter=2).fit(X, y)
    network = estimator._tabular
    assert estimator.fit(X, y)._tabular is network
    assert estimator.set_params(warm_start=False).fit(X, y)._tabular is not network


def test_warm_start_with_other_classes_or_targets():
    X, y, _ = two_kinds()
    estimator = AlraoClassifier(warm_start=True, **quick).fit(X, y)
    with pytest.raises(ValueError, match="warm_start can only be used where"):
        estimator.fit(X, y + 1)
    regressor = AlraoRegressor(warm_start=True, **quick).fit(X, y)
    with pytest.raises(ValueError, match="shape"):
        regressor.fit(X, np.stack([y, y], 1))
    with pytest.raises(ValueError, match="expecting 4 features"):
        regressor.fit(X[:, :2], y)


def test_partial_fit_learns_from_a_stream():
    rng = np.random.RandomState(0)
    classifier, regressor = AlraoClassifier(random_state=0), AlraoRegressor(random_state=0)
    for part in range(80):
        X = rng.randn(40, 3) * [1.0, 100.0, 0.01] + [part / 20, 0, 5]
        numbers = 1000 + 50 * X[:, 0] - X[:, 1]
        classifier.partial_fit(X, np.where(X[:, 1] > 0, "up", "down"), classes=["up", "down", "none"])
        regressor.partial_fit(X, numbers)
    assert classifier.score(X, np.where(X[:, 1] > 0, "up", "down")) > 0.8
    assert classifier.predict_proba(X).shape == (40, 3)
    assert regressor.score(X, numbers) > 0.8
    assert classifier.n_iter_ == 80


def test_partial_fit_and_classes():
    X, y, _ = two_kinds()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        AlraoClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="not in `classes`"):
        AlraoClassifier().partial_fit(X, y + 1, classes=[0, 1])
    classifier = AlraoClassifier(**quick).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="not the same as on last call"):
        classifier.partial_fit(X, y, classes=[0, 1, 2])


@both
@pytest.mark.parametrize(
    "options",
    [{"lr": "fast"}, {"lr": -1.0}, {"lr": None}, {"copies": 0}, {"copies": 2.5}, {"max_iter": 0}],
    ids=str,
)
def test_bad_parameters_are_answered_as_by_scikit_learn(kind, options):
    X, labels, _ = two_kinds()
    (name,) = options
    with pytest.raises(InvalidParameterError, match=f"The '{name}' parameter of {kind.__name__} must be"):
        kind(**options).fit(X, labels)


@both
@pytest.mark.parametrize(
    "lr", ["auto", 0.01, (1e-4, 1e-1), [1e-4, 1e-1], alrao.LogUniform(1e-4, 1e-1)], ids=str
)
@pytest.mark.filterwarnings("ignore:.*the same rate:UserWarning")
def test_rates_of_every_kind(kind, lr):
    X, _, _ = two_kinds()
    estimator = fitted(kind, X, lr=lr)
    assert np.isfinite(estimator.predict(X)).all()
    assert isinstance(estimator._tabular.optimizer, alrao.Auto if lr == "auto" else alrao.Adam)


@both
def test_the_default_is_auto(kind):
    X, _, _ = two_kinds()
    assert isinstance(fitted(kind, X)._tabular.optimizer, alrao.Auto)


# The parts.


@settings(max_examples=60, deadline=None)
@given(
    cut=st.integers(1, 29),
    scale=st.sampled_from([1e-200, 1e-8, 1.0, 1e100, 1e200]),
    shift=st.floats(-100, 100),
    seed=st.integers(0, 2**31),
)
def test_means_and_deviations_are_gathered_from_parts(cut, scale, shift, seed):
    rng = np.random.RandomState(seed)
    plain, weights = rng.randn(30, 3) + shift, rng.rand(30) + 0.01
    x = plain * scale
    mean = np.average(plain, axis=0, weights=weights)
    deviation = np.sqrt(np.average((plain - mean) ** 2, axis=0, weights=weights))
    for found in (
        Scale.of(x, weights),
        Scale.of(x[:cut], weights[:cut]).merged(Scale.of(x[cut:], weights[cut:])),
    ):
        np.testing.assert_allclose(found.mean / scale, mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.deviation / scale, deviation, rtol=1e-7)


@pytest.mark.parametrize("evaluating", [True, False])
@pytest.mark.parametrize(("lr", "passes"), [((1e-4, 0.1), 3), ("auto", 3), ("auto", 150)])
@pytest.mark.parametrize("classify", [True, False])
def test_other_units_leave_the_predictions_as_they_are(classify, lr, passes, evaluating):
    """And under Auto those of the averaged weights, the training weights and those that they are made of."""
    rng = np.random.RandomState(0)
    tabular = Tabular(3, 2, [16], classify=classify, copies=4, lr=lr, seed=0)
    x = rng.randn(50, 3)
    y = rng.randint(2, size=50) if classify else rng.randn(50, 2)
    ones = np.ones(50)
    was, now = Scale.of(x, ones), Scale.of(x * [2, 5, 0.1] + 3, ones)
    y_was, y_now = (Scale.of(np.asarray(y, float).reshape(50, -1) * k + k, ones) for k in (1, 3))
    table = Table(
        torch.tensor(was.apply(x)).float(), torch.tensor(y).float() if not classify else torch.tensor(y),
        torch.ones(50),
    )  # fmt: skip
    tabular.pass_over(table, 16, passes)

    def predictions(scale, of_targets):
        def of(network):
            out = network(torch.tensor(scale.apply(x)).to(next(network.parameters()).dtype))
            out = out.as_subclass(torch.Tensor).detach().double().numpy()
            return out if classify else out * of_targets.unit + of_targets.mean

        found = [of(tabular.plain())]
        for key in ("z", "start"):
            kept = copy.deepcopy(tabular.model)
            for p, q in zip(kept.parameters(), tabular.model.parameters(), strict=True):
                p.data = tabular.optimizer.state.get(q, {}).get(key, q.data)
            found.append(of(kept))
        return [*found, of(tabular.model.train())]

    tabular.model.train(not evaluating)
    before = predictions(was, y_was)
    tabular.model.train(not evaluating)
    tabular.rescale(was, now, None if classify else (y_was, y_now))
    for found, expected in zip(predictions(now, y_now), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    if lr == "auto" and passes == 150:  # the search is over
        assert np.abs(before[0] - before[-1]).max() > 1e-3, "averaged and training weights differ"


def test_without_scikit_learn_the_remedy_is_named():
    code = (
        "import sys; sys.modules['sklearn.base'] = None\n"
        "try: import alrao.integrations.sklearn\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'alrao[sklearn]'" in done.stdout
