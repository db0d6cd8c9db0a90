"""A model whose optimizer averages its weights: which of both are in the parameters."""

from __future__ import annotations

from typing import Any

from .heads import Head
from .warn import warn
from .wrapper import Wrapper

__all__ = ["AveragedWrapper"]


class AveragedWrapper(Wrapper):
    """A wrapper whose parameters an optimizer may exchange for averaged ones in evaluation mode."""

    head: Head
    """The copies, in the place of the output layer; ``weight`` is ``(copies, classes, d)``."""

    _averages: Any = None
    """The averaged weights, if an optimizer averages them; a copy of the model has none."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_averages"}

    def averaged_by(self, averages: Any) -> None:
        """Let an optimizer put its weights for the present mode into the parameters, and no other.

        Args:
            averages: an object with ``place(training)`` and ``retire()``, which the model keeps alive.
        """
        if self._averages is not None and self._averages is not averages:
            self._averages.retire()
        self._averages = averages

    @property
    def averages(self) -> Any:
        """The averaged weights, under :class:`Auto`, or None."""
        return self._averages

    def place_weights(self) -> None:
        """Put the weights for the present mode into the parameters, under :class:`Auto`."""
        if self._averages is not None:
            self._averages.place(self.training)

    def hold(self, training: bool) -> None:
        """Ignore a mode that the optimizer is told: the model's own mode selects the weights."""

    def check_gradients(self, averages: bool) -> None:
        """Accept all gradients: every forward pass has the weights for the mode, and may train in any."""

    def warn_of_training_weights(self) -> None:
        """Warn, once, that the averaged weights are not known, if the weights are those of training."""
        if self.head.training_weights:
            self.head.training_weights = False
            warn(
                "the model has the training weights of a run with Auto, and the averaged weights, which "
                "should be evaluated, are not known: call model.eval() before you save or copy a model, or "
                "load the optimizer's state too"
            )
