"""The augmentation of CIFAR-10 against a literal reference, one image after the other."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.utils.benchmark import Timer

from alrao_lab.tasks.images import flip_and_frame


def reference(images, flips, bands):
    """Each image on its own, in plain loops over rows and columns."""
    images = images.clone()
    for image, flip, (top, bottom, left, right) in zip(images, flips, bands, strict=True):
        _, height, width = image.shape
        if flip:
            image[:] = image.flip(-1)
        for row in range(height):
            for column in range(width):
                if row < top or row >= height - bottom or column < left or column >= width - right:
                    image[:, row, column] = 0
    return images


def draws(n, seed):
    """What a generator of that seed draws."""
    generator = torch.Generator().manual_seed(seed)
    flips = torch.randint(2, (n,), generator=generator)
    bands = torch.randint(5, (4, n, 1), generator=generator)
    return flips.tolist(), bands.squeeze(2).T.tolist()


@given(
    seed=st.integers(0, 2**40),
    n=st.integers(0, 5),
    channels=st.integers(1, 3),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
)
@settings(max_examples=60, deadline=None)
def test_equals_the_reference(seed, n, channels, height, width, dtype):
    generator = torch.Generator().manual_seed(seed + 1)
    images = torch.randint(1, 256, (n, channels, height, width), generator=generator).to(dtype)
    before = images.clone()
    result = flip_and_frame(images, torch.Generator().manual_seed(seed))
    assert result.dtype == dtype
    assert torch.equal(result, reference(images, *draws(n, seed)))
    assert torch.equal(images, before)


def measured(images):
    """Whether each image of increasing columns was flipped, and the widths of its bands."""
    filled_rows, filled_columns = images.any(3)[:, 0].int(), images.any(2)[:, 0].int()
    top, left = filled_rows.argmax(1), filled_columns.argmax(1)
    bottom, right = filled_rows.flip(1).argmax(1), filled_columns.flip(1).argmax(1)
    flips = images[:, 0, 16, 10] > images[:, 0, 16, 20]
    return flips, torch.stack([top, bottom, left, right])


def test_probabilities_are_the_papers():
    n = 20_000
    images = torch.arange(1, 33, dtype=torch.uint8).expand(n, 3, 32, 32)
    flips, bands = measured(flip_and_frame(images, torch.Generator().manual_seed(0)))
    assert flips.float().mean().item() == pytest.approx(0.5, abs=0.02)
    for side in bands:
        frequencies = side.bincount(minlength=5) / n
        assert frequencies.tolist() == pytest.approx([0.2] * 5, abs=0.015)
    together = torch.cat([flips[None].float(), bands.float()])
    assert (torch.corrcoef(together) - torch.eye(5)).abs().max() < 0.03  # independent of one another
    assert torch.corrcoef(torch.stack([bands[0, 1:], bands[0, :-1]]).float())[0, 1].abs() < 0.03


def test_depends_only_on_the_generator():
    images = torch.randint(1, 256, (16, 3, 32, 32), dtype=torch.uint8)
    first, second, other = (flip_and_frame(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.slow
def test_costs_next_to_nothing():
    images = torch.randint(256, (32, 3, 32, 32), dtype=torch.uint8)
    timer = Timer("augment(images, generator)", globals={
        "augment": flip_and_frame, "images": images, "generator": torch.Generator()
    })  # fmt: skip
    assert timer.blocked_autorange(min_run_time=1).median < 0.7e-3
