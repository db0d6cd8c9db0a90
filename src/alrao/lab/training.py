"""What the training loop asks of a problem: to make steps, to evaluate, and to save and restore its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .learner import Learner

__all__ = ["Measures", "Moment", "Training", "Watch"]

Measures = dict[str, float | None]


class Training(ABC):
    """A problem in training. The loop decides when to evaluate, to save and to stop."""

    learner: Learner

    @abstractmethod
    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        """Train for an epoch.

        Args:
            number: of the epoch, from 1.
            start: steps of this epoch that are done already.

        Yields:
            After each update, the number of steps made and the loss. A loss of None stands for steps without
            an update; one that is not finite stands for an update that was not made.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        """Return the measures on the validation data and on the test data."""

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        """Training inputs, for BatchNorm statistics that belong to the weights evaluated."""
        return ()

    def end_epoch(self) -> Measures:
        """End an epoch: return the measures of its training, beside the loss."""
        return {}

    def status(self, loss: float | None) -> str | None:
        """A text for the progress bar, if it is not the mean loss so far."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, beside the learner's and torch's generators."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def conclude(self, best: dict[str, Tensor] | None) -> dict[str, Any]:
        """Entries to add to the result, given the best weights."""
        return {}


@dataclass(frozen=True)
class Moment:
    """The state of a run after a step, for a progress bar."""

    epoch: int
    epochs: int
    step: int
    """Within the epoch."""
    steps: int
    loss: float
    """Mean training loss of the epoch so far."""
    last: dict[str, Any] | None
    """The line of the last complete epoch."""
    learner: Learner
    shown: str | None = None
    """The text to show in place of the loss."""


Watch = Callable[[Moment], None]
