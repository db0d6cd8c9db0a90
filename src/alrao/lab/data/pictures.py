"""Decoding of image files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LabError, missing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["EXTENSIONS", "decode"]

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the names of image files, as torchvision has them."""


def decode(content: bytes | Path, name: str) -> Image:
    """An image in RGB, from the content of a file or the file itself.

    Raises:
        LabError: it is no image, or a damaged one; the message has the name.
    """
    try:
        import PIL.Image
    except ImportError:
        raise missing("pillow", "lab", "reading images") from None
    try:
        with PIL.Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever they come upon
        raise LabError(f"{name} is not an image, or damaged ({error}): replace or remove it") from error
