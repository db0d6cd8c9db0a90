"""Marks for tests that need a newer torch than the oldest supported one."""

import pytest
import torch


def needs_torch(version, what):
    return pytest.mark.skipif(torch.__version__ < version, reason=f"{what} needs torch {version} or newer")


needs_muon = needs_torch("2.9", "Muon")
needs_compile = needs_torch("2.10", "torch.compile of an Alrao model")

# Before torch 2.9, SequentialLR itself passed the argument that it warns of.
ignore_sequential_warning = pytest.mark.filterwarnings(
    r"ignore:The epoch parameter in `scheduler.step\(\)`:UserWarning"
)
