"""The training loop: epochs, early stopping, checkpoints, metrics and the result.

A run that is killed at any moment and started again ends with the same numbers to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from .errors import LabError
from .methods import learner
from .provenance import provenance
from .recording import EventFiles, Movement
from .settings import THREADS, Settings
from .store import RunDirectory
from .tasks.task import Measures, Task
from .team import Team

CHECKPOINT_SECONDS = 300.0
"""How often a checkpoint is saved during an epoch."""
SHORT_SECONDS = 20.0
"""How often at the ends of epochs that are parts of a pass, which may take less time than writing."""


@dataclass
class Progress:
    """The state of the loop; all of it is in the checkpoint."""

    epoch: int = 1
    total: int = 0  # steps since the start
    updates: int = 0  # updates since the start
    losses: float = 0.0  # sum of the losses of this epoch
    counted: int = 0  # updates in this epoch
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of this process, which do not depend on what else runs
    best_epoch: int = 0
    best: float = inf  # the first measure on validation data, negated where higher is better
    diverged: int | None = None  # the step
    trace: list[Any] = field(default_factory=list)  # the posterior in this epoch
    path: list[Any] = field(default_factory=list)  # the rate that Auto has found, in this epoch


def train(
    problem: Task, settings: Settings, directory: RunDirectory, team: Team, watch: Watch | None = None
) -> None:
    """Train until the end, from the checkpoint if there is one, and write the result."""
    config = team.first(directory.config)
    if config is None:
        config = {"settings": asdict(settings), "data": problem.about, **provenance(team.device)}
        config |= {"processes": team.size} if team.size > 1 else {}
        directory.write("config", config)
    threads = config.get("threads")
    if not isinstance(threads, int) or not THREADS[1](threads):
        raise directory.damaged("config.json", "it names no number of threads")
    torch.set_num_threads(threads)  # another number would change the last bits
    Loop(problem, settings, directory, team, watch).run()


@dataclass
class Loop:
    """One run of the loop; ``watch`` is called with it after every step."""

    problem: Task
    settings: Settings
    directory: RunDirectory
    team: Team
    watch: Watch | None

    def __post_init__(self) -> None:
        self.epochs = self.settings.epochs or 1
        learn = partial(learner, settings=self.settings, problem=self.problem)
        self.problem.start(self.settings, self.team, learn)
        self.learner = self.problem.learner
        self.movement = Movement(self.learner)
        self.progress = Progress()
        self.best_weights: dict[str, Tensor] | None = None
        if (saved := self.directory.load(self.team.device)) is not None:
            self._restore(saved)
        self.team.require_same(f"{self.progress.total} steps")
        self.lines = self.directory.metrics(self.progress.epoch - 1)
        events = self.settings.tensorboard and self.team.rank == 0
        self.events = EventFiles(self.directory.path, self.lines) if events else None
        self._start_clock()
        self.saved = self.team.clock()

    def run(self) -> None:
        progress = self.progress
        while (
            progress.epoch <= self.epochs
            and progress.diverged is None
            and progress.epoch - 1 - progress.best_epoch < self.settings.patience
        ):
            self._train_epoch()
            if progress.diverged is None:
                self._end_epoch()
            progress = self.progress
        if self.events is not None:
            self.events.close()
        if layers := self.movement.layers():
            self.directory.write("features", layers)
        self.directory.write_metrics(self.lines)
        self.directory.write("result", self._result())
        self.directory.save(
            {"best": self.best_weights, "recipe": self.problem.preparation()}
        )  # to predict with

    @property
    def step(self) -> int:
        """Steps of this epoch that are done."""
        return self.progress.total - (self.progress.epoch - 1) * self.problem.steps

    @property
    def mean_loss(self) -> float | None:
        """The mean training loss of this epoch so far."""
        return self.progress.losses / self.progress.counted if self.progress.counted else None

    def _train_epoch(self) -> None:
        progress = self.progress
        self._start_clock()
        begun = self.team.clock()
        for steps, loss in self.problem.epoch(progress.epoch, self.step):
            if loss is not None:
                if not isfinite(loss):
                    progress.diverged = progress.total + steps
                    break
                progress.losses += loss
                progress.counted += 1
                progress.updates += 1
                self._trace()
            progress.total += steps
            if self.watch is not None:
                self.watch(self)
            if self.team.clock() - max(begun, self.saved) > CHECKPOINT_SECONDS:
                self._count_time()
                self.directory.write_metrics(self.lines)
                self._save()
                self._start_clock()
        self._count_time()

    def _trace(self) -> None:
        """Record posterior and rate at every update first, then more rarely, for a logarithmic time axis."""
        updates = self.progress.updates
        if updates % max(1, 10 ** (len(str(updates)) - 2)):
            return
        if (posterior := self.learner.posterior) is not None:
            self.progress.trace.append([updates, [float(f"{weight:.4g}") for weight in posterior]])
        if (rate := self.learner.found_rate) is not None:
            self.progress.path.append([updates, float(f"{rate:.4g}")])

    def _end_epoch(self) -> None:
        progress, problem = self.progress, self.problem
        with self.learner.evaluating(problem.calibration(progress.epoch)) as model:
            valid, test = problem.evaluate(model)
            value = valid[problem.measures[0]]
            assert value is not None
            value = -value if problem.higher_is_better else value
            if value < progress.best:  # never true of nan
                progress.best, progress.best_epoch = value, progress.epoch
                self.best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self._count_time()
        self.lines.append(self._line(valid, test))
        self.progress = replace(progress, epoch=progress.epoch + 1, losses=0.0, counted=0, trace=[], path=[])
        if self.settings.every is None or self.team.clock() - self.saved > SHORT_SECONDS:
            self.directory.write_metrics(self.lines)
            self._save()
        if self.events is not None:
            self.events.epoch(self.lines[-1])

    def _start_clock(self) -> None:
        self.began, self.worked = time.perf_counter(), time.process_time()

    def _count_time(self) -> None:
        began, worked = self.began, self.worked
        self._start_clock()
        self.progress.seconds += self.began - began
        self.progress.cpu += self.worked - worked

    def _line(self, valid: Measures, test: Measures) -> dict[str, Any]:
        progress = self.progress
        line: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.total,
            "seconds": round(progress.seconds, 3),
            "cpu": round(progress.cpu, 3),
            "train": {"loss": self.mean_loss, **self.problem.end_epoch()},
            "valid": valid,
            "test": test,
        }
        line |= {"posterior": progress.trace} if progress.trace else {}
        return line | ({"rate": progress.path} if progress.path else {})

    def _result(self) -> dict[str, Any]:
        self._start_clock()
        added = self.problem.conclude(self.best_weights)
        self._count_time()
        progress, rates = self.progress, self.learner.rates
        best = self.lines[progress.best_epoch - 1] if progress.best_epoch else {}
        return {
            "status": "finished" if progress.diverged is None and best else "diverged",
            "diverged_at": progress.diverged,
            "measures": self.problem.measures,
            "epochs": len(self.lines),
            "steps": progress.total,
            "seconds": round(progress.seconds, 3),
            "cpu": round(progress.cpu, 3),
            "best_epoch": progress.best_epoch or None,
            **{part: best.get(part) for part in ("train", "valid", "test")},
            "parameters": sum(p.numel() for p in self.learner.model.parameters()),
            "copy_rates": rates,
            **added,
        }

    def _save(self) -> None:
        self.saved = self.team.clock()
        random, kind = {"cpu": torch.get_rng_state()}, self.team.device.type
        if kind in ("cuda", "mps"):
            random[kind] = getattr(torch, kind).get_rng_state()
        self.directory.save(
            {
                **self.problem.state_dict(),
                "learner": self.learner.state_dict(),
                "progress": asdict(self.progress),
                "random": random,
                "best": self.best_weights,
            }
        )

    def _restore(self, saved: dict[str, Any]) -> None:
        try:
            self.learner.load_state_dict(saved["learner"])
            self.problem.load_state_dict(saved)
            self.progress, self.best_weights = Progress(**saved["progress"]), saved["best"]
            for kind, state in saved["random"].items():
                if kind in ("cpu", self.team.device.type):
                    module = torch if kind == "cpu" else getattr(torch, kind)
                    module.set_rng_state(state.cpu())
        except Exception as error:  # of whatever the file holds
            raise LabError(
                f"{self.directory.path / 'checkpoint.pt'} is not of this run or of this version "
                f"({type(error).__name__}): delete it to start the run again"
            ) from error


Watch = Callable[[Loop], None]
