"""A lease on a directory: one owner at a time, among the processes of every host that sees the directory.

Generation ``n`` of the lease is the file ``.lock.n``: it names the owner, who touches it every few seconds.
Whoever finds the last generation released, or its owner dead, creates the next one, which the file system
grants to one process only; this needs neither locks nor equal clocks, so it works on NFS. The last generation
is never removed: an owner who was taken for dead finds a later one, and stops.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from .errors import LabError

LEASE = 60.0
"""Seconds without a heartbeat after which an owner is dead; if its process ended on this host, at once."""
HEARTBEAT = 10.0
RELEASED = "released"


def _host() -> str:
    """The host, and the processes that are seen on it: hosts, and containers of one, may share a name."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    return f"{platform.node()} {uuid.getnode()}"


class Lease:
    """A lease on an existing directory, which the object may hold or wait for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = ""
        """Who holds it, for messages."""
        self._generation = 0
        self._watched: tuple[int, int] | None = None
        self._since = 0.0
        self._released = threading.Event()

    def take(self) -> bool:
        """Take the lease, and return whether that was possible; call it again to wait for it."""
        last = self._last()
        if last and not self._is_free(last):
            return False
        path = self._path(last + 1)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n{_host()}\n")
        except FileExistsError:  # another process was faster
            return False
        if self._last() != last + 1:  # so slow that others have come and gone
            path.unlink(missing_ok=True)
            return False
        self._generation = last + 1
        for old in range(1, last + 1):
            self._path(old).unlink(missing_ok=True)
        threading.Thread(target=self._beat, args=(path,), daemon=True).start()
        return True

    def check(self) -> None:
        """Raise if another process has taken it, since this one showed no sign of life."""
        if self._last() != self._generation:
            raise LabError(
                f"another process took over {self.folder} after {LEASE:g} s without a heartbeat of this one "
                "(or the directory was removed): run the same command to resume"
            )

    def release(self) -> None:
        self._released.set()
        with suppress(OSError), self._path(self._generation).open("r+", encoding="utf-8") as file:
            file.write(RELEASED)
            file.truncate()

    def _path(self, generation: int) -> Path:
        return self.folder / f".lock.{generation}"

    def _last(self) -> int:
        """The last generation; 0 before the first."""
        names = (path.name.removeprefix(".lock.") for path in self.folder.glob(".lock.*"))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _is_free(self, generation: int) -> bool:
        try:
            with self._path(generation).open(encoding="utf-8", errors="replace") as file:
                # Of the open file, since NFS then asks the server.
                pid, host, *_ = [*file.read().split("\n"), ""]
                state = generation, os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:  # there is a later one
            return False
        if pid == RELEASED:
            return True
        self.owner = f"process {pid} on {host.partition(' ')[0]}" if host else "a process that just started"
        if host == _host() and os.name == "posix" and not _is_alive(int(pid)):
            return True
        if state != self._watched:
            self._watched, self._since = state, time.monotonic()
        return time.monotonic() - self._since >= LEASE

    def _beat(self, path: Path) -> None:
        while not self._released.wait(HEARTBEAT):
            with suppress(OSError):  # what lasts is found by the next check
                os.utime(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()  # dead, and its parent has not noticed
    return True
