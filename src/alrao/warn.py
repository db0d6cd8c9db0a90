"""The user's line: where warnings point to, and messages."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def user_frame() -> tuple[FrameType, int]:
    """Return the innermost frame that is neither alrao's nor torch's, and how far out of the caller it is."""
    level, frame = 0, sys._getframe()
    while frame.f_back is not None and _package(frame) in {"alrao", "torch"}:
        level, frame = level + 1, frame.f_back
    return frame, level


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__") or ""  # code that was compiled from text has none
    return name.partition(".")[0]


def warn(message: str) -> None:
    """Warn at the innermost line that is neither alrao's nor torch's, where the user can act."""
    warnings.warn(message, stacklevel=user_frame()[1])
