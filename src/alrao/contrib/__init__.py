"""Kept and tested, but not part of the top level: ``Zoom``, which narrows the interval of rates."""

from .zoom import Zoom

__all__ = ["Zoom"]
