"""Reading runs in any state, and keeping finished ones in the files to commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from .errors import LabError
from .provenance import unclean
from .records import SUFFIX, Row, files_in, find_runs, read_rows, write_rows
from .settings import Settings
from .store import Run, file_name

PARTS = ("train", "valid", "test")
NEEDED = {"task": str, "method": str | dict, "seed": int}
FORMER = ("zoom", "body_lr", "normalise")
"""Settings that runs of earlier versions may have."""


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
        """Whether it has a result."""
        return bool(self.result)

    @property
    def diverged(self) -> bool:
        """Whether it has ended, and failed."""
        return self.ended and self.result["status"] != "finished"

    @property
    def measures(self) -> list[str]:
        """What was measured."""
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
        try:
            reading.records.append(_record(run, reading.left_out))
        except (LabError, TypeError, RecursionError) as error:
            reading.left_out.append(f"{run.path}: left out: {_short(run, error)}")
    return reading


def _short(run: Run, error: Exception) -> str:
    """An error without the path that stands before it anyway."""
    return str(error).replace(f"{run.path}/", "")


def _record(run: Run, notes: list[str]) -> Record:
    config = run.config
    if config is None:
        raise LabError("config.json is missing")
    settings = _settings(config.get("settings"))
    lines = list(_lines(run, notes))
    result: dict[str, Any] = {}
    why = f"not finished (epoch {len(lines)} of {settings.epochs or '?'})"
    try:
        if (found := run.result) is not None:
            result = _result(found)
    except LabError as error:
        why = f"its result is left out: {_short(run, error)}"
    if not result:
        notes.append(f"{run.path}: {why}: in the curves, not in the tables")
    about = config.get("data")
    return Record(run, settings, about if isinstance(about, dict) else {}, result, lines)


def _settings(found: Any) -> Settings:
    """The settings; those that came after the run have their defaults, which it had."""
    if not isinstance(found, dict):
        raise LabError("config.json has no settings")
    if lacking := [name for name, kind in NEEDED.items() if not isinstance(found.get(name), kind)]:
        raise LabError(f"config.json does not have the run's {', '.join(lacking)}")
    if foreign := sorted(set(found) - set(Settings.__dataclass_fields__) - set(FORMER)):
        raise LabError(f"made by another version, whose settings have {', '.join(map(repr, foreign))}")
    former = [_former(name, found[name]) for name in FORMER if found.get(name) is not None]
    known = {name: value for name, value in found.items() if name not in FORMER}
    settings = Settings(**(known | {"former": " ".join(former)} if former else known))
    hash(settings)  # a list or an object is no value: a TypeError
    return settings


def _former(name: str, value: Any) -> str:
    """The words for a setting that runs no longer have: ``zoom part=0.15,width=3``."""
    if isinstance(value, dict):
        value = ",".join(f"{part}={number}" for part, number in value.items())
    return f"{name} {value}"


def number(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def _numbers(found: Any) -> dict[str, float | None]:
    return {str(name): number(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _lines(run: Run, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The epochs that can be read, with every field that the curves need."""
    found, whole = run.readable_metrics()
    if not whole:
        notes.append(
            f"{run.path}: metrics.jsonl is damaged from line {len(found) + 1} on: the rest is left out"
        )
    for count, line in enumerate(found, 1):
        yield {"epoch": count, "step": None, "posterior": []} | {part: {} for part in PARTS} | line


def _result(found: dict[str, Any]) -> dict[str, Any]:
    """The result with every field that the tables need."""
    measures = found.get("measures")
    if not isinstance(measures, list) or not measures or not isinstance(found.get("status"), str):
        raise LabError("result.json lacks the measures or the status (another version's?)")
    measures = [str(measure) for measure in measures]
    parts: dict[str, Any] = {}
    for part in PARTS:
        given = _numbers(found.get(part))
        parts[part] = {measure: given.get(measure) for measure in [*measures, *given]}
    finished = found["status"] == "finished" and parts["valid"][measures[0]] is not None
    rates = found.get("copy_rates")
    return {
        **found,
        **parts,
        "measures": measures,
        "status": "finished" if finished else "diverged",
        "diverged_at": int(step) if (step := number(found.get("diverged_at"))) is not None else None,
        "seconds": number(found.get("seconds")) or 0.0,
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
    known = {name for file in files_in(results) for name in read_rows(file)}
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
    """The row of a finished run."""
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
