"""Notice a learning rate that is written where the optimizers expect a factor."""

from __future__ import annotations

from math import inf
from typing import Any

from torch import Tensor

from ..warn import warn

__all__ = ["HIGHEST", "LOW", "FactorWatch", "check_factor"]

HIGHEST = "highest_lr"
"""The key of a group's highest factor so far; in the group, so that a resumed run knows it."""

LOW = 0.1
"""A program whose factor never exceeds this has probably written a learning rate."""

PATIENCE = 100
"""The fewest steps before a warning; in proportion to the highest factor from 0.01 on, 1000 for 0.1."""

WARMED_UP = 1e-3
"""A warm-up of a scheduler has passed this factor after :data:`PATIENCE` steps."""

REMEDY = (
    "It is a factor on all rates, 1.0 at the start, and not a learning rate. Write 1.0 where the program has "
    "its highest learning rate (lr=1.0, learning_rate=1.0, max_lr=1.0) and scale the others with it; "
    "for lower rates pass a lower interval to the optimizer"
)


def check_factor(lr: Any) -> bool:
    """Return whether a factor is a usable one, after a warning if it is probably a learning rate."""
    if isinstance(lr, bool | str) or not hasattr(lr, "__float__") or not 0 <= float(lr) < inf:
        raise ValueError(
            f"lr of Auto is a factor on the rates that it finds, a finite number of at least 0, got {lr!r}: "
            "leave it out, or use alrao.AdamW(model, lr=(1e-5, 1e-2)) for an interval"
        )
    if lr < LOW:
        warn(f"Auto was built with lr={float(lr):g}. {REMEDY}")
    return bool(lr >= LOW)


class FactorWatch:
    """Looks at the factor of each step until it is high enough, or has been too low for too long.

    A scheduler of torch that starts from 1.0 may rise in a warm-up, or hold a low factor for a whole epoch of
    it: there only steps below the maximum count, or all while the factor is tiny. A program that writes the
    factor itself has as many steps as its highest factor so far allows.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._idle = 0

    def look(self, groups: list[dict[str, Any]]) -> bool:
        """Return whether to look again at the next step, after a warning where one is due."""
        if any(isinstance(group["lr"], Tensor) or HIGHEST not in group for group in groups):
            return False  # on a device, or from a state without it
        peak, now = (max(group[key] for group in groups) for key in (HIGHEST, "lr"))
        planned = max((group.get("max_lr", 1.0) for group in groups), default=1.0)
        self._steps += 1
        relative = all(group.get("initial_lr") == 1.0 for group in groups)
        self._idle += now > 0 and (now < peak or not relative or now < WARMED_UP)
        if now > peak:
            for group in groups:
                group[HIGHEST] = now
            peak = now
        if planned <= LOW:
            warn(f"the highest value planned for param_groups[…]['lr'] is max_lr={planned:g}. {REMEDY}")
            return False
        if peak <= LOW and self._idle >= max(PATIENCE, 1e4 * peak):
            warn(f"param_groups[…]['lr'] was at most {peak:.3g} in {self._steps} steps. {REMEDY}")
            return False
        return peak <= LOW
