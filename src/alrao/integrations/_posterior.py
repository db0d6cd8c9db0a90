"""Shared by the integrations: find the model and its optimizer, turn posterior and rates into scalars."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import nn

from ..auto import Auto
from ..model import Alrao
from ..optim import AlraoOptimizer

__all__ = ["interval_scalars", "learning_rates", "models_in", "posterior_scalars", "unprepared"]


def models_in(module: nn.Module) -> dict[str, Alrao]:
    """Return the Alrao models in a module, by name."""
    return {name: inner for name, inner in module.named_modules() if isinstance(inner, Alrao)}


def unprepared(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Accelerate or Lightning."""
    while not isinstance(optimizer, AlraoOptimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


@torch.no_grad()
def posterior_scalars(model: Alrao, optimizer: AlraoOptimizer | None = None) -> dict[str, float]:
    """Return the posterior, the effective number of copies, the mean rate under it (geometric), the interval.

    The ends of the body's interval are of the first group that has one. With the optimizer, the copies are
    named after their rates at the start, under :class:`alrao.Auto` in units of the learning rate: the names
    stay the same while the rates move.
    """
    posterior = model.head.averaging.weights.double().cpu()
    names = [""] * len(posterior)
    if isinstance(optimizer, Auto):
        highest = optimizer.copy_rates(initial=True)[-1]
        names = [f" at {rate / highest:.2g} lr" for rate in optimizer.copy_rates(initial=True)]
    elif optimizer is not None:
        names = [f" at {rate:.3g}" for rate in optimizer.copy_rates(initial=True)]
    scalars = {}
    for copy, weight in enumerate(posterior.tolist()):
        name = f"{copy}{names[copy]}"
        scalars[f"alrao/posterior/{name}"] = weight
    scalars["alrao/copies"] = torch.special.entr(posterior).sum().exp().item()
    if optimizer is not None:
        rates = optimizer.copy_rates().clamp(min=1e-300)
        scalars["alrao/rate"] = (posterior * rates.log()).sum().exp().item()
        scalars |= interval_scalars(optimizer)
    return scalars


def interval_scalars(optimizer: AlraoOptimizer, prefix: str = "") -> dict[str, float]:
    """Return the learning rate, and the ends of the interval of the first group that has one."""
    scalars = {f"{prefix}alrao/lr": learning_rates(optimizer)[0]}
    intervals = map(optimizer.interval, range(len(optimizer.param_groups)))
    low, high = next((each for each in intervals if each is not None), (None, None))
    if low is None or high is None:
        return scalars
    return {**scalars, f"{prefix}alrao/interval/low": low, f"{prefix}alrao/interval/high": high}


def learning_rates(optimizer: AlraoOptimizer) -> list[float]:
    """Return the learning rate of each group: Auto's, or the middle of its interval, times its factor."""
    searching = isinstance(optimizer, Auto) and not optimizer.search.over
    found = []
    for i, group in enumerate(optimizer.param_groups):
        low, high = optimizer.interval(i) or (1.0, 1.0)  # other distributions have no middle
        counts = not (searching and group["follows"])  # the factor of a schedule
        found.append(group.get("d", sqrt(low * high)) * (float(group["lr"]) if counts else 1.0))
    return found
