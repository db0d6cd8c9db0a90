"""Many runs: in parallel where asked, nothing done twice, a failure in one no matter to the others."""

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
from .resolve import resolve
from .run import pick_device, run
from .settings import Settings
from .store import RunDirectory, locate

__all__ = ["Planned", "RunSet", "Tell"]


@dataclass(frozen=True)
class Planned:
    """A run that is wanted."""

    settings: Settings
    directory: RunDirectory


Tell: TypeAlias = Callable[[Planned, str | None], None]
"""Is called with each run that ended, and what went wrong if something did."""


class RunSet:
    """Runs on the same data.

    Args:
        settings: what they have in common.
        roots: where runs are: new ones go to the first, finished ones are looked for in all.
    """

    def __init__(self, settings: Settings, roots: list[Path]) -> None:
        self.settings, self.roots = settings, roots
        task, resolved = resolve(settings)
        self._identity = task.load(resolved, pick_device(settings.device)).identity
        self.planned: dict[Path, Planned] = {}
        self.failed: dict[Path, str] = {}

    def plan(self, settings: Settings) -> Planned:
        """Want a run."""
        resolved = resolve(settings)[1]
        directory = locate(resolved, self._identity, self.roots)
        return self.planned.setdefault(directory.path, Planned(resolved, directory))

    def run(self, jobs: int = 1, tell: Tell | None = None) -> None:
        """Run what is missing.

        Args:
            jobs: runs at a time, each in a process of its own.
            tell: is told of each run that ended.
        """
        open_runs = [
            planned
            for path, planned in self.planned.items()
            if path not in self.failed and planned.directory.result is None
        ]
        threads = self.settings.threads or (1 if jobs > 1 else None)
        work = (
            delayed(_run_one)(number, replace(planned.settings, threads=threads), self.roots)
            for number, planned in enumerate(open_runs)
        )
        try:
            for number, error in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(work):
                planned = open_runs[number]
                if error is not None:
                    self.failed[planned.directory.path] = error
                if tell is not None:
                    tell(planned, error)
        except TerminatedWorkerError:
            raise LabError(
                "a process that trained was killed, perhaps for lack of memory: try fewer --jobs; "
                "the same command goes on from here"
            ) from None

    @property
    def directories(self) -> list[RunDirectory]:
        """Of all runs that were asked for."""
        return [planned.directory for planned in self.planned.values()]


def _run_one(number: int, settings: Settings, roots: list[Path]) -> tuple[int, str | None]:
    """Run, and say in a sentence what went wrong."""
    try:
        run(settings, roots)
    except LabError as error:
        return number, str(error)
    except Exception as error:  # a bug or a lack of memory in one run must not end the others
        return number, f"{type(error).__name__}: {error}"
    return number, None
