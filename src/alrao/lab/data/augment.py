"""The paper's augmentation of CIFAR-10."""

from __future__ import annotations

import torch
from torch import Tensor

BAND = 4
"""The widest band, in pixels."""


def flip_and_frame(images: Tensor, generator: torch.Generator) -> Tensor:
    r"""Each image flipped with probability ½, and a black band of random width on each of its four sides.

    The widths are independent and uniform on 0, …, 4. Black is 0, so this comes before any normalisation.

    Images are (n, channels, height, width) on any device; the generator is on the CPU: all draw alike.
    """
    n, _, height, width = images.shape
    flips = torch.randint(2, (n,), generator=generator)
    top, bottom, left, right = torch.randint(BAND + 1, (4, n, 1), generator=generator)
    rows, columns = torch.arange(height), torch.arange(width)
    keep_rows = ((rows >= top) & (rows < height - bottom)).to(images)
    keep_columns = ((columns >= left) & (columns < width - right)).to(images)
    keep = keep_rows[:, None, :, None] * keep_columns[:, None, None, :]
    chosen = (torch.arange(n) + n * flips).to(images.device)
    return torch.cat([images, images.flip(-1)]).index_select(0, chosen).mul_(keep)
