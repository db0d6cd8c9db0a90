"""What all tests share."""

import os

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 products end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from support.skips import pytest_unconfigure  # noqa: F401  # the line about skipped tests

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test draws the same numbers, whatever ran before it."""
    torch.manual_seed(0)
