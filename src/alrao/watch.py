"""Notice that another optimizer than alrao's trains the copies of a head."""

from __future__ import annotations

from operator import attrgetter

from torch import Tensor, nn

from .warn import warn

__all__ = ["StepWatch", "version_of"]

version_of = attrgetter("_version")
"""torch's count of the changes of a tensor in place."""

CHANGES = 3
"""How many times the weights must have changed from one forward pass to the next: once may be by hand."""


class StepWatch:
    """Counts changes of a head's weights between forward passes, until an optimizer of alrao steps.

    torch counts the changes of a tensor in place, so nothing is read from a device. Weights that are loaded,
    or moved to another device or type, do not count.
    """

    def __init__(self) -> None:
        self._seen: tuple[Tensor, Tensor, int, int] | None = None
        self._changes = 0

    def look(self, weight: nn.Parameter, leaf: Tensor, loads: int) -> bool:
        """Return whether to look again, after a warning where one is due.

        Args:
            weight: a parameter of the head.
            leaf: its leaf for the evidence, which is replaced when the head is moved.
            loads: how many times weights have been loaded.
        """
        if type(weight) is not nn.Parameter or weight.is_inference() or not weight.requires_grad:
            return True  # a shard is gathered again for each pass
        now = (weight, leaf, loads, version_of(weight))
        before, self._seen = self._seen, now
        if before is None or before[0] is not weight or before[1] is not leaf or before[2] != loads:
            self._changes = 0
        elif before[3] != now[3]:
            self._changes += 1
        if self._changes < CHANGES:
            return True
        warn(
            f"the copies of the head were changed {CHANGES} times, but not by an optimizer of alrao, so the "
            "posterior stays uniform and no rates are drawn. Give the program alrao.AdamW(model) in place of "
            "torch.optim.AdamW(model.parameters()), alrao.SGD(model) in place of torch.optim.SGD, or "
            "alrao.PerFeature(torch.optim.NAdam, model) for any other"
        )
        return False
