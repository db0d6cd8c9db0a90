"""How far each feature has moved from where it started, beside its learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import alrao

from .learner import Learner

__all__ = ["Movement"]


class Movement:
    """Remembers the initial weights of an Alrao model; says later what became of each feature.

    Args:
        learner: whose model is still as it was initialised.
    """

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
        """For each layer: rates of its features, norms of their weights at the start, and of the change."""
        optimizer = self.learner.optimizer
        if not self.start or not isinstance(optimizer, alrao.SGD | alrao.Adam):
            return []
        found = []
        for name, p in self.learner.model.named_parameters():
            if name not in self.start:
                continue
            rates = optimizer.rates(p).cpu()
            axes = [axis for axis, size in enumerate(rates.shape) if size == 1]
            begin = self.start[name].double()
            found.append(
                {
                    "name": name,
                    "rates": _short(rates),
                    "start": _short(_norm(begin, axes)),
                    "moved": _short(_norm(p.cpu().double() - begin, axes)),
                }
            )
        return found


def _norm(weights: Tensor, axes: list[int]) -> Tensor:
    return weights.square().sum(axes).sqrt()


def _short(numbers: Tensor) -> list[float]:
    return [float(f"{number:.3g}") for number in numbers.flatten().tolist()]
