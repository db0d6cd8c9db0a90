"""Zoom in the workbench: its options as a word of the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from torch.optim import Optimizer

import alrao

from .errors import LabError, unknown
from .settings import spelled

__all__ = ["Zooming"]


@dataclass(frozen=True)
class Zooming:
    """How the interval narrows in a run: ``part=0.15,width=3,memory=0.5``."""

    part: float = 0.15
    """Of the training, during which it does."""
    width: float = 3.0
    copies: float = 300.0
    """The width for the copies; inf where they keep the whole interval."""
    memory: float = 0.5
    """Of that part, over which the centre is averaged."""
    rewind: float = 1
    """1, or 0 for not."""
    mode: float = 0
    """1 to follow the posterior's mode, 0 its mean."""

    @classmethod
    def parse(cls, text: str) -> Zooming:
        """Read ``name=number`` pairs; ``default`` is none of them.

        Raises:
            LabError: a name is unknown or comes twice, or its number is out of range.
        """
        names = [field.name for field in fields(cls)]
        given: dict[str, float] = {}
        for pair in () if text == "default" else text.split(","):
            name, _, number = pair.strip().partition("=")
            if name not in names:
                raise unknown("option of --zoom", name, names)
            if name in given:
                raise LabError(f"--zoom has {name} twice: leave one out")
            try:
                given[name] = float(number)
            except ValueError:
                example = f"--zoom {name}={spelled(getattr(cls, name))}"
                raise LabError(f"--zoom takes numbers, as in {example}, got {pair!r}") from None
        zooming = cls(**given)
        if not 0 < zooming.part <= 1:
            raise LabError(f"--zoom part must lie between 0 and 1, got {zooming.part:g}")
        if not 1 <= zooming.width < inf:
            raise LabError(f"--zoom width must be at least 1, got {zooming.width:g}")
        if not zooming.copies >= 1:
            raise LabError(f"--zoom copies, a width, must be at least 1, got {zooming.copies:g}")
        if not 0 < zooming.memory < inf:
            raise LabError(f"--zoom memory must be positive, got {zooming.memory:g}")
        for name in ("rewind", "mode"):
            if getattr(zooming, name) not in (0, 1):
                raise LabError(f"--zoom {name} must be 0 or 1, got {getattr(zooming, name):g}")
        return zooming

    def __str__(self) -> str:
        """The one spelling: what differs from the default."""
        said = [
            f"{field.name}={spelled(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(said) or "default"

    def scheduler(self, optimizer: Optimizer, steps: int) -> alrao.Zoom:
        """For a training of so many steps."""
        shrinking = max(1, round(self.part * steps))
        return alrao.Zoom(
            optimizer,
            shrinking,
            width=self.width,
            copies=self.copies,
            memory=max(1.0, self.memory * shrinking),
            rewind=bool(self.rewind),
            follow="mode" if self.mode else "mean",
        )
