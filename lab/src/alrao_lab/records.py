"""Runs, found and read in any state: directories that training writes, and files that ``alrao keep`` fills.

An experiment is kept as one file, ``results/<experiment>.jsonl.xz``: compressed JSON, a line per run. A row
holds the name of the run and what the files of its directory hold: ``config``, ``result``, ``metrics`` and
``features``; ``historical`` marks runs of before commits were recorded.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

from .errors import LabError
from .provenance import unclean
from .settings import FIELDS, Settings
from .store import PARTS, Run, RunDirectory, decode, encode, file_name, number, replace_file

SUFFIX = ".jsonl.xz"
LIMIT = 2**28
"""Bytes of a file of results, unpacked."""
NEEDED = {"task": str, "method": str | dict, "seed": int}
FORMER = ("zoom", "body_lr", "normalise")
"""Settings that runs of earlier versions may have."""
Row: TypeAlias = dict[str, Any]


class KeptRun(Run):
    """A run of a file of results."""

    ended = True
    remedy = "restore its file from version control"

    def __init__(self, file: Path, row: Row) -> None:
        super().__init__(file / row["run"])
        self.row = row
        self.historical = bool(row.get("historical"))

    def read(self, name: str) -> Any:
        return self.row.get(name)

    def entries(self) -> list[Any]:
        found = self.row.get("metrics")
        return found if isinstance(found, list) else [None]


def read_rows(path: Path, left_out: list[str] | None = None) -> Mapping[str, Row]:
    """Return the rows of a file by the names of their runs; none where there is no file.

    A row that cannot be read is a sentence in ``left_out``, or raises.
    """
    try:
        state = path.stat()
    except FileNotFoundError:
        return {}
    rows, damaged = _rows(path, state.st_mtime_ns, state.st_size)
    if left_out is not None:
        left_out += damaged
    elif damaged:
        raise LabError(damaged[0])
    return rows


@lru_cache(maxsize=64)  # a comparison looks every run up; a file that changes has another time
def _rows(path: Path, time: int, size: int) -> tuple[Mapping[str, Row], list[str]]:
    rows, damaged = {}, []
    for count, line in enumerate(BytesIO(_unpacked(path)), 1):
        try:
            row = decode(line.decode())
            if not isinstance(row, dict) or not isinstance(row.get("run"), str):
                raise ValueError("it names no run")
            rows[row["run"]] = row
        except (ValueError, RecursionError) as error:
            damaged.append(f"{path} is damaged (line {count}: {error}): restore it from version control")
    return rows, damaged


def _unpacked(path: Path) -> bytes:
    try:
        with lzma.open(path) as file:  # of files that were joined, it reads one after the other
            content = file.read(LIMIT)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise LabError(f"{path} is damaged ({error}): restore it from version control") from None
    if len(content) == LIMIT:
        raise LabError(f"{path} unpacks to more than {LIMIT >> 20} MB: it is no file of results")
    return content


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

    A file or a row that cannot be read is a sentence in ``left_out``, or raises.
    """
    found: dict[str, Run] = {}
    for root in roots:
        runs: list[Run] = [RunDirectory(path.parent) for path in sorted(root.rglob("config.json"))]
        for file in _files_in(root):
            try:
                runs += [KeptRun(file, row) for row in read_rows(file, left_out).values()]
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
    data: str = ""
    """What the data is, in one line, which is equal for runs on the same data."""

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
    blank: dict[str, Any] = {"step": None, "posterior": [], "rate": [], **{part: {} for part in PARTS}}
    lines = [{"epoch": count, **blank, **line} for count, line in enumerate(found, 1)]
    result: dict[str, Any] = {}
    why = f"not finished (epoch {len(lines)} of {settings.epochs or '?'})"
    try:
        result = run.result or {}
    except LabError as error:
        why = f"its result is left out: {error}"
    if not result:
        notes.append(f"{why}: in the curves, not in the tables")
    given = config.get("data")
    about = given if isinstance(given, dict) else {}
    return Record(run, settings, about, result, lines, json.dumps(about, sort_keys=True))


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
    _require_types(settings)
    return settings


def _require_types(settings: Any) -> None:
    """Refuse settings, or a part of them, that are not of the types of their fields."""
    for name, hint in get_type_hints(type(settings)).items():
        value, kinds = getattr(settings, name), get_args(hint) or (hint,)
        numeric = type(value) in (int, float)
        if is_dataclass(value):
            _require_types(value)
        elif not (type(value) in kinds or (numeric and float in kinds)) or (
            numeric and number(value) is None
        ):
            raise LabError(f"config.json is damaged (its {name} is a {type(value).__name__})")


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
        "result": run.read("result"),
        "metrics": run.metrics(),
        "features": run.features(),
    }
    return row, settings
