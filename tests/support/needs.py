"""What some tests need, and how to get it. `make test` ends with the reasons of what was skipped."""

import os
import shutil
from pathlib import Path

import pytest
import torch

# Where Chromium is, under any of its names.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CHROMIUM") or next((path for name in _NAMES if (path := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is missing (apt-get install chromium, or set CHROMIUM to its path)"
)

# The folder of data, as it was when the tests started: some of them take the variable away.
DATA = Path(os.environ.get("ALRAO_DATA") or "nowhere")
needs_cifar10 = pytest.mark.skipif(
    not DATA.is_dir(), reason="CIFAR-10 is missing (set ALRAO_DATA to a folder with it)"
)


def needs_file(name):
    return pytest.mark.skipif(
        not (DATA / name).is_file(), reason=f"{name} is missing (set ALRAO_DATA to a folder with it)"
    )


# Newer versions of torch than the oldest one that is supported.


def needs_torch(version, what):
    return pytest.mark.skipif(torch.__version__ < version, reason=f"{what} needs torch {version} or newer")


needs_muon = needs_torch("2.9", "Muon")
needs_compile = needs_torch("2.10", "torch.compile of an Alrao model")

# Before torch 2.9, SequentialLR itself passes the argument that it warns of.
ignore_sequential_warning = pytest.mark.filterwarnings(
    r"ignore:The epoch parameter in `scheduler.step\(\)`:UserWarning"
)
