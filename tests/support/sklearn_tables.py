"""Small tables and estimators fitted to them: shared by the tests of the scikit-learn estimators."""

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="needs alrao[sklearn]")

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
