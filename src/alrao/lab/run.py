"""One run: train a network by a method, with early stopping, into a directory, resumable to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import LabError
from .events import EventFiles
from .learner import Learner
from .methods import learner as make_learner
from .movement import Movement
from .provenance import provenance
from .resolve import resolve
from .seeds import seed_of
from .settings import Settings
from .store import RunDirectory, locate
from .tasks import Problem, Trainable

__all__ = ["Moment", "evaluate", "pick_device", "run", "trace_posterior", "train"]

CHECKPOINT_SECONDS = 300.0
"""How often a long epoch is saved on its way."""


@dataclass(frozen=True)
class Moment:
    """Where a run stands, for whoever watches it."""

    epoch: int
    epochs: int
    step: int
    """Within the epoch."""
    steps: int
    loss: float
    """Mean training loss of the epoch so far."""
    last: dict[str, Any] | None
    """The line of the last full epoch."""
    learner: Learner
    shown: str | None = None
    """What to show of it, where that is not the loss."""


Watch = Callable[[Moment], None]


@dataclass
class _Progress:
    """What a run has done so far, all of it in the checkpoint."""

    epoch: int = 1
    step: int = 0  # within the epoch
    total: int = 0  # steps since the start
    losses: float = 0.0  # sum of the epoch's training losses
    seconds: float = 0.0
    best_epoch: int = 0
    best: float = inf
    diverged: int | None = None
    trace: list[Any] = field(default_factory=list)  # of the posterior, in this epoch


def pick_device(name: str) -> torch.device:
    """The device of a name; ``auto`` is the fastest there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise LabError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from None
    if device.type == "meta":
        raise LabError("--device meta cannot be used here: nothing is computed on it")
    return device


def run(settings: Settings, roots: list[Path], watch: Watch | None = None) -> RunDirectory:
    """Train as the settings say, or go on, or do nothing if it is done: the run's directory, with a result.

    Args:
        settings: as the user gave them.
        roots: where runs are: new ones go to the first, finished ones are looked for in all.
        watch: is told after each step.
    """
    task, settings = resolve(settings)
    device = pick_device(settings.device)
    with _threads(settings.threads):
        problem = task.load(settings, device)
        directory = locate(settings, problem.identity, roots)
        if directory.result is None:
            lock = directory.lock()
            try:
                if isinstance(problem, Trainable):
                    problem.train(settings, directory, device, watch)
                else:
                    train(problem, settings, directory, device, watch)
            finally:
                lock.release()
        elif settings.tensorboard and not EventFiles.exist(directory.path):
            EventFiles(directory.path, directory.metrics()).close()
    return directory


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    problem: Problem, settings: Settings, directory: RunDirectory, device: torch.device, watch: Watch | None
) -> None:
    """Train to the end, from the checkpoint if there is one, and write the result."""
    epochs = settings.epochs or 1
    config = directory.config
    if config is None:
        config = {"settings": asdict(settings), "data": problem.about, **provenance(device)}
        directory.write_config(config)
    torch.set_num_threads(directory.threads(config))  # another number would change the last bits

    torch.manual_seed(seed_of(settings.seed, "network"))
    net = problem.network().to(device)
    learner = make_learner(net, settings, problem)
    movement = Movement(learner)
    learner.follow(settings.schedule, epochs * problem.steps)
    progress, carry, best_weights = _Progress(), None, None
    saved = directory.load(device)
    if saved is not None:
        try:
            learner.load_state_dict(saved["learner"])
            progress, carry, best_weights = _Progress(**saved["progress"]), saved["carry"], saved["best"]
            _set_random_state(saved["random"], device)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise directory.foreign_checkpoint(error) from error
    lines = directory.metrics(progress.epoch - 1)
    events = EventFiles(directory.path, lines) if settings.tensorboard else None

    def save() -> None:
        directory.save(
            {
                "learner": learner.state_dict(),
                "progress": asdict(progress),
                "carry": carry,
                "random": _random_state(device),
                "best": best_weights,
            }
        )

    learner.train()
    while progress.epoch <= epochs and progress.diverged is None:
        if progress.epoch - 1 - progress.best_epoch >= settings.patience:
            break
        began, kept = time.perf_counter(), time.perf_counter()
        for inputs, targets in problem.batches(progress.epoch, progress.step):
            outputs, carry = problem.forward(learner.model, inputs.to(device), carry)
            loss = problem.loss(outputs, targets.to(device))
            value = loss.item()
            if not isfinite(value):
                progress.diverged = progress.total + 1
                break
            learner.step(loss, settings.clip)
            progress.step += 1
            progress.total += 1
            progress.losses += value
            trace_posterior(progress.trace, progress.total, learner)
            if watch is not None:
                mean = progress.losses / progress.step
                last = lines[-1] if lines else None
                watch(Moment(progress.epoch, epochs, progress.step, problem.steps, mean, last, learner))
            now = time.perf_counter()
            if now - kept > CHECKPOINT_SECONDS:
                progress.seconds += now - began
                save()
                began = kept = time.perf_counter()
        if progress.diverged is not None:
            progress.seconds += time.perf_counter() - began
            break
        calibration = (inputs.to(device) for inputs, _ in problem.batches(progress.epoch))
        with learner.evaluating(calibration) as model:
            valid, test = (evaluate(problem, model, part, device) for part in ("valid", "test"))
            if valid[problem.measures[0]] < progress.best:  # never true of nan
                progress.best, progress.best_epoch = valid[problem.measures[0]], progress.epoch
                best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        progress.seconds += time.perf_counter() - began
        lines.append(_line(progress, learner, valid, test))
        progress = replace(progress, epoch=progress.epoch + 1, step=0, losses=0.0, trace=[])
        carry = None
        directory.write_metrics(lines)
        save()
        if events is not None:
            events.epoch(lines[-1])
    if events is not None:
        events.close()
    directory.write_features(movement.layers(problem))
    directory.write_result(_result(problem, learner, progress, lines, net))


@torch.no_grad()
def evaluate(problem: Problem, model: nn.Module, part: str, device: torch.device) -> dict[str, float]:
    """The measures of a model on a part of the data."""
    sums: dict[str, float] = {}
    carry = None
    for inputs, targets in problem.evaluation(part):
        outputs, carry = problem.forward(model, inputs.to(device), carry)
        for name, value in problem.score(outputs, targets.to(device)).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return problem.measure(sums)


def trace_posterior(trace: list[Any], total: int, learner: Learner) -> None:
    """Note the posterior: at every step first, then ever more rarely, for a logarithmic axis of time."""
    if total % max(1, 10 ** (len(str(total)) - 2)) == 0 and (posterior := learner.posterior) is not None:
        trace.append([total, [float(f"{weight:.4g}") for weight in posterior]])


def _line(
    progress: _Progress, learner: Learner, valid: dict[str, float], test: dict[str, float]
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "epoch": progress.epoch,
        "step": progress.total,
        "seconds": round(progress.seconds, 3),
        "train": {"loss": progress.losses / max(1, progress.step)},
        "valid": valid,
        "test": test,
    }
    if progress.trace:
        line["posterior"] = progress.trace
    return line


def _result(
    problem: Problem, learner: Learner, progress: _Progress, lines: list[dict[str, Any]], net: nn.Module
) -> dict[str, Any]:
    best = lines[progress.best_epoch - 1] if progress.best_epoch else None
    return {
        "status": "finished" if progress.diverged is None and best is not None else "diverged",
        "diverged_at": progress.diverged,
        "measures": problem.measures,
        "epochs": len(lines),
        "steps": progress.total,
        "seconds": round(progress.seconds, 3),
        "best_epoch": progress.best_epoch or None,
        "train": best["train"] if best else None,
        "valid": best["valid"] if best else None,
        "test": best["test"] if best else None,
        "parameters": sum(p.numel() for p in learner.model.parameters()),
        "copy_rates": learner.rates,
    }


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type in ("cuda", "mps"):
        state[device.type] = getattr(torch, device.type).get_rng_state()
    return state


def _set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if device.type in state and device.type != "cpu":
        getattr(torch, device.type).set_rng_state(state[device.type].cpu())
