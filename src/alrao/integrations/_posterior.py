"""What the integrations have in common: finding the model and its optimizer, the posterior as numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..model import Alrao
from ..optim import AlraoOptimizer

__all__ = ["models_in", "posterior_scalars", "unprepared"]


def models_in(module: nn.Module) -> dict[str, Alrao]:
    """The Alrao models in a module, by the names that they have there."""
    return {name: inner for name, inner in module.named_modules() if isinstance(inner, Alrao)}


def unprepared(optimizer: Any) -> Any:
    """The optimizer inside of what Accelerate or Lightning makes of it."""
    while not isinstance(optimizer, AlraoOptimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


@torch.no_grad()
def posterior_scalars(model: Alrao, optimizer: AlraoOptimizer | None = None) -> dict[str, float]:
    """The posterior of the copies, how many share it, and the mean rate under it (geometric).

    Copies are named after their rates, once an optimizer has set them; with the optimizer, after those at the
    start, so that the names stay while :class:`alrao.Zoom` moves the rates.
    """
    posterior, rates = model.head.averaging.weights.double().cpu(), model.head.rates
    names = rates if optimizer is None else _at_the_start(optimizer)
    scalars = {}
    for copy, weight in enumerate(posterior.tolist()):
        name = f"{copy}" if names is None else f"{copy} at {names[copy].item():.3g}"
        scalars[f"alrao/posterior/{name}"] = weight
    scalars["alrao/copies"] = torch.special.entr(posterior).sum().exp().item()
    if rates is not None:
        mean = (posterior * rates.double().cpu().clamp(min=1e-300).log()).sum().exp()
        scalars["alrao/rate"] = mean.item()
    return scalars


def _at_the_start(optimizer: AlraoOptimizer) -> Tensor | None:
    """The rates of the copies as the optimizer was built with them."""
    head = optimizer.model.head
    of_copies = set(head.parameters())
    found = head.rates
    for law, group in zip(optimizer._laws, optimizer.param_groups, strict=True):
        built = repr(law) == group["law"]  # not with the state of another one loaded into it
        if built and not of_copies.isdisjoint(group["params"]):
            found = law.grid(head.copies)
    return found
