"""What all tests share."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test draws the same numbers, whatever ran before it."""
    torch.manual_seed(0)
