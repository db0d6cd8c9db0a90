"""Finding runs: directories that training writes, and rows of the files that ``alrao keep`` fills.

An experiment is kept as one file, ``results/<experiment>.jsonl.xz``: compressed JSON, a line per run. A row
holds the name of the run and what the files of its directory hold: ``config``, ``result``, ``metrics`` and
``features``; ``historical`` marks runs of before commits were recorded.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from .errors import LabError
from .settings import Settings
from .store import Run, RunDirectory, encode, replace_file

SUFFIX = ".jsonl.xz"
Row: TypeAlias = dict[str, Any]


class KeptRun(Run):
    """A run of a file of results."""

    def __init__(self, file: Path, row: Row) -> None:
        super().__init__(file / row["run"])
        self.row = row
        self.historical = bool(row["historical"])

    def _read(self, name: str) -> Any:
        return self.row[name]


def read_rows(path: Path) -> Mapping[str, Row]:
    """Return the rows of a file by the names of their runs; none where there is no file."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return {}
    return _rows(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)  # a comparison looks every run up; a file that changes has another time
def _rows(path: Path, time: int, size: int) -> Mapping[str, Row]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            return {row["run"]: row for row in map(json.loads, file)}
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is damaged ({error}): restore it from version control") from None


def write_rows(path: Path, rows: Mapping[str, Row]) -> None:
    """Replace a file by these rows, in the order of their names: the same rows are the same bytes."""
    content = b"".join(encode(rows[name]) for name in sorted(rows))
    replace_file(path, lzma.compress(content, preset=9))


def files_in(root: Path) -> list[Path]:
    """Return the files of results in a directory, or the path itself if it is one."""
    if root.name.endswith(SUFFIX):
        return [root]
    return sorted(root.glob(f"*{SUFFIX}"))


def find_runs(roots: Iterable[Path], left_out: list[str] | None = None) -> Iterator[Run]:
    """Find every run below some directories or in some files of results, in the order of their names.

    A run that is there several times comes once, finished if it is so anywhere: its name, with that of its
    task and of its network, identifies it.

    A file that cannot be read is a sentence in ``left_out``, or raises.
    """
    found: dict[str, Run] = {}
    for root in roots:
        runs: list[Run] = [RunDirectory(path.parent) for path in sorted(root.rglob("config.json"))]
        for file in files_in(root):
            try:
                runs += [KeptRun(file, row) for row in read_rows(file).values()]
            except LabError as error:
                if left_out is None:
                    raise
                left_out.append(str(error))
        for run in runs:
            if run.name not in found or not found[run.name].ended:
                found[run.name] = run
    return iter(found.values())


def locate(settings: Settings, data: str, roots: Iterable[Path]) -> Run:
    """Return the run of resolved settings: the first root with a result has it, else the first root."""
    method = str(settings.method).replace(":", "_")  # which every file system allows
    name = Path(settings.task, settings.model or "", f"{method}-{settings.seed}-{settings.digest(data)}")
    places = list(roots)
    for root in places:
        directory = RunDirectory(root / name)
        if directory.result is not None:
            return directory
        for file in files_in(root):
            if (row := read_rows(file).get(name.as_posix())) is not None:
                return KeptRun(file, row)
    return RunDirectory(places[0] / name)
