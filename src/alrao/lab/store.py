"""Run directories: what is in them, and how it is written so that a kill at any moment loses nothing.

A run is a directory with ``config.json`` (what would repeat it), ``metrics.jsonl`` (a line for each epoch),
``checkpoint.pt`` (the last state and the best weights) and, once it has ended, ``result.json``; of Alrao's
runs also ``features.json`` (rate and movement of each feature). Each file is replaced as a whole: written
beside, flushed to the disk, renamed.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout

from .errors import LabError
from .settings import Settings

__all__ = ["RunDirectory", "find_runs", "locate", "replace_file"]


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as a whole or not at all.

    Raises:
        LabError: the disk is full or the place cannot be written; the old file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            with _interrupts_wait(), temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait until the end: within torch's writer it would become another error, or be lost."""
    if threading.current_thread() is not threading.main_thread():  # only this one has signals
        yield
        return
    caught = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)


def _unwritable(path: Path, error: OSError) -> LabError:
    return LabError(f"{path} could not be written: {error.strerror or error}")


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity: a number that is not one is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _encode(value: Any, indent: int | None = None) -> bytes:
    return (json.dumps(_plain(value), indent=indent, allow_nan=False) + "\n").encode()


class RunDirectory:
    """One run on the disk.

    Args:
        path: the directory; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lock(self) -> FileLock:
        """Hold the run, or say that another process does. Released when the process ends, however it does."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise LabError(
                f"another process is working on the run {self.path}: wait for it, or stop it"
            ) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error
        for leftover in self.path.glob(".*-*"):  # of writes that were cut off
            leftover.unlink(missing_ok=True)
        return lock

    @property
    def config(self) -> dict[str, Any] | None:
        """What defines the run, or None before it has begun."""
        return self._read("config.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out, or None while it has not ended."""
        return self._read("result.json")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.path / name).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LabError(f"{self.path / name} could not be read: {error.strerror or error}") from error
        except ValueError as error:
            raise self._damaged(name, error) from None
        if not isinstance(found, dict):
            raise self._damaged(name, "it holds no object")
        return found

    def _damaged(self, name: str, why: object) -> LabError:
        return LabError(f"{self.path / name} is damaged ({why}): delete the run's directory to run it again")

    def threads(self, config: dict[str, Any]) -> int:
        """The processor threads that the run began with."""
        count = config.get("threads")
        if not isinstance(count, int) or count < 1:
            raise self._damaged("config.json", "it names no number of threads")
        return count

    def write_config(self, config: dict[str, Any]) -> None:
        """Store what defines the run."""
        replace_file(self.path / "config.json", lambda file: file.write(_encode(config, 2)))

    def write_result(self, result: dict[str, Any]) -> None:
        """Store what came out; the run has ended."""
        replace_file(self.path / "result.json", lambda file: file.write(_encode(result, 2)))

    def features(self) -> list[dict[str, Any]]:
        """What became of the features of each layer, where that was recorded."""
        found = self._read("features.json")
        return found["layers"] if found else []

    def write_features(self, layers: list[dict[str, Any]]) -> None:
        """Store what became of the features of each layer."""
        if layers:
            replace_file(self.path / "features.json", lambda file: file.write(_encode({"layers": layers})))

    def metrics(self, epochs: int | None = None) -> list[dict[str, Any]]:
        """The lines of the epochs so far; one that cannot be read ends the list.

        Args:
            epochs: as many are wanted, and must be there.
        """
        lines: list[dict[str, Any]] = []
        try:
            with (self.path / "metrics.jsonl").open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    entry = json.loads(line)
                    if not isinstance(entry, dict):
                        break
                    lines.append(entry)
        except (OSError, ValueError):
            pass
        if epochs is not None and len(lines) < epochs:
            why = f"{epochs} epochs are done, and it can be read up to {len(lines)}"
            raise self._damaged("metrics.jsonl", why)
        return lines[:epochs]

    def write_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        """Store the lines of all epochs."""
        content = b"".join(_encode(line) for line in lines)
        replace_file(self.path / "metrics.jsonl", lambda file: file.write(content))

    def save(self, state: dict[str, Any]) -> None:
        """Store the state to go on from."""

        def write(file: BinaryIO) -> None:
            try:
                torch.save(state, file)
            except RuntimeError as error:  # what torch makes of a write that failed
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

        replace_file(self.path / "checkpoint.pt", write)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The state to go on from, or None."""
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:
            raise LabError(
                f"{path} is damaged ({type(error).__name__}): delete it to start the run again"
            ) from error
        return state

    def foreign_checkpoint(self, error: Exception) -> LabError:
        """The error for a checkpoint that can be read, but is not of this run."""
        path = self.path / "checkpoint.pt"
        return LabError(
            f"{path} is not of this run or of this version ({type(error).__name__}): "
            "delete it to start the run again"
        )


def locate(settings: Settings, data: str, roots: Iterable[Path]) -> RunDirectory:
    """The directory of a run: the first among the roots that has a result, else in the first root."""
    method = str(settings.method).replace(":", "_")  # no file system forbids that one
    name = Path(settings.task, settings.model or "", f"{method}-{settings.seed}-{settings.digest(data)}")
    candidates = [RunDirectory(root / name) for root in roots]
    return next((run for run in candidates if run.result is not None), candidates[0])


def find_runs(roots: Iterable[Path]) -> Iterator[RunDirectory]:
    """All runs below some directories, in the order of their names.

    A run that is there several times comes once, finished if it is so anywhere: its name, with that of its
    task and of its network, says what it is.
    """
    found: dict[tuple[str, ...], Path] = {}
    for root in roots:
        for config in sorted(root.rglob("config.json")):
            name, path = config.parent.absolute().parts[-3:], config.parent
            if name not in found or not (found[name] / "result.json").exists():
                found[name] = path
    return (RunDirectory(path) for path in found.values())
