"""What takes the place of scikit-learn's MLPClassifier in its examples."""

from __future__ import annotations

from typing import Any, Self

from alrao.integrations._tabular import STEPS
from alrao.integrations.sklearn import AlraoClassifier

BATCH = 200
"""The batch of MLPClassifier, or all samples where there are fewer."""


class MLPClassifier(AlraoClassifier):
    """AlraoClassifier with the arguments and the attributes that the examples use; rates are ignored.

    It takes the batches of scikit-learn's, and no more steps.
    """

    def __init__(self, *, random_state: Any = None, max_iter: int = 200, **ignored: Any) -> None:
        super().__init__((100,), max_iter=max_iter, validation_fraction=0.0, random_state=random_state)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit, in the steps that scikit-learn takes."""
        asked, self.batch_size = self.max_iter, min(BATCH, len(X))
        passes = max(1, round(STEPS / max(1, round(len(X) / self.batch_size))))  # of an iteration
        self.max_iter = max(1, asked // passes)
        super().fit(X, y, sample_weight)
        self.max_iter = asked
        return self
