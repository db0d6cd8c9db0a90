"""What takes the place of scikit-learn's MLPClassifier in its examples."""

from __future__ import annotations

from typing import Any, Self

from sklearn.metrics import log_loss  # type: ignore[import-untyped]

from alrao.integrations.sklearn import AlraoClassifier


class MLPClassifier(AlraoClassifier):
    """AlraoClassifier with the arguments and the attributes that the examples use; rates are ignored."""

    def __init__(self, *, random_state: Any = None, max_iter: int = 200, **ignored: Any) -> None:
        super().__init__((100,), max_iter=max_iter, validation_fraction=0.0, random_state=random_state)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit, and keep the loss on the same data."""
        super().fit(X, y, sample_weight)
        self.loss_ = float(log_loss(y, self.predict_proba(X)))
        self.loss_curve_ = [self.loss_]
        return self
