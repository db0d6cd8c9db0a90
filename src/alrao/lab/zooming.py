"""Zoom in the workbench: its options, as one typed setting of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from torch.optim import Optimizer

import alrao

from .errors import LabError, unknown
from .values import Spelled, spelled

__all__ = ["Zooming"]


@dataclass(frozen=True)
class Zooming(Spelled):
    """How the interval narrows in a run, spelled ``part=0.15,width=3,memory=0.5``."""

    part: float = 0.15
    """The part of the training during which it narrows."""
    width: float = 3.0
    """The width of the interval at the end, as a ratio."""
    copies: float = 300.0
    """The same for the copies of the head; infinite where they keep the whole interval."""
    memory: float = 0.5
    """The time over which the centre is averaged, as a part of ``part``."""
    rewind: bool = True
    mode: bool = False
    """Whether the interval follows the posterior's mode; its mean otherwise."""

    @classmethod
    def parse(cls, text: str) -> Zooming:
        """Read ``name=number`` pairs; ``default`` is none of them.

        Raises:
            LabError: a name is unknown or comes twice, or its number is out of range.
        """
        names = [field.name for field in fields(cls)]
        given: dict[str, Any] = {}
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
        for name in {"rewind", "mode"} & set(given):
            if given[name] not in (0, 1):
                raise LabError(f"--zoom {name} must be 0 or 1, got {given[name]:g}")
            given[name] = bool(given[name])
        return cls(**given)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Zooming:
        """Read an object of JSON, in which a number that is not finite is null."""
        values: dict[str, Any] = {name: inf if value is None else value for name, value in found.items()}
        return cls(**values)

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise LabError(f"--zoom part must lie between 0 and 1, got {self.part:g}")
        if not 1 <= self.width < inf:
            raise LabError(f"--zoom width must be at least 1, got {self.width:g}")
        if not self.copies >= 1:
            raise LabError(f"--zoom copies, a width, must be at least 1, got {self.copies:g}")
        if not 0 < self.memory < inf:
            raise LabError(f"--zoom memory must be positive, got {self.memory:g}")

    def __str__(self) -> str:
        said = [
            f"{field.name}={spelled(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(said) or "default"

    def scheduler(self, optimizer: Optimizer, steps: int) -> alrao.Zoom:
        """Return the scheduler for a training of ``steps`` steps."""
        shrinking = max(1, round(self.part * steps))
        return alrao.Zoom(
            optimizer,
            shrinking,
            width=self.width,
            copies=self.copies,
            memory=max(1.0, self.memory * shrinking),
            rewind=self.rewind,
            follow="mode" if self.mode else "mean",
        )
