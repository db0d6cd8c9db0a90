"""Warnings that point to the user's line."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warn at the innermost line that is neither alrao's nor torch's, where the user can act."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in {"alrao", "torch"}:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
