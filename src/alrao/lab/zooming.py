"""Zoom in the workbench: its options as a word of the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from torch.optim import Optimizer

import alrao

from .errors import LabError, unknown

__all__ = ["Zooming"]


@dataclass(frozen=True)
class Zooming:
    """How the interval narrows in a run: ``part=0.15,width=3,memory=100``."""

    part: float = 0.15
    """Of the training, during which it does."""
    width: float = 3.0
    memory: float = 100.0
    rewind: float = 1
    """1, or 0 for not."""

    @classmethod
    def parse(cls, text: str) -> Zooming:
        """Read ``name=number`` pairs; ``default`` is none of them.

        Raises:
            LabError: a name is unknown, or its number out of range.
        """
        names = [field.name for field in fields(cls)]
        given = {}
        for pair in () if text == "default" else text.split(","):
            name, _, number = pair.strip().partition("=")
            if name not in names:
                raise unknown("option of --zoom", name, names)
            try:
                given[name] = float(number)
            except ValueError:
                example = f"--zoom {name}={getattr(cls, name):g}"
                raise LabError(f"--zoom takes numbers, as in {example}, got {pair!r}") from None
        zooming = cls(**given)
        if not 0 < zooming.part <= 1:
            raise LabError(f"--zoom part must lie between 0 and 1, got {zooming.part:g}")
        for name in ("width", "memory"):
            if not 1 <= getattr(zooming, name) < inf:
                raise LabError(f"--zoom {name} must be at least 1, got {getattr(zooming, name):g}")
        if zooming.rewind not in (0, 1):
            raise LabError(f"--zoom rewind must be 0 or 1, got {zooming.rewind:g}")
        return zooming

    def __str__(self) -> str:
        """The one spelling: what differs from the default."""
        said = [
            f"{field.name}={getattr(self, field.name):g}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(said) or "default"

    def scheduler(self, optimizer: Optimizer, steps: int) -> alrao.Zoom:
        """For a training of so many steps."""
        shrinking = max(1, round(self.part * steps))
        return alrao.Zoom(
            optimizer, shrinking, width=self.width, memory=self.memory, rewind=bool(self.rewind)
        )
