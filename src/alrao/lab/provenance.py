"""What a run was made with: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import alrao

__all__ = ["provenance"]

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scikit-learn",
    "gymnasium",
    "stable-baselines3",
    "prodigyopt",
    "dadaptation",
    "dog-optimizer",
    "schedulefree",
)


def provenance(device: torch.device) -> dict[str, Any]:
    """The part of ``config.json`` that the settings do not determine."""
    versions = {"alrao": alrao.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "commit": _commit(),
        "device": str(device) if device.type != "cuda" else torch.cuda.get_device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the source tree that is running, with ``+`` if it was changed since."""
    source = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(source), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", __file__):  # installed inside somebody else's repository
            return None
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
