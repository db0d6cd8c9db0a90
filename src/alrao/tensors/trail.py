"""Where outputs of a model last became plain tensors, for the message when the loss is refused."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import torch
from torch import Tensor

from ..warn import user_frame

_PLACES: deque[str] = deque(maxlen=4)


def record(op: Any, result: Any) -> None:
    """Record the user's line if the result of an operation on an output is a plain tensor of real numbers."""
    if torch.compiler.is_compiling() or not (isinstance(result, Tensor) and result.is_floating_point()):
        return
    frame, _ = user_frame()
    name = f"{'Tensor.' if hasattr(op, '__objclass__') else ''}{getattr(op, '__name__', op)}"
    place = f"{name} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    if place in _PLACES:
        _PLACES.remove(place)
    _PLACES.append(place)


def places() -> list[str]:
    """Return the last places, in their order."""
    return list(_PLACES)


def clear() -> None:
    """Forget them."""
    _PLACES.clear()
