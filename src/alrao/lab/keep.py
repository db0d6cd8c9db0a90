"""Keeping finished runs: a row per run in the file of its experiment, to be committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from .errors import LabError
from .provenance import unclean
from .reading import read
from .records import SUFFIX, Row, files_in, find_runs, read_rows, write_rows
from .settings import Settings
from .store import Run, file_name


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
