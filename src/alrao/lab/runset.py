"""Sets of runs: trained in parallel, none twice; the failure of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from joblib import Parallel, delayed  # type: ignore[import-untyped]
from joblib.externals.loky.process_executor import (  # type: ignore[import-untyped]
    TerminatedWorkerError,
)

from .errors import LabError
from .lease import LEASE
from .provenance import require_clean
from .records import locate
from .resolve import resolve
from .run import pick_device, run
from .settings import Settings
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

    def run(self, jobs: int = 1, tell: Tell | None = None) -> None:
        """Train the missing runs; wait for those that other processes, perhaps of other hosts, train.

        Args:
            jobs: the number of runs at a time, each in its own process.
            tell: called with each run that ended.
        """
        if self.settings.to_keep:
            require_clean()
        todo = [
            planned
            for path, planned in self.planned.items()
            if path not in self.failed and planned.run.result is None
        ]
        threads = self.settings.threads or (1 if jobs > 1 else None)
        wait = 0.0
        try:
            while todo:
                work = (
                    delayed(_run_one)(number, replace(planned.settings, threads=threads), self.roots, wait)
                    for number, planned in enumerate(todo)
                )
                busy = []
                for number, error in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(
                    work
                ):
                    planned = todo[number]
                    if isinstance(error, BusyError):
                        busy.append(planned)
                        continue
                    if error is not None:
                        self.failed[planned.run.path] = error
                    if tell is not None:
                        tell(planned, error)
                todo, wait = busy, LEASE + 10.0  # long enough to find that an owner is dead
        except TerminatedWorkerError:
            raise LabError(
                "a training process was killed, perhaps for lack of memory: try fewer --jobs; "
                "run the same command to resume"
            ) from None

    @property
    def runs(self) -> list[Run]:
        """All runs of the set."""
        return [planned.run for planned in self.planned.values()]


def _run_one(
    number: int, settings: Settings, roots: list[Path], wait: float
) -> tuple[int, BusyError | str | None]:
    """Run, and return the error in a sentence if there was one."""
    try:
        run(settings, roots, wait=wait)
    except BusyError as error:
        return number, error
    except LabError as error:
        return number, str(error)
    except Exception as error:  # a bug or a lack of memory in one run must not end the others
        return number, f"{type(error).__name__}: {error}"
    return number, None
