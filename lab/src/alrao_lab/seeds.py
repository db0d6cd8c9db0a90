"""Random numbers that depend only on a name, so that a run can resume anywhere."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*name: object) -> int:
    """Return a seed made from the parts of a name: ``seed_of(run_seed, "augment", epoch, batch)``."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:7], "big")  # 56 bits, which every generator accepts


def generator(*name: object) -> torch.Generator:
    """Return a generator on the CPU, seeded with ``seed_of(*name)``."""
    return torch.Generator().manual_seed(seed_of(*name))
