"""Where data is looked for, text files, the cache for what is made of data, tar archives, progress bars."""

from __future__ import annotations

import codecs
import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import rich.progress
from filelock import FileLock
from rich.console import Console

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


def read_text(path: Path) -> str:
    """Read a text file; line ends become newlines, and a byte-order mark is removed."""
    if not path.exists():
        raise LabError(f"there is no file {path}: check the name, or point at it with --data FILE")
    with readable(path):
        if path.is_dir():
            inside = sorted(each.name for each in path.iterdir() if each.is_file())[:5]
            hint = f"; in it are {', '.join(inside)}" if inside else ""
            raise LabError(f"{path} is a directory, and a file is needed: name the file itself{hint}")
        data = path.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise LabError(f"{path} is not UTF-8 but UTF-16: convert it, as with `iconv -f UTF-16 -t UTF-8`")
    if b"\0" in data:
        raise LabError(f"{path} is a binary file, and plain text is needed")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LabError(
            f"{path} is not UTF-8 (byte 0x{data[error.start]:02x} on line {line}): convert it, as with "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None
    if not text.strip():
        raise LabError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def shipped(name: str, *arguments: Any, **options: Any) -> Any:
    """Return what a function of ``sklearn.datasets`` loads, without a download."""
    datasets = optional("sklearn.datasets", "", "this task", "scikit-learn")
    return getattr(datasets, name)(*arguments, **options)


def cache_folder() -> Path:
    """Return ``$ALRAO_CACHE``, or ``$XDG_CACHE_HOME/alrao``, or ``~/.cache/alrao``; it need not exist."""
    if named := os.environ.get("ALRAO_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "alrao"


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
    with suppress(OSError, NotImplementedError):  # Timeout is an OSError
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


Item = TypeVar("Item")
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")

Wanted = Callable[[str], bool]
"""Whether to unpack the file of a name."""


def is_archive(path: Path) -> bool:
    """Whether this is a file with the name of a tar archive."""
    return path.name.lower().endswith(ENDINGS) and path.is_file()


def state_of(source: Path, files: Iterable[Path]) -> str:
    """Return a digest of names, sizes and times of modification, which changes when a file does."""
    with readable(source):
        stats = [(str(file), file.stat()) for file in sorted(files)]
    return short_digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


@contextmanager
def readable(source: Path, into: Path | None = None) -> Iterator[None]:
    """Turn errors of reading, or of unpacking into a folder, into one line with the name of the file."""
    try:
        yield
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if not isinstance(error, OSError) or error.errno is None:  # from a decompressor
            reason = str(error).partition("\n")[0].rstrip(":")
            raise LabError(f"{source} is damaged or cut off ({reason}): download it again") from error
        if into is None or str(error.filename) == str(source):
            raise LabError(f"{error.filename or source} cannot be read: {error.strerror}") from error
        raise LabError(
            f"{source} could not be unpacked into {into}: {error.strerror} (ALRAO_CACHE names another place)"
        ) from error


def unpacked(archive: Path, wanted: Wanted) -> Path:
    """Return a folder in the cache with the content of an archive; unpack it the first time."""
    stem = archive.name.split(".")[0]
    folder = cache_folder() / f"{stem}-{short_digest(str(archive.resolve()), state_of(archive, [archive]))}"
    beside, beginning = folder.parent, f".{folder.name}-"
    with locked(folder) as exclusive, readable(archive, beside):
        if folder.is_dir():
            return folder
        for leftover in beside.glob(f"{beginning}*/") if exclusive else ():
            shutil.rmtree(leftover, ignore_errors=True)
        beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", beginning, beside, ignore_cleanup_errors=True) as temporary:
            unpack(archive, Path(temporary), wanted)
            Path(temporary).rename(folder)
    return folder


def unpack(archive: Path, folder: Path, wanted: Wanted) -> None:
    """Unpack the wanted files of an archive into a folder."""
    if not hasattr(tarfile, "data_filter"):
        raise LabError(f"unpacking {archive} safely needs Python 3.11.4 or later: unpack it, name the folder")
    with (
        readable(archive, folder.parent),
        open_file(archive, f"unpacking {archive.name}") as raw,
        tarfile.open(fileobj=raw, mode="r:*") as tar,
    ):
        members = (member for member in tar if member.isdir() or (member.isfile() and wanted(member.name)))
        try:
            tar.extractall(folder, members, filter="data")
        except tarfile.FilterError as error:
            name = error.tarinfo.name
            raise LabError(f"{archive} is not unpacked: its member {name} leads out of it") from error
        # An archive cut off between two members, which tarfile takes for its end, lacks two empty blocks; the
        # first of them has been read.
        file: Any = tar.fileobj
        if file.tell() != tar.offset + tarfile.BLOCKSIZE or file.read(tarfile.BLOCKSIZE).strip(tarfile.NUL):
            raise tarfile.ReadError("its end is missing")


def _options() -> dict[str, Any]:
    console = Console(stderr=True)
    return {"console": console, "transient": True, "disable": not console.is_terminal}


def track(items: Sequence[Item], text: str) -> Iterable[Item]:
    """Iterate over items, with a bar."""
    return rich.progress.track(items, text, **_options())


def open_file(path: Path, text: str) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading, with a bar over its bytes."""
    return rich.progress.open(path, "rb", description=text, **_options())
