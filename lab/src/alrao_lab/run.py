"""One run of the workbench: found if it is finished, trained if not."""

from __future__ import annotations

from pathlib import Path

import torch

from .errors import LabError
from .loop import Watch, train
from .provenance import require_clean
from .recording import EventFiles, event_files
from .records import locate
from .resolve import resolve
from .settings import Settings
from .store import Run, RunDirectory
from .tasks.task import Supervised, Task
from .team import Team


def pick_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the fastest available one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise LabError(f"--device {name} cannot be used here ({reason}): try --device cpu") from None
    if device.type == "meta":
        raise LabError("--device meta cannot be used here (it computes nothing): try --device cpu")
    return device


def require_share(problem: Task, settings: Settings, processes: int) -> None:
    """Refuse a run that so many processes cannot share."""
    if processes == 1:
        return
    if not isinstance(problem, Supervised):
        raise LabError(
            f"--processes {processes} is for tasks with batches of inputs and targets, and {settings.task} "
            "has none: train it in one process"
        )
    batch = settings.batch or 1
    if batch % processes:
        nearest = max(1, round(batch / processes)) * processes
        raise LabError(
            f"--batch {batch} cannot be divided by {processes} processes: give --batch {nearest}, "
            "or another number of processes"
        )


def _lacks_memory(error: RuntimeError) -> bool:
    """Whether torch found no memory; on the CPU, only the message tells."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def run(
    settings: Settings,
    roots: list[Path],
    watch: Watch | None = None,
    wait: float = 0.0,
    team: Team | None = None,
) -> Run:
    """Return a finished run: train it, resume it, find it, or wait for the process that trains it."""
    task, settings = resolve(settings)
    team = team or Team(pick_device(settings.device))
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads or threads)
    try:
        problem = task.load(settings, team.device)
        require_share(problem, settings, team.size)
        directory = locate(settings, problem.identity, roots)
        if isinstance(directory, RunDirectory) and team.first(directory.result is None):
            if settings.to_keep and team.rank == 0:
                require_clean()
            directory = RunDirectory(directory.path, held_elsewhere=team.rank > 0)
            with directory.locked(wait):
                if team.first(directory.result is None):  # it may have ended meanwhile
                    train(problem, settings, directory, team, watch)
        elif settings.tensorboard and team.rank == 0:
            place = roots[0] / directory.name  # of a run that is kept, too
            if not event_files(place):
                EventFiles(place, directory.metrics()).close()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _lacks_memory(error):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise LabError(
            f"the memory of {team.device} is too small for this run ({reason}): "
            "choose a smaller --width, --batch or --copies, or another --model"
        ) from error
    finally:
        torch.set_num_threads(threads)
    return directory
