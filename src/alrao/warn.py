"""Warnings that point to the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = ["users_frame", "warn"]


def users_frame() -> tuple[int, FrameType]:
    """Return the innermost line that is neither alrao's nor torch's, and how many calls it is away."""
    level, frame = 0, sys._getframe()
    while frame.f_back is not None and _package(frame) in {"alrao", "torch"}:
        level, frame = level + 1, frame.f_back
    return level, frame


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__") or ""  # code that was compiled from text has none
    return name.partition(".")[0]


def warn(message: str) -> None:
    """Warn at the innermost line that is neither alrao's nor torch's, where the user can act."""
    level, _ = users_frame()
    warnings.warn(message, stacklevel=level)
