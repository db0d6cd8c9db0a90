"""Random numbers that depend on nothing but their name, so that a run can resume anywhere."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator", "seed_of"]


def seed_of(*name: object) -> int:
    """A number made of the parts of a name: ``seed_of(run_seed, "augment", epoch, batch)``."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:7], "big")  # 56 bits: every generator takes them


def generator(*name: object) -> torch.Generator:
    """A generator on the CPU, seeded with ``seed_of(*name)``."""
    return torch.Generator().manual_seed(seed_of(*name))
