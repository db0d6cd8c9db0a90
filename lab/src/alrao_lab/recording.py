"""What a run records beside its measures: TensorBoard event files, and how far each feature moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import alrao

from .errors import optional
from .learner import Learner
from .store import unwritable

FOLDER = "tensorboard"


def event_files(path: Path) -> list[Path]:
    """Return the event files of a run."""
    return list((path / FOLDER).glob("events.out.tfevents.*"))


class EventFiles:
    """Writes the measures of each epoch, and the posterior, to a run's directory.

    The lines of the epochs hold everything to write, so that a resumed run writes its files again: they are
    then complete, without duplicates.
    """

    def __init__(self, path: Path, lines: list[dict[str, Any]]) -> None:
        module = optional("torch.utils.tensorboard", "tensorboard", "--tensorboard", "tensorboard")
        for old in event_files(path):
            old.unlink(missing_ok=True)
        try:
            self._writer = module.SummaryWriter(str(path / FOLDER))
        except OSError as error:
            raise unwritable(path / FOLDER, error) from error
        for line in lines:
            self.epoch(line)

    def epoch(self, line: dict[str, Any]) -> None:
        for part in ("train", "valid", "test"):
            for name, value in line[part].items():
                self._add(f"{name}/{part}", value, line["step"])
        for step, weights in line.get("posterior", ()):
            for number, weight in enumerate(weights):
                self._add(f"posterior/copy {number}", weight, step)
        self._writer.flush()

    def _add(self, tag: str, value: float | None, step: int) -> None:
        if value is not None:  # stored for a number that is not finite
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        self._writer.close()


class Movement:
    """Keeps the initial weights of an Alrao model, to compare with them later."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.start: dict[str, Tensor] = {}
        if isinstance(learner.model, alrao.Alrao):
            self.start = {
                name: p.detach().to("cpu", copy=True)
                for name, p in learner.model.named_parameters()
                if p.ndim > 1 and not name.endswith("bias")  # a layer's weights stand for it
            }

    @torch.no_grad()
    def layers(self) -> list[dict[str, Any]]:
        """Return, for each layer, its features' rates, their initial norms, and the norms of their change."""
        optimizer = self.learner.optimizer
        if not self.start or not isinstance(optimizer, alrao.AlraoOptimizer):
            return []
        found = []
        for name, p in self.learner.model.named_parameters():
            if name not in self.start:
                continue
            rates = optimizer.rates(p).cpu()
            if rates.numel() == 1 and p.ndim:  # one for all features, which lie along the first axis then
                rates = rates.expand([len(p)] + [1] * (p.ndim - 1))
            axes = [axis for axis, size in enumerate(rates.shape) if size == 1]
            begin = self.start[name].double()
            moved = _norm(p.cpu().double() - begin, axes)
            norms = {"start": _short(_norm(begin, axes)), "moved": _short(moved)}
            found.append({"name": name, "rates": _short(rates), **norms})
        return found


def _norm(weights: Tensor, axes: list[int]) -> Tensor:
    return weights.square().sum(axes).sqrt()


def _short(numbers: Tensor) -> list[float]:
    return [float(f"{number:.3g}") for number in numbers.flatten().tolist()]
