"""Progress bars on the terminal's standard error, for reading large data sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import rich.progress
from rich.console import Console

Item = TypeVar("Item")


def _options() -> dict[str, Any]:
    console = Console(stderr=True)
    return {"console": console, "transient": True, "disable": not console.is_terminal}


def track(items: Sequence[Item], text: str) -> Iterable[Item]:
    """Iterate over items, with a bar."""
    return rich.progress.track(items, text, **_options())


def open_file(path: Path, text: str) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading, with a bar over its bytes."""
    return rich.progress.open(path, "rb", description=text, **_options())
