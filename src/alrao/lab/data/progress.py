"""A bar on the terminal for what takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["progress"]

PATIENCE = 1.0
"""Seconds that pass before anything is shown."""


@contextmanager
def progress(text: str) -> Iterator[Callable[[float], None]]:
    """A function that takes the fraction done and, if it takes long, shows it on a terminal's stderr."""
    started = time.monotonic()
    with ExitStack() as stack:
        update: Callable[[float], None] | None = None

        def show(fraction: float) -> None:
            nonlocal update
            if update is None and time.monotonic() - started > PATIENCE:
                update = stack.enter_context(_bar(text))
            if update is not None:
                update(fraction)

        yield show


@contextmanager
def _bar(text: str) -> Iterator[Callable[[float], None]]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)
