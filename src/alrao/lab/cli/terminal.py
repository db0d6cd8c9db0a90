"""Terminal output shared by the commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from ..runset import RunSet
    from ..spread import Spread

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Print a line that may hold a user's names: it is neither wrapped nor read as markup."""
    out.print(line, soft_wrap=True, markup=False)


def warn(line: str, style: str | None = None) -> None:
    """Print such a line to the standard error."""
    err.print(line, soft_wrap=True, markup=False, style=style)


def train_missing(runs: RunSet, spread: Spread) -> None:
    """Train every run of a set that has no result yet, and show the progress."""
    from ..render.terminal import run_shown

    run_shown(runs, spread, out)


def fail_if(failed: Mapping[Path, str]) -> None:
    """Print the runs that failed, and exit with code 1 if there are any."""
    for path, error in failed.items():
        warn(f"failed: {path}: {error}", "red")
    if failed:
        raise SystemExit(1)
