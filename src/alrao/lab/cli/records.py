"""The commands that read finished runs: ``table``, ``report`` and ``keep``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import LabError
from .terminal import out, say, warn

__all__ = ["command_line", "keep", "make_report", "report", "table"]

paths_argument = click.argument(
    "paths", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path)
)


def _places(paths: tuple[Path, ...]) -> list[Path]:
    places = list(paths) or [path for path in (Path("runs"), Path("results")) if path.is_dir()]
    if not places:
        raise LabError("no runs found: neither runs/ nor results/ exists here; name a directory with runs")
    return places


def command_line() -> str:
    """The command that is running, as the user would type it."""
    return shlex.join(["alrao", *sys.argv[1:]])


def make_report(roots: Sequence[Path], target: Path, command: str = "") -> None:
    """Write the report and print its path."""
    from ..report import write_report

    made = write_report(roots, target, command=command)
    if made.left_out:
        warn(f"{len(made.left_out)} remarks about what is left out are at the end of the report")
    say(f"report: {target}")


@click.command()
@paths_argument
@click.option("--markdown", metavar="FILE", help="write the tables to a Markdown page instead")
def table(paths: tuple[Path, ...], markdown: str | None) -> None:
    """Print the tables of all finished runs below PATHS (default: runs and results)."""
    from ..display import comparison_table
    from ..markdown import page
    from ..store import find_runs, replace_file
    from ..table import groups

    found, left_out = groups(find_runs(_places(paths)))
    if markdown is not None:
        content = page(found).encode()
        replace_file(Path(markdown), lambda file: file.write(content))
    else:
        for group in found:
            out.print(comparison_table(group))
    for line in left_out:
        warn(f"left out: {line}")


@click.command()
@paths_argument
@click.option(
    "--out", "target", type=click.Path(dir_okay=False, path_type=Path), default="report.html",
    show_default=True, metavar="FILE", help="the HTML file to write",
)  # fmt: skip
def report(paths: tuple[Path, ...], target: Path) -> None:
    """Write one HTML page of tables and figures from all runs below PATHS (default: runs and results).

    Nothing is trained; unfinished runs are shown as far as they got. The page is a single file and needs no
    network.
    """
    make_report(_places(paths), target)


@click.command()
@paths_argument
@click.option("--results", default="results", show_default=True, metavar="DIR", help="where they are kept")
def keep(paths: tuple[Path, ...], results: str) -> None:
    """Copy finished runs below PATHS (default: runs), without checkpoints, to a directory to commit."""
    from ..keep import keep as copy

    count, damaged = copy(paths or [Path("runs")], Path(results))
    say(f"{count} runs copied to {results}")
    for line in damaged:
        warn(f"left out: {line}")
