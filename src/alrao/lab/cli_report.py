"""The command ``alrao report``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from .errors import LabError

__all__ = ["command_line", "make_report", "report"]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def command_line() -> str:
    """The command that is running, as it would be typed."""
    return shlex.join(["alrao", *sys.argv[1:]])


def make_report(roots: Sequence[Path], target: Path, command: str = "") -> None:
    """Write the page and say where it is."""
    from .report import write_report

    made = write_report(roots, target, command=command)
    if made.left_out:
        count = len(made.left_out)
        err.print(f"{count} remarks about what is left out are at the end of the page", soft_wrap=True)
    out.print(f"report: {target}", soft_wrap=True, markup=False)


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out", "target", type=click.Path(dir_okay=False, path_type=Path), default="report.html",
    show_default=True, metavar="FILE", help="the page",
)  # fmt: skip
def report(runs: tuple[Path, ...], target: Path) -> None:
    """Make one HTML page of tables and figures from all runs below RUNS (default: runs and results).

    A directory may be a run itself. Nothing is trained; runs in progress are shown as far as they are.
    The page is one file that needs no network.
    """
    roots = list(runs) or [path for path in (Path("runs"), Path("results")) if path.is_dir()]
    if not roots:
        raise LabError("no runs here: neither runs/ nor results/ exists; name a directory that has some")
    make_report(roots, target)
