"""Terminal output shared by the commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.live import Live

from ..render.terminal import ended, live_table
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
    """Train the missing runs and show their progress: a live table, or a line for each run that ends."""
    if out.is_terminal:
        with Live(get_renderable=lambda: live_table(runs), console=out, refresh_per_second=1, transient=True):
            runs.run(spread)
    else:
        runs.run(spread, lambda planned, error: say(ended(planned, error)))


def fail_if(failed: Mapping[Path, str]) -> None:
    """Print the runs that failed, and exit with code 1 if there are any."""
    for path, error in failed.items():
        warn(f"failed: {path}: {error}", "red")
    if failed:
        raise SystemExit(1)
