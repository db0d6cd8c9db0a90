"""Keeping finished runs: their small files, without checkpoints, in a directory under version control."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .errors import LabError
from .store import find_runs, replace_file

__all__ = ["keep"]

KEPT = ("config.json", "metrics.jsonl", "features.json", "result.json")


def keep(roots: Iterable[Path], results: Path) -> tuple[int, list[str]]:
    """Copy what the finished runs below some directories say of themselves.

    Returns:
        how many were new, and a sentence for each that cannot be read.
    """
    count, damaged = 0, []
    for root in roots:
        for directory in find_runs([root]):
            target = results / directory.path.relative_to(root)
            try:
                if directory.result is None or (target / "result.json").exists():
                    continue
            except LabError as error:
                damaged.append(str(error))
                continue
            for name in KEPT:
                source = directory.path / name
                if source.exists():
                    content = source.read_bytes()
                    replace_file(target / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
            count += 1
    return count, damaged
