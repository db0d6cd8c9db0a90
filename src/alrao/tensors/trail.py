"""Where outputs of a model last became plain tensors, for the message when the loss is refused."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import Tensor

__all__ = ["clear", "places", "record"]

_MOST = 4
_PLACES: dict[str, None] = {}


def record(op: Any, result: Any) -> None:
    """Record the user's line if the result of an operation on an output is a plain tensor of real numbers."""
    if isinstance(result, Tensor) and result.is_floating_point():
        place = f"{_name(op)} at {_line()}"
        _PLACES.pop(place, None)
        _PLACES[place] = None
        if len(_PLACES) > _MOST:
            del _PLACES[next(iter(_PLACES))]


def places() -> list[str]:
    """Return the last places, in their order."""
    return list(_PLACES)


def clear() -> None:
    """Forget them."""
    _PLACES.clear()


def _name(op: Any) -> str:
    name: str = getattr(op, "__name__", str(op))
    owner = getattr(op, "__objclass__", None)
    return f"Tensor.{name}" if owner is not None else name


def _line() -> str:
    """Return the innermost line that is neither alrao's nor torch's."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in {"alrao", "torch"}:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
