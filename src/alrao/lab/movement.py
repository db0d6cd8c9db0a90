"""How far each feature moved from its initial weights, and whether it still receives a gradient."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

import alrao

from .learner import Learner
from .tasks.task import Supervised

PROBED = 4
"""Training batches on which gradients are measured."""
FAINT = 1e-4
"""Below this fraction of its layer's median gradient, a feature is saturated."""


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
    def layers(self, problem: Supervised | None = None) -> list[dict[str, Any]]:
        """Return, for each layer, its features' rates, their initial norms, and the norms of their change.

        With a problem, also count dead features (no gradient) and saturated ones (a very small gradient).
        """
        optimizer = self.learner.optimizer
        if not self.start or not isinstance(optimizer, alrao.AlraoOptimizer):
            return []
        found = []
        gradients = {} if problem is None else self._gradients(problem)
        for name, p in self.learner.model.named_parameters():
            if name not in self.start:
                continue
            rates = optimizer.rates(p).cpu()
            axes = [axis for axis, size in enumerate(rates.shape) if size == 1]
            begin = self.start[name].double()
            layer: dict[str, Any] = {
                "name": name,
                "rates": _short(rates),
                "start": _short(_norm(begin, axes)),
                "moved": _short(_norm(p.cpu().double() - begin, axes)),
            }
            if name in gradients:
                reached = _norm(gradients[name], axes)
                alive = reached[reached > 0]
                layer["dead"] = int((reached == 0).sum())
                layer["saturated"] = int((alive < FAINT * alive.median()).sum()) if len(alive) else 0
            found.append(layer)
        return found

    @torch.enable_grad()
    def _gradients(self, problem: Supervised) -> dict[str, Tensor]:
        """The largest gradients of the weights in a few batches; the state of the training is restored."""
        model = self.learner.model
        modes = {module: module.training for module in model.modules()}
        model.train()  # some recurrent layers need it for backward
        for module in modes:
            if isinstance(module, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd):
                module.eval()
        device, carry = next(model.parameters()).device, None
        largest = {name: torch.zeros_like(start, dtype=torch.double) for name, start in self.start.items()}
        for inputs, targets in islice(problem.batches(1), PROBED):
            self.learner.optimizer.zero_grad()
            outputs, carry = problem.forward(model, inputs.to(device), carry)
            problem.loss(outputs, targets.to(device)).backward()
            for name, p in model.named_parameters():
                if name in largest and p.grad is not None:
                    torch.maximum(largest[name], p.grad.detach().cpu().double().abs(), out=largest[name])
        self.learner.optimizer.zero_grad()
        model.train(modes[model])
        for module, mode in modes.items():
            module.training = mode
        return largest


def _norm(weights: Tensor, axes: list[int]) -> Tensor:
    return weights.square().sum(axes).sqrt()


def _short(numbers: Tensor) -> list[float]:
    return [float(f"{number:.3g}") for number in numbers.flatten().tolist()]
