"""Optimizers of others that are on no package index, after their papers."""

from __future__ import annotations

from collections.abc import Iterable
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ScheduleFreePlus(Optimizer):
    r"""ScheduleFree+: Schedule-Free Adam whose rate is Polyak's, given the loss.

    Gradients :math:`g` are taken at :math:`y = \beta x + (1 - \beta) z`, and

    .. math::
        \alpha &= \eta \max(0, f + \beta \langle g, z - x\rangle) / (\sqrt{\pi / 2} \, \lVert g\rVert_1) \\
        z &\leftarrow z - \alpha \, \hat m / (\sqrt{\hat v} + \varepsilon), \; x \leftarrow (1 - c) x + c z

    with :math:`c` proportional to the square of the largest :math:`\alpha` so far. The average is evaluated,
    in the mode ``eval()``. At the defaults of its authors it has no weight decay, and their other means
    (an average of the gradient's norm, a growing :math:`\beta`) are off.

    Aaron Defazio. *ScheduleFree+: Scaling Learning-Rate-Free & Schedule-Free Learning to Large Language
    Models*. arXiv 2605.19095. 2026.

    Args:
        params: the parameters; ``lr`` of their groups is a factor of the rate, for a warm-up.
        last_warm_up: steps in which the average is the last iterate.
    """

    loss: float | None = None
    """The loss of the batch, to be set before each step."""

    def __init__(self, params: Iterable[Tensor], last_warm_up: int = 0) -> None:
        options: dict[str, Any] = {"lr": 1.0, "betas": (0.9, 0.95), "interpolation": 0.9, "eps": 1e-8}
        own = {"last_warm_up": last_warm_up, "step": 0, "largest": 0.0, "weight_sum": 0.0, "training": True}
        super().__init__(params, {**options, **own})

    def train(self) -> None:
        """Bring the weights that gradients are taken at into the parameters."""
        self._switch(training=True)

    def eval(self) -> None:
        """Bring the average into the parameters."""
        self._switch(training=False)

    @torch.no_grad()
    def _switch(self, *, training: bool) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p)
                if state and group["training"] != training:
                    p.copy_(
                        state["x"].lerp(state["z"], 1 - group["interpolation"]) if training else state["x"]
                    )
            group["training"] = training

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take a step; the attribute ``loss`` must have been set."""
        if self.loss is None or not all(group["training"] for group in self.param_groups):
            raise RuntimeError(
                "ScheduleFreePlus needs `optimizer.loss = loss.item()` and train() before step()"
            )
        norm, inner = 0.0, 0.0
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        for group, params in zip(self.param_groups, moved, strict=True):
            for p in params:
                state = self.state[p]
                if not state:
                    state.update(z=p.clone(), x=p.clone(), m=torch.zeros_like(p), v=torch.zeros_like(p))
                norm += float(p.grad.abs().sum())
                inner += group["interpolation"] * float(torch.sum(p.grad * (state["z"] - state["x"])))
        rate = max(0.0, self.loss + inner) / max(sqrt(pi / 2) * norm, 1e-30)
        for group, params in zip(self.param_groups, moved, strict=True):
            self._move(group, params, group["lr"] * rate)

    def _move(self, group: dict[str, Any], params: list[Any], rate: float) -> None:
        group["step"] += 1
        group["largest"] = max(group["largest"], rate)
        beta1, beta2 = group["betas"]
        corrected = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
        part = 1.0
        if group["step"] > group["last_warm_up"]:
            weight = group["largest"] ** 2
            group["weight_sum"] += weight
            part = weight / group["weight_sum"] if weight else 0.0
        for p in params:
            z, x, m, v = (self.state[p][name] for name in "zxmv")
            m.lerp_(p.grad, 1 - beta1)
            v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            z.addcdiv_(m, (v / corrected[1]).sqrt_().add_(group["eps"]), value=-rate / corrected[0])
            x.lerp_(z, part)
            p.copy_(x.lerp(z, 1 - group["interpolation"]))
