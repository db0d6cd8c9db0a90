"""Archives of image files, unpacked once into the cache."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from ..errors import LabError
from .files import members, readable, state_of
from .pictures import EXTENSIONS
from .places import cache_folder, locked, short_digest
from .progress import progress

__all__ = ["unpacked"]


def unpacked(archive: Path) -> Path:
    """The folder in the cache with the images of a tar archive; the first time, it is made.

    Raises:
        LabError: the archive is damaged, holds a path that leads out of it, or the cache cannot be written.
    """
    stem = archive.name.split(".")[0]
    folder = cache_folder() / f"{stem}-{short_digest(str(archive.resolve()), state_of(archive))}"
    if folder.is_dir():
        return folder
    if not hasattr(tarfile, "data_filter"):
        raise LabError(
            f"unpacking {archive} safely needs Python 3.11.4 or later: unpack it, and name the folder"
        )
    with locked(folder) as alone:
        if folder.is_dir():
            return folder
        for leftover in folder.parent.glob(f".{folder.name}-*") if alone else ():
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        except OSError as error:
            raise _unwritten(archive, folder.parent, error) from error
        try:
            _unpack(archive, temporary)
            temporary.rename(folder)
        except OSError as error:
            raise _unwritten(archive, folder.parent, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    with progress(f"unpacking {archive.name}") as show:
        for tar, member, fraction in members(archive):
            if member.isdir() or (member.isfile() and member.name.lower().endswith(EXTENSIONS)):
                _extract(archive, tar, member, folder)
            show(fraction)


def _extract(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    try:
        with readable(archive):
            tar.extract(member, folder, filter="data")
    except LabError as error:
        cause = error.__cause__
        if isinstance(cause, tarfile.FilterError):
            raise LabError(f"{archive} is not unpacked: its member {member.name} leads out of it") from cause
        if isinstance(cause, OSError) and cause.errno is not None:
            raise cause from None  # of writing, not of reading
        raise


def _unwritten(archive: Path, folder: Path, error: OSError) -> LabError:
    reason = error.strerror or error
    return LabError(
        f"{archive} could not be unpacked into {folder}: {reason} (ALRAO_CACHE names another place)"
    )
