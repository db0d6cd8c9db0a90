"""A model whose optimizer averages its weights: which of both are in the parameters."""

from __future__ import annotations

import weakref
from typing import Any

from .heads import Head
from .warn import warn
from .wrapper import Wrapper

__all__ = ["AveragedWrapper"]


class AveragedWrapper(Wrapper):
    """A wrapper whose parameters an optimizer may exchange for averaged ones in evaluation mode."""

    head: Head
    """The copies, in the place of the output layer; ``weight`` is ``(copies, classes, d)``."""

    _averager: weakref.ref[Any] | None = None
    """The optimizer that averages the weights, if one does; a copy of the model has none."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_averager"}

    def averaged_by(self, optimizer: Any) -> weakref.ref[Any]:
        """Let an optimizer put its weights for the present mode into the parameters.

        Args:
            optimizer: one with ``place(training)``, ``ignore_load()`` and the context ``averaged()``.

        Returns:
            What :meth:`is_averaged_by` knows it by: no reference that would keep it alive is held.
        """
        self._averager = weakref.ref(optimizer)
        return self._averager

    def is_averaged_by(self, known_as: weakref.ref[Any]) -> bool:
        """Return whether this is the last optimizer that was given to :meth:`averaged_by`."""
        return self._averager is known_as

    def averaging_optimizer(self) -> Any:
        """Return the optimizer that averages the weights, or None."""
        return None if self._averager is None else self._averager()

    def place_weights(self) -> None:
        """Put the weights for the present mode into the parameters, under :class:`Auto`."""
        if self._averager is not None and (optimizer := self._averager()) is not None:
            optimizer.place(self.training)

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
