"""Where the runs of a set are trained: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from joblib.externals.loky.process_executor import (  # type: ignore[import-untyped]
    TerminatedWorkerError,
)

import alrao

from .errors import LabError, optional, unknown
from .run import run
from .settings import Settings
from .store import BusyError, replace_file

BACKENDS = ("joblib", "ray")
RETRIES = 3
"""How often a run is started again on Ray after the death of its worker or its node."""
Outcome = BusyError | str | None
"""The error in a sentence; None for a run that ended."""
Ended = tuple[int, Outcome]
"""The number of a run, and its outcome."""


@dataclass(frozen=True)
class Processes:
    """Processes of this machine: the number of runs at a time, one unless told otherwise."""

    jobs: int | None = None

    def run(self, wanted: Sequence[Settings], roots: list[Path], wait: float) -> Iterator[Ended]:
        """Train runs, and yield the number and the outcome of each as it ends."""
        threads = None if self.jobs in (None, 1) else 1
        work = (
            delayed(_run_one)(number, replace(each, threads=each.threads or threads), roots, wait)
            for number, each in enumerate(wanted)
        )
        try:
            yield from Parallel(n_jobs=self.jobs or 1, return_as="generator_unordered", batch_size=1)(work)
        except TerminatedWorkerError:
            raise LabError(
                "a training process was killed, perhaps for lack of memory: try fewer --jobs; "
                "run the same command to resume"
            ) from None


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: the one that ``RAY_ADDRESS`` names, or runs on this machine, or is started here.

    A run takes ``threads`` processors (one by default) and ``gpus`` of its node. Every node needs the data,
    and the directory of runs on a file system that all share.
    """

    jobs: int | None = None
    """The most runs at a time."""
    gpus: float = 0.0
    """Of each run; runs may share one."""

    def run(self, wanted: Sequence[Settings], roots: list[Path], wait: float) -> Iterator[Ended]:
        """Train runs, and yield the number and the outcome of each as it ends."""
        wanted = [self._reserving(each) for each in wanted]
        ray = self._connected(max(each.threads or 1 for each in wanted))
        train = ray.remote(_run_on_node)
        roots = [root.absolute() for root in roots]
        sign = roots[0] / f".ray-{secrets.token_hex(8)}"  # seen by the nodes that share the directory
        replace_file(sign, b"")
        pending: dict[Any, int] = {}
        waiting = iter(enumerate(wanted))
        try:
            while True:
                for number, each in islice(waiting, (self.jobs or sys.maxsize) - len(pending)):
                    task = train.options(num_cpus=each.threads, num_gpus=self.gpus, max_retries=RETRIES)
                    pending[task.remote(number, each, roots, wait, sign, _versions())] = number
                if not pending:
                    return
                [done], _ = ray.wait(list(pending))
                number = pending.pop(done)
                try:
                    yield ray.get(done)
                except ray.exceptions.RayTaskError as error:  # a run reports its own errors
                    reason = str(error).strip().splitlines()[-1]
                    yield number, f"a node of the Ray cluster cannot run it ({reason}): install alrao there"
                except ray.exceptions.RayError as error:
                    reason = str(error).strip().splitlines()[0]
                    yield number, f"it was started {RETRIES + 1} times on Ray, and failed: {reason}"
        finally:
            for task in pending:
                ray.cancel(task, force=True)
            sign.unlink(missing_ok=True)

    def _reserving(self, settings: Settings) -> Settings:
        """The settings of a run that uses what it reserves, and finds the data in any working directory."""
        device = "cpu" if settings.device == "auto" and not self.gpus else settings.device
        data = settings.data or os.environ.get("ALRAO_DATA")
        data = data and str(Path(data).expanduser().absolute())
        return replace(settings, device=device, data=data, threads=settings.threads or 1)

    def _connected(self, threads: int) -> Any:
        ray = optional("ray", "ray", "--backend ray")
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason, address = str(error).splitlines()[0], os.environ.get("RAY_ADDRESS", "not set")
                raise LabError(
                    f"no Ray cluster can be reached, RAY_ADDRESS is {address} ({reason}): "
                    "start one with `ray start --head`, or unset RAY_ADDRESS to use this machine"
                ) from None
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for resource, wanted in (("GPU", self.gpus), ("CPU", threads)):
            most = max(node.get(resource, 0.0) for node in nodes)
            if wanted > most:  # Ray would wait for such a node
                option = "gpus" if resource == "GPU" else "threads"
                raise LabError(
                    f"--{option} {wanted:g} is more than any node of the Ray cluster has ({most:g}): "
                    "ask for less, or add a node"
                )
        return ray


Spread: TypeAlias = Processes | Ray
"""Where several runs are trained at a time."""


def pick_spread(backend: str = "joblib", jobs: int | None = None, gpus: float | None = None) -> Spread:
    """Return the backend of that name."""
    if backend not in BACKENDS:
        raise unknown("value of --backend", backend, BACKENDS)
    if gpus is not None and not (0 <= gpus <= 1 or gpus % 1 == 0 < gpus):
        raise LabError(f"--gpus must be a part of one GPU, such as 0.25, or a whole number, got {gpus:g}")
    if backend == "ray":
        return Ray(jobs, gpus or 0.0)
    if gpus is not None:
        raise LabError(f"--gpus {gpus:g} is for --backend ray: add it, or use --device cuda --jobs N instead")
    return Processes(jobs)


def _versions() -> str:
    return f"alrao {alrao.__version__} and torch {torch.__version__}"


def _run_on_node(
    number: int, settings: Settings, roots: list[Path], wait: float, sign: Path, versions: str
) -> Ended:
    """Run on a node of a cluster, if that has what it takes."""
    node = platform.node()
    if not sign.exists():
        return number, (
            f"the node {node} does not see the directory of runs {roots[0]}: "
            "give --out a directory on a file system that all nodes share"
        )
    if versions != _versions():
        return number, f"the node {node} has {_versions()}, and this one {versions}: install the same on all"
    number, outcome = _run_one(number, settings, roots, wait)
    return number, f"on the node {node}: {outcome}" if isinstance(outcome, str) else outcome


def _run_one(number: int, settings: Settings, roots: list[Path], wait: float) -> Ended:
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
