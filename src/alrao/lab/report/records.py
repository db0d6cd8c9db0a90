"""Reading run directories whatever their state: nothing on the disk may keep the page from being made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..settings import Settings
from ..table import Finished

__all__ = ["Reading", "Record", "number", "read_runs"]


@dataclass(frozen=True)
class Record(Finished):
    """A run, ended or not. ``result`` is empty while it has not ended."""

    path: Path
    lines: list[dict[str, Any]]
    """Of each epoch: ``epoch``, ``step``, the measures of ``train``, ``valid``, ``test``, ``posterior``."""

    @property
    def ended(self) -> bool:
        """Whether it has a result."""
        return bool(self.result)

    @property
    def diverged(self) -> bool:
        """Whether it has ended, and failed."""
        return self.ended and super().diverged

    @property
    def measures(self) -> list[str]:
        """What was measured."""
        if self.ended:
            return list(self.result["measures"])
        return list(self.lines[0]["test"]) if self.lines else []


@dataclass
class Reading:
    """What was found in some directories."""

    records: list[Record] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each thing that is not in the page."""


def read_runs(roots: Iterable[Path]) -> Reading:
    """All runs below some directories, each of which may be a run itself."""
    reading = Reading()
    for path in _directories(roots):
        try:
            record = _record(path, reading.left_out)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            reading.left_out.append(f"{path}: left out: {error}")
        else:
            reading.records.append(record)
    return reading


def _directories(roots: Iterable[Path]) -> Iterator[Path]:
    """Directories with a ``config.json``; of runs of the same name below several roots only the first."""
    seen: set[Path] = set()
    for root in roots:
        for config in sorted(root.rglob("config.json")):
            path = config.parent
            name = path.relative_to(root) if path != root else path.resolve()
            if name not in seen:
                seen.add(name)
                yield path


def _record(path: Path, notes: list[str]) -> Record:
    config = _object(path / "config.json")
    if config is None:
        raise ValueError("config.json has gone")
    if not isinstance(config.get("settings"), dict):
        raise ValueError("config.json has no settings")
    settings = _settings(config["settings"])
    lines = _lines(path, notes)
    result: dict[str, Any] = {}
    try:
        result = _result(_object(path / "result.json"), lines)
    except ValueError as error:
        notes.append(f"{path}: its result is left out: {error}")
    if not result:
        total = settings.get("epochs") or "?"
        notes.append(
            f"{path}: not finished (epoch {len(lines)} of {total}): in the curves, not in the tables"
        )
    about = config.get("data")
    return Record(settings, result, about if isinstance(about, dict) else {}, path, lines)


def _object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object")
    return found


def _settings(found: dict[str, Any]) -> dict[str, Any]:
    """The settings as this version knows them: fields it does not know are dropped, missing ones default."""
    known = {name: value for name, value in found.items() if name in Settings.__dataclass_fields__}
    for name, kind in (("task", str), ("method", str | dict), ("seed", int)):
        if name not in found or not isinstance(found[name], kind):
            raise ValueError(f"config.json has no {name}")
    try:
        settings = Settings(**known).words()
    except LabError as error:
        raise ValueError(str(error)) from None
    for name, value in settings.items():
        if isinstance(value, dict | list):
            raise ValueError(f"the setting {name} in config.json is no value")
    settings["model"] = str(settings["model"] or "")
    return settings


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def _numbers(found: Any) -> dict[str, float | None]:
    return {str(name): number(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The epochs that can be read, up to the first line that cannot."""
    lines: list[dict[str, Any]] = []
    try:
        text = (path / "metrics.jsonl").read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return lines
    for count, row in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(row)
            if not isinstance(found, dict):
                raise ValueError("no object")
        except ValueError:
            notes.append(f"{path}: metrics.jsonl is damaged from line {count} on: the rest is left out")
            break
        epoch = number(found.get("epoch"))
        line: dict[str, Any] = {
            "epoch": count if epoch is None else int(epoch),
            "step": number(found.get("step")),
        }
        line |= {part: _numbers(found.get(part)) for part in ("train", "valid", "test")}
        line["posterior"] = list(_posterior(found.get("posterior")))
        lines.append(line)
    return lines


def _posterior(found: Any) -> Iterator[tuple[int, list[float]]]:
    for entry in found if isinstance(found, list) else []:
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list):
            step = number(entry[0])
            if step is not None and step >= 1:
                yield int(step), [number(weight) or 0.0 for weight in entry[1]]


def _result(found: dict[str, Any] | None, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The result with every field that the tables need, or nothing while there is none."""
    if found is None:
        return {}
    measures = found.get("measures")
    if not isinstance(measures, list) or not measures or not isinstance(found.get("status"), str):
        raise ValueError("result.json lacks the measures or the status (another version's?)")
    measures = [str(measure) for measure in measures]
    parts: dict[str, Any] = {}
    for part in ("train", "valid", "test"):
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
