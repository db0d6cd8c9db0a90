"""Widths of layers."""

from __future__ import annotations

import math

from ..errors import LabError


def scaled(channels: int, width: float) -> int:
    """Return a number of channels times a width multiplier, rounded and at least 1."""
    if not 0 < width < math.inf:
        raise LabError(f"a width multiplies the number of channels and must be positive, got {width}")
    return max(1, round(channels * width))
