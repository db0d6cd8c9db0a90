"""Where data is looked for, and the cache for what is made of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import LabError, optional

WAIT = 600
"""Seconds to wait for another process before doing its work."""


def data_path(where: str | Path | None, wanted: str) -> Path:
    """Return the place that the user named, or ``$ALRAO_DATA``.

    The error ends with ``wanted``: what to download and where to put it.
    """
    named = where if where is not None else os.environ.get("ALRAO_DATA") or None
    if named is None:
        raise LabError(f"no data: neither --data nor ALRAO_DATA is set; {wanted}")
    path = Path(named).expanduser()
    if not path.exists():
        origin = "--data" if where is not None else "ALRAO_DATA"
        raise LabError(f"{path}, which {origin} names, does not exist; {wanted}")
    return path


def shipped(name: str, *arguments: Any, **options: Any) -> Any:
    """Return what a function of ``sklearn.datasets`` loads, without a download."""
    datasets = optional("sklearn.datasets", "lab", "this task", "scikit-learn")
    return getattr(datasets, name)(*arguments, **options)


def cache_folder() -> Path:
    """Return ``$ALRAO_CACHE``, or ``$XDG_CACHE_HOME/alrao``, or ``~/.cache/alrao``; it need not exist."""
    if named := os.environ.get("ALRAO_CACHE"):
        return Path(named).expanduser()
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named).expanduser() / "alrao"
    return Path.home() / ".cache" / "alrao"


def short_digest(*parts: object) -> str:
    """Return a digest of the parts in sixteen hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes | memoryview) else repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Keep other processes from making the same file of the cache, and tell whether that worked.

    Without a lock, they only do the same work twice.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=WAIT)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):  # Timeout is an OSError
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
