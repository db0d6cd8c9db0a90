"""Where outputs of a model last became plain tensors, for the message when the loss is refused."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..warn import user_frame

_MOST = 4
_PLACES: dict[str, None] = {}


def record(op: Any, result: Any) -> None:
    """Record the user's line if the result of an operation on an output is a plain tensor of real numbers."""
    if torch.compiler.is_compiling() or not (isinstance(result, Tensor) and result.is_floating_point()):
        return
    frame, _ = user_frame()
    name = f"{'Tensor.' if hasattr(op, '__objclass__') else ''}{getattr(op, '__name__', op)}"
    place = f"{name} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
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
