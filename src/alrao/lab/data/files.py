"""The files of a folder or of a tar archive, one after the other."""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import LabError
from .places import short_digest
from .progress import progress

__all__ = ["contents", "is_archive", "members", "readable", "state_of"]

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")

Wanted = Callable[[str], bool]
"""Whether a file of that relative name is of interest."""


def is_archive(path: Path) -> bool:
    """Whether this is a file with the name of a tar archive."""
    return path.name.lower().endswith(ARCHIVES) and path.is_file()


def state_of(source: Path, wanted: Wanted = lambda _: True) -> str:
    """A digest of sizes and times of change: another one means that the source is not what it was."""
    with readable(source):
        names = [""] if source.is_file() else _names(source, wanted)
        stats = [(name, (source / name).stat()) for name in names]
    return short_digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def contents(source: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """Relative name (with ``/``) and content of every file of a folder or an archive that is wanted.

    Raises:
        LabError: something cannot be read, or the archive is damaged.
    """
    with progress(f"reading {source.name}") as show:
        if source.is_file():
            yield from _of_archive(source, wanted, show)
        else:
            yield from _of_folder(source, wanted, show)


def _of_folder(folder: Path, wanted: Wanted, show: Callable[[float], None]) -> Iterator[tuple[str, bytes]]:
    with readable(folder):
        names = _names(folder, wanted)
    for number, name in enumerate(names, start=1):
        with readable(folder / name):
            content = (folder / name).read_bytes()
        yield name, content
        show(number / len(names))


def _of_archive(archive: Path, wanted: Wanted, show: Callable[[float], None]) -> Iterator[tuple[str, bytes]]:
    for tar, member, fraction in members(archive):
        name = member.name.removeprefix("./")
        if member.isfile() and wanted(name):
            with readable(archive):
                file = tar.extractfile(member)
                content = file.read() if file is not None else b""
            yield name, content
        show(fraction)


def members(archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, float]]:
    """The opened archive, each of its members, and the fraction of the file that has been read.

    Raises:
        LabError: it cannot be read, is no archive, damaged, or cut off anywhere.
    """
    with readable(archive):
        size = max(archive.stat().st_size, 1)
        with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
            for member in tar:
                yield tar, member, raw.tell() / size
            _require_end(tar)


@contextmanager
def readable(source: Path) -> Iterator[None]:
    """Errors of reading, in a line that has the file's name."""
    try:
        yield
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise _damaged(source, error) from error
    except OSError as error:
        if error.errno is None:  # from a decompressor
            raise _damaged(source, error) from error
        raise LabError(f"{source} cannot be read: {error.strerror}") from error


def _damaged(source: Path, error: Exception) -> LabError:
    reason = str(error).partition("\n")[0].rstrip(":")
    return LabError(f"{source} is damaged or cut off ({reason}): get it again")


def _require_end(tar: tarfile.TarFile) -> None:
    """Tell a whole archive from one cut off between two members, which tarfile takes for its end.

    The first of two empty blocks has been read.
    """
    file = tar.fileobj
    assert file is not None
    if file.tell() != tar.offset + tarfile.BLOCKSIZE or file.read(tarfile.BLOCKSIZE).strip(tarfile.NUL):
        raise tarfile.ReadError("its end is missing")


def _names(folder: Path, wanted: Wanted) -> list[str]:
    found = []
    for place, folders, files in os.walk(folder, onerror=_stop, followlinks=True):
        folders.sort()
        relative = Path(place).relative_to(folder)
        found += [name for name in ((relative / file).as_posix() for file in sorted(files)) if wanted(name)]
    return found


def _stop(error: OSError) -> None:
    raise error
