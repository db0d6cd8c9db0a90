"""Runs, found and read in any state: directories that training writes, and files that ``alrao keep`` fills.

An experiment is kept as one file, ``results/<experiment>.jsonl.xz``: compressed JSON, a line per run. A row
holds the name of the run and what the files of its directory hold: ``config``, ``result``, ``metrics`` and
``features``; ``historical`` marks runs of before commits were recorded.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from .errors import LabError
from .provenance import unclean
from .settings import FIELDS, Settings
from .store import Run, RunDirectory, encode, file_name, replace_file

SUFFIX = ".jsonl.xz"
PARTS = ("train", "valid", "test")
NEEDED = {"task": str, "method": str | dict, "seed": int}
FORMER = ("zoom", "body_lr", "normalise")
"""Settings that runs of earlier versions may have."""
Row: TypeAlias = dict[str, Any]


class KeptRun(Run):
    """A run of a file of results."""

    ended = True

    def __init__(self, file: Path, row: Row) -> None:
        super().__init__(file / row["run"])
        self.row = row
        self.historical = bool(row["historical"])

    def read(self, name: str) -> Any:
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


def _files_in(root: Path) -> list[Path]:
    """The files of results in a directory, or the path itself if it is one."""
    return [root] if root.name.endswith(SUFFIX) else sorted(root.glob(f"*{SUFFIX}"))


def find_runs(roots: Iterable[Path], left_out: list[str] | None = None) -> Iterator[Run]:
    """Find every run below some directories or in some files of results, in the order of their names.

    A run that is there several times comes once, finished if it is so anywhere: its name, with that of its
    task and of its network, identifies it.

    A file that cannot be read is a sentence in ``left_out``, or raises.
    """
    found: dict[str, Run] = {}
    for root in roots:
        runs: list[Run] = [RunDirectory(path.parent) for path in sorted(root.rglob("config.json"))]
        for file in _files_in(root):
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


def locate(settings: Settings, data: str, roots: list[Path]) -> Run:
    """Return the run of resolved settings: the first root with a result has it, else the first root."""
    method = str(settings.method).replace(":", "_")  # which every file system allows
    name = Path(settings.task, settings.model or "", f"{method}-{settings.seed}-{settings.digest(data)}")
    for root in roots:
        directory = RunDirectory(root / name)
        if directory.result is not None:
            return directory
        for file in _files_in(root):
            if (row := read_rows(file).get(name.as_posix())) is not None:
                return KeptRun(file, row)
    return RunDirectory(roots[0] / name)


@dataclass(frozen=True)
class Record:
    """A run as it was read."""

    run: Run
    settings: Settings
    about: dict[str, Any]
    """What the data is."""
    result: dict[str, Any]
    """Empty while the run has not ended."""
    lines: list[dict[str, Any]]
    """Of each epoch: ``epoch``, ``step``, the measures of ``train``, ``valid``, ``test``, ``posterior``."""

    @property
    def ended(self) -> bool:
        return bool(self.result)

    @property
    def diverged(self) -> bool:
        return self.ended and self.result["status"] != "finished"

    @property
    def measures(self) -> list[str]:
        if self.ended:
            return list(self.result["measures"])
        return list(self.lines[0]["test"]) if self.lines else []


@dataclass
class Reading:
    """The runs that could be read."""

    records: list[Record] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each thing that is left out."""


def read_runs(roots: Iterable[Path]) -> Reading:
    """Read every run below some directories or in some files of results."""
    left_out: list[str] = []
    return read(find_runs(roots, left_out), left_out)


def read(runs: Iterable[Run], left_out: Iterable[str] = ()) -> Reading:
    """Read these runs; what is left out already comes first."""
    reading = Reading(left_out=list(left_out))
    for run in runs:
        notes: list[str] = []
        try:
            reading.records.append(_record(run, notes))
        except (LabError, TypeError, RecursionError) as error:
            notes.append(f"left out: {error}")
        # Errors of the store name the path, which stands before them anyway.
        reading.left_out += [f"{run.path}: {note.replace(f'{run.path}/', '')}" for note in notes]
    return reading


def _record(run: Run, notes: list[str]) -> Record:
    config = run.config
    if config is None:
        raise LabError("config.json is missing")
    settings = _settings(config.get("settings"))
    found, whole = run.readable_metrics()
    if not whole:
        notes.append(f"metrics.jsonl is damaged from line {len(found) + 1} on: the rest is left out")
    blank: dict[str, Any] = {"step": None, "posterior": [], **{part: {} for part in PARTS}}
    lines = [{"epoch": count, **blank, **line} for count, line in enumerate(found, 1)]
    result: dict[str, Any] = {}
    why = f"not finished (epoch {len(lines)} of {settings.epochs or '?'})"
    try:
        if (ended := run.result) is not None:
            result = _result(ended)
    except LabError as error:
        why = f"its result is left out: {error}"
    if not result:
        notes.append(f"{why}: in the curves, not in the tables")
    about = config.get("data")
    return Record(run, settings, about if isinstance(about, dict) else {}, result, lines)


def _settings(found: Any) -> Settings:
    """The settings; those that came after the run have their defaults, which it had."""
    if not isinstance(found, dict):
        raise LabError("config.json has no settings")
    if lacking := [name for name, kind in NEEDED.items() if not isinstance(found.get(name), kind)]:
        raise LabError(f"config.json does not have the run's {', '.join(lacking)}")
    if foreign := sorted(set(found) - set(FIELDS) - set(FORMER)):
        raise LabError(f"made by another version, whose settings have {', '.join(map(repr, foreign))}")
    known = {name: value for name, value in found.items() if name not in FORMER}
    former = []  # in words: "zoom part=0.15,width=3"
    for name in FORMER:
        value = found.get(name)
        if isinstance(value, dict):
            value = ",".join(f"{part}={number}" for part, number in value.items())
        if value is not None:
            former.append(f"{name} {value}")
    settings = Settings(**(known | {"former": " ".join(former)} if former else known))
    hash(settings)  # a list or an object is no value: a TypeError
    return settings


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def _result(found: dict[str, Any]) -> dict[str, Any]:
    """The result with every field that the tables need."""
    measures = found.get("measures")
    if not isinstance(measures, list) or not measures or not isinstance(found.get("status"), str):
        raise LabError("result.json lacks the measures or the status (another version's?)")
    measures = [str(measure) for measure in measures]
    parts: dict[str, Any] = {}
    for part in PARTS:
        given = found.get(part)
        numbers = {str(name): _number(given[name]) for name in given} if isinstance(given, dict) else {}
        parts[part] = dict.fromkeys(measures) | numbers
    finished = found["status"] == "finished" and parts["valid"][measures[0]] is not None
    step, rates = _number(found.get("diverged_at")), found.get("copy_rates")
    return {
        **found,
        **parts,
        "measures": measures,
        "status": "finished" if finished else "diverged",
        "diverged_at": None if step is None else int(step),
        "seconds": _number(found.get("seconds")) or 0.0,
        "copy_rates": rates if isinstance(rates, list) else None,
    }


def experiment_file(settings: Settings) -> str:
    """Return the name of the file that holds the runs of an experiment."""
    return file_name(settings.experiment or f"{settings.task}-{settings.model}") + SUFFIX


def keep(roots: Iterable[Path], results: Path) -> tuple[int, list[str]]:
    """Add a row for each finished run below some directories that has none yet.

    Returns:
        The number of new rows, and a sentence for each finished run that is refused.
    """
    known = {name for file in _files_in(results) for name in read_rows(file)}
    new: dict[Path, dict[str, Row]] = {}
    refused: list[str] = []
    for run in find_runs(roots, refused):
        try:
            if run.result is not None and run.name not in known:
                row, settings = _row(run)
                new.setdefault(results / experiment_file(settings), {})[row["run"]] = row
        except LabError as error:
            refused.append(str(error))
    for file, rows in new.items():
        write_rows(file, {**read_rows(file), **rows})
    return sum(map(len, new.values())), refused


def _row(run: Run) -> tuple[Row, Settings]:
    reading = read([run])
    if reading.left_out:
        raise LabError(reading.left_out[0])
    config, settings = run.config or {}, reading.records[0].settings
    if (why := unclean(config.get("commit"), config.get("modified"))) is not None:
        remedy = "commit all changes, delete its directory and run it again with --to-keep"
        raise LabError(f"{run.path} is not kept: {why}; {remedy}")
    row: Row = {
        "run": run.name,
        "historical": False,
        "config": {**config, "settings": asdict(settings)},
        "result": run.result,
        "metrics": run.metrics(),
        "features": run.features(),
    }
    return row, settings
