"""What a run was made with: versions, commit, machine; and whether that can be kept."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import alrao

from .errors import LabError

COMMIT = re.compile("[0-9a-f]{12}")
PACKAGES = """torch torchvision numpy scikit-learn gymnasium stable-baselines3
    prodigyopt dadaptation dog-optimizer schedulefree prodigy-plus-schedule-free mechanic-pytorch"""


def provenance(device: torch.device) -> dict[str, Any]:
    """Return the part of ``config.json`` that the settings do not determine, taken when the run starts."""
    commit, modified = source_state()
    versions = {"alrao": alrao.__version__, "python": platform.python_version()}
    for package in PACKAGES.split():
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "commit": commit,
        "modified": modified,
        "device": str(device) if device.type != "cuda" else torch.cuda.get_device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def source_state(source: Path = Path(__file__)) -> tuple[str | None, bool]:
    """Return the commit of the code that runs, and whether a tracked file of its repository differs from it.

    Those in ``results`` may differ: finished runs are added to them while others still train.

    The commit is None where the code is no clone, such as an installed package.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        if not git("ls-files", str(source)):  # installed inside another repository
            return None, False
        changed = git("status", "--porcelain", "--untracked-files=no", ":/", ":(top,exclude)results")
        return git("rev-parse", "--short=12", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None, False


def unclean(commit: object, modified: object) -> str | None:
    """Return why a run of this state of the code cannot be kept, or None if it can."""
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        return "it was not run from a clone of the repository, so its commit is unknown"
    return None if modified is False else f"tracked files differed from the commit {commit} when it started"


def require_clean() -> None:
    """Refuse to start runs that could not be kept."""
    commit, modified = source_state()
    if commit is None:
        raise LabError("--to-keep needs the code of a git clone: pip install -e . -e ./lab in one")
    if modified:
        raise LabError(f"--to-keep needs tracked files as in commit {commit}: commit or stash the changes")
