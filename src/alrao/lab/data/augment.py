"""The paper's augmentation of CIFAR-10."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BAND", "flip_and_frame"]

BAND = 4
"""The widest band, in pixels."""


def flip_and_frame(images: Tensor, generator: torch.Generator) -> Tensor:
    r"""Each image flipped with probability ½, and a black band of random width on each of its four sides.

    The widths are independent and uniform on 0, …, 4. Black is 0, so this comes before any normalisation.

    Args:
        images: (n, channels, height, width), of any type, on any device.
        generator: on the CPU, whatever the images' device, so that all draw alike.

    Returns:
        New images of the same type and shape.
    """
    n, _, height, width = images.shape
    flips = torch.randint(2, (n, 1, 1, 1), generator=generator, dtype=torch.bool)
    bands = torch.randint(BAND + 1, (4, n, 1), generator=generator)
    flips, bands = flips.to(images.device), bands.to(images.device)
    top, bottom, left, right = bands
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    keep_rows = (rows >= top) & (rows < height - bottom)
    keep_columns = (columns >= left) & (columns < width - right)
    keep = keep_rows[:, None, :, None] & keep_columns[:, None, None, :]
    return torch.where(flips, images.flip(-1), images) * keep
