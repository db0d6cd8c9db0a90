"""Sets of runs: trained in parallel, none twice; the failure of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from .lease import LEASE
from .provenance import require_clean
from .records import locate
from .resolve import resolve
from .run import pick_device
from .settings import Settings
from .spread import Processes, Spread
from .store import BusyError, Run


@dataclass(frozen=True)
class Planned:
    """A run of the set."""

    settings: Settings
    run: Run


Tell: TypeAlias = Callable[[Planned, str | None], None]
"""Called with each run that ended, and the error if there was one."""


class RunSet:
    """Runs on the same data.

    Args:
        settings: what they have in common.
        roots: where runs are: new ones are written to the first, finished ones are looked up in all.
    """

    def __init__(self, settings: Settings, roots: list[Path]) -> None:
        self.settings, self.roots = settings, roots
        task, resolved = resolve(settings)
        self._identity = task.load(resolved, pick_device(settings.device)).identity
        self.planned: dict[Path, Planned] = {}
        self.failed: dict[Path, str] = {}

    def plan(self, settings: Settings) -> Planned:
        """Queue a run."""
        resolved = resolve(settings)[1]
        found = locate(resolved, self._identity, self.roots)
        return self.planned.setdefault(found.path, Planned(resolved, found))

    def run(self, spread: Spread | None = None, tell: Tell | None = None) -> None:
        """Train the missing runs, and wait for those that other processes train.

        Args:
            spread: where they are trained; by default one after the other in this process.
            tell: called with each run that ended.
        """
        if self.settings.to_keep:
            require_clean()
        todo = [
            planned
            for path, planned in self.planned.items()
            if path not in self.failed and planned.run.result is None
        ]
        spread, wait = spread or Processes(), 0.0
        while todo:
            busy = []
            for number, error in spread.run([planned.settings for planned in todo], self.roots, wait):
                planned = todo[number]
                if isinstance(error, BusyError):
                    busy.append(planned)
                    continue
                if error is not None:
                    self.failed[planned.run.path] = error
                if tell is not None:
                    tell(planned, error)
            todo, wait = busy, LEASE + 10.0  # long enough to find that an owner is dead

    @property
    def runs(self) -> list[Run]:
        """All runs of the set."""
        return [planned.run for planned in self.planned.values()]
