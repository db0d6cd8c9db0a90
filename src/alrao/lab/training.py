"""The interface between the training loop and a problem: steps, evaluation, state, progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .learner import Learner

Measures = dict[str, float | None]


class Training(ABC):
    """A problem in training. The loop decides when to evaluate, to save and to stop."""

    learner: Learner

    @abstractmethod
    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        """Train epoch ``number`` (from 1), of which ``start`` steps are done already.

        Yields:
            After each update, the number of steps made and the loss: None for steps without an update, and
            not finite for an update that was not made.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        """Return the measures on the validation data and on the test data."""

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        """Return training inputs, for BatchNorm statistics that belong to the weights evaluated."""
        return ()

    def end_epoch(self) -> Measures:
        """End an epoch: return the measures of its training, beside the loss."""
        return {}

    def status(self, loss: float | None) -> str | None:
        """Return a text for the progress bar, if it is not to show the mean loss of the epoch so far."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, except the learner's and torch's generators."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def conclude(self, best: dict[str, Tensor] | None) -> dict[str, Any]:
        """Return further entries of the result, given the best weights."""
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
