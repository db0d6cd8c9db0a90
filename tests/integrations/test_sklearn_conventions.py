"""The scikit-learn estimators: the ways of scikit-learn that they keep to, and the parts they are made of."""

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sklearn", minversion="1.6", reason="needs alrao[sklearn]")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils._param_validation import InvalidParameterError
from support.sklearn_tables import both, fitted, quick, two_kinds

import alrao
from alrao.integrations._tabular import Scale, Table, Tabular
from alrao.integrations.sklearn import AlraoClassifier, AlraoRegressor

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
