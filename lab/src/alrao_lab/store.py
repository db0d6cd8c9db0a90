"""Run directories: their files, and how to write them so that a kill at any moment loses nothing.

A run is a directory with ``config.json`` (what would repeat it), ``metrics.jsonl`` (a line for each epoch),
``checkpoint.pt`` (the last state and the best weights; only the best weights once the run has ended) and,
once it has ended, ``result.json``; Alrao's runs also have ``features.json`` (rate and movement of each
feature). Each file is replaced as a whole: written beside, flushed to the disk, renamed.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import secrets
import signal
import threading
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout

from .errors import LabError


def replace_file(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file as a whole or not at all."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _interrupts_wait(), temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):  # it has been renamed, or was never there
            temporary.unlink()


def file_name(*words: str) -> str:
    """Return a name that every file system allows."""
    return re.sub(r"[^\w.-]+", "-", "-".join(word for word in words if word)).strip("-.")


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C until the end: within torch's writer it would become another error, or be lost."""
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


def unwritable(path: Path, error: OSError) -> LabError:
    """Return the error for a file or directory that cannot be written."""
    return LabError(f"{path} could not be written: {error.strerror or error}")


def encode(value: Any, indent: int | None = None) -> bytes:
    """Return a value as JSON, with null for numbers that are not finite, which JSON does not have."""
    separators = (",", ":") if indent is None else None
    return (json.dumps(decode(json.dumps(value)), indent=indent, separators=separators) + "\n").encode()


def decode(text: str) -> Any:
    """Read JSON, with None for the nan and infinity that some programs write."""
    found = json.loads(text, parse_constant=lambda _: None)
    if "\\ud" in text or "\\uD" in text:  # half of a character, maybe, which could not be written again
        json.dumps(found, ensure_ascii=False).encode()
    return found


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


PARTS = ("train", "valid", "test")
DEVIATION = "±"
"""Ends the name of a column of deviations, and is in no name of a measure."""


def _is_line(entry: Any) -> bool:
    """Whether this may be the line of an epoch; one of an earlier version may lack some of its parts."""
    if not isinstance(entry, dict):
        return False
    parts = [entry.get(part, {}) for part in PARTS]
    if not all(isinstance(part, dict) for part in parts):
        return False
    values = [entry.get("epoch"), entry.get("step"), *(value for part in parts for value in part.values())]
    return all(value is None or number(value) is not None for value in values)


class BusyError(LabError):
    """Another process works on a run."""


class Run:
    """A run as the workbench reads it; the last parts of its path are the task, the network and the run."""

    historical = False
    """Whether the run was kept before runs recorded a clean commit."""
    remedy = "delete the run's directory to run it again"
    """Of a file that is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    ended: bool
    """Whether it has a result, which may be damaged."""

    @abstractmethod
    def read(self, name: str) -> Any:
        """Return what the config, the result or the features hold, whatever it is; None without them."""

    @abstractmethod
    def entries(self) -> Iterable[Any]:
        """Return what the lines of the epochs hold, whatever it is; a ValueError ends them."""

    @property
    def name(self) -> str:
        """Its task, its network and its own name, which identify it wherever it is stored."""
        return "/".join(self.path.absolute().parts[-3:])

    @property
    def config(self) -> dict[str, Any] | None:
        """What defines the run, or None before it has begun."""
        return self._object("config")

    @property
    def result(self) -> dict[str, Any] | None:
        """The result with every field that is shown, or None while the run has not ended."""
        found = self._object("result")
        if found is None:
            return None
        named, status = found.get("measures"), found.get("status")
        measures = list(dict.fromkeys(map(str, named))) if isinstance(named, list) else []
        if not measures or DEVIATION in "".join(measures) or not isinstance(status, str):
            raise self.damaged("result.json", "it lacks the measures or the status")
        parts: dict[str, dict[str, float | None]] = {}
        for part in PARTS:
            given: Any = found.get(part)
            values = given.items() if isinstance(given, dict) else ()
            numbers = {name: number(value) for name, value in values if DEVIATION not in name}
            parts[part] = dict.fromkeys(measures) | numbers
        finished = status == "finished" and parts["valid"][measures[0]] is not None
        counts = {name: number(found.get(name)) for name in ("diverged_at", "best_epoch", "steps")}
        rates = found.get("copy_rates")
        return {
            **found,
            **parts,
            **{name: None if count is None else int(count) for name, count in counts.items()},
            "measures": measures,
            "status": "finished" if finished else "diverged",
            "seconds": number(found.get("seconds")) or 0.0,
            "copy_rates": rates if isinstance(rates, list) else None,
        }

    def features(self) -> list[dict[str, Any]]:
        """Return what became of the features of each layer, where that was recorded."""
        found = self.read("features")
        layers = found.get("layers") if isinstance(found, dict) else found
        if found is not None and not isinstance(layers, list):
            raise self.damaged("features.json", "it holds no layers")
        return layers or []

    def metrics(self) -> list[dict[str, Any]]:
        return self.readable_metrics()[0]

    def readable_metrics(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the lines of the epochs up to the first that cannot be read, and whether these are all."""
        lines: list[dict[str, Any]] = []
        try:
            for entry in self.entries():
                if not _is_line(entry):
                    return lines, False
                lines.append(entry)
        except (ValueError, RecursionError):
            return lines, False
        return lines, True

    def damaged(self, name: str, why: object) -> LabError:
        """Return the error for a file of the run that cannot be used."""
        return LabError(f"{self.path / name} is damaged ({why}): {self.remedy}")

    def _object(self, name: str) -> dict[str, Any] | None:
        found = self.read(name)
        if found is None or isinstance(found, dict):
            return found
        raise self.damaged(f"{name}.json", "it holds no object")


class RunDirectory(Run):
    """A run on the disk; the directory need not exist yet.

    If it is ``held_elsewhere``, another process holds the run and writes it, and this one writes nothing.
    """

    def __init__(self, path: Path, *, held_elsewhere: bool = False) -> None:
        super().__init__(path)
        self.held_elsewhere = held_elsewhere
        self._owner = path / ".owner"
        self._name = ""

    @contextmanager
    def locked(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the run, or raise BusyError after ``wait`` seconds.

        The lock is the operating system's: it ends with the process, and no file that is left behind keeps a
        run. The file ``.owner`` names the process for the messages of others, and shows a holder whose lock
        was lost that another has taken over: a file server may release the locks of a host that it does not
        reach, and hosts do not exclude one another where the file system locks for each host alone.
        """
        if self.held_elsewhere:
            yield
            return
        lock = FileLock(self.path / ".lock", timeout=wait, poll_interval=0.5, fallback_to_soft=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            owner = (self._read_owner() or "another process").partition("\n")[0]
            raise BusyError(f"{owner} is working on the run {self.path}: wait for it, or stop it") from None
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise LabError(
                    f"the file system of {self.path} has no locks ({error.strerror}): "
                    "give --out a directory on one that has"
                ) from error
            raise unwritable(self.path, error) from error
        try:
            for leftover in self.path.glob(".*-*"):  # of writes that were cut off
                leftover.unlink(missing_ok=True)
            name = f"process {os.getpid()} on {platform.node()}\n{secrets.token_hex(8)}\n"
            replace_file(self._owner, name.encode())
            self._name = name
            yield
        finally:
            self._name = ""
            lock.release()

    def _read_owner(self) -> str | None:
        with suppress(OSError):
            return self._owner.read_text("utf-8", errors="replace")
        return None

    def _replace(self, name: str, content: bytes | Callable[[BinaryIO], object]) -> None:
        if self._name and self._read_owner() != self._name:
            raise LabError(
                f"another process took over {self.path}, or the directory was removed: "
                "run the same command to resume"
            )
        if not self.held_elsewhere:
            replace_file(self.path / name, content)

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return (self.path / "result.json").exists()

    def read(self, name: str) -> Any:
        file = f"{name}.json"
        try:
            found = decode((self.path / file).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LabError(f"{self.path / file} could not be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise self.damaged(file, error) from None
        if found is None:
            raise self.damaged(file, "it holds nothing")
        return found

    def entries(self) -> Iterator[Any]:
        path = self.path / "metrics.jsonl"
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:  # there are none yet
            yield from map(decode, file)

    def metrics(self, epochs: int | None = None) -> list[dict[str, Any]]:
        """Return the lines of the epochs so far; one that cannot be read ends the list.

        ``epochs``, if given, are done and must be there.
        """
        lines, _ = self.readable_metrics()
        if epochs is not None and len(lines) < epochs:
            why = f"{epochs} epochs are done, and it can be read up to {len(lines)}"
            raise self.damaged("metrics.jsonl", why)
        return lines[:epochs]

    def write(self, name: str, value: Any) -> None:
        """Store the ``config``, the ``features`` of each layer, or the ``result``, which ends the run."""
        content = encode({"layers": value}) if name == "features" else encode(value, 2)
        self._replace(f"{name}.json", content)

    def write_metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        self._replace("metrics.jsonl", b"".join(map(encode, lines)))

    def save(self, state: dict[str, Any]) -> None:

        def write(file: BinaryIO) -> None:
            try:
                torch.save(state, file)
            except RuntimeError as error:  # what torch makes of a write that failed
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

        self._replace("checkpoint.pt", write)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            with zipfile.ZipFile(path) as archive:
                if (name := archive.testzip()) is not None:  # which torch does not ask
                    raise ValueError(f"the checksum of {name} does not match")
            state = torch.load(path, map_location=device, weights_only=True)
            if not isinstance(state, dict):
                raise TypeError(f"it holds a {type(state).__name__}")
        except Exception as error:
            reason = error if type(error) in (TypeError, ValueError) else type(error).__name__
            raise LabError(f"{path} is damaged ({reason}): delete it to start the run again") from error
        return state
