"""The user's line: where warnings point to, and messages of what has become of a model's output."""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_LOST: deque[str] = deque(maxlen=4)


def user_frame() -> tuple[FrameType, int]:
    """Return the innermost frame that is neither alrao's nor torch's, and how far out of the caller it is."""
    level, frame = 0, sys._getframe()
    while frame.f_back is not None:
        module: str = frame.f_globals.get("__name__") or ""  # code that was compiled from text has none
        if module.partition(".")[0] not in {"alrao", "torch"}:
            break
        level, frame = level + 1, frame.f_back
    return frame, level


def warn(message: str) -> None:
    """Warn at the innermost line that is neither alrao's nor torch's, where the user can act."""
    warnings.warn(message, stacklevel=user_frame()[1])


def note_lost(op: Any, result: Any) -> None:
    """Note the user's line if the result of an operation on an output is a plain tensor of real numbers."""
    if torch.compiler.is_compiling() or not (isinstance(result, Tensor) and result.is_floating_point()):
        return
    frame, _ = user_frame()
    name = f"{'Tensor.' if hasattr(op, '__objclass__') else ''}{getattr(op, '__name__', op)}"
    place = f"{name} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    if place in _LOST:
        _LOST.remove(place)
    _LOST.append(place)


def places_lost() -> list[str]:
    """Return the last places where outputs became plain tensors, in their order."""
    return list(_LOST)


def forget_places() -> None:
    """Forget them."""
    _LOST.clear()
