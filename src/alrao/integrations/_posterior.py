"""What the integrations that log an Alrao model have in common: finding it, and its posterior as numbers."""

from __future__ import annotations

import torch
from torch import nn

from ..model import Alrao

__all__ = ["models_in", "posterior_scalars"]


def models_in(module: nn.Module) -> dict[str, Alrao]:
    """The Alrao models in a module, by the names that they have there."""
    return {name: inner for name, inner in module.named_modules() if isinstance(inner, Alrao)}


@torch.no_grad()
def posterior_scalars(model: Alrao) -> dict[str, float]:
    """The posterior of the copies, how many share it, and the mean rate under it (geometric).

    Copies are named after their rates, once an optimizer has set them.
    """
    posterior, rates = model.head.averaging.weights.double().cpu(), model.head.rates
    scalars = {}
    for copy, weight in enumerate(posterior.tolist()):
        name = f"{copy}" if rates is None else f"{copy} at {rates[copy].item():.3g}"
        scalars[f"alrao/posterior/{name}"] = weight
    scalars["alrao/copies"] = torch.special.entr(posterior).sum().exp().item()
    if rates is not None:
        mean = (posterior * rates.double().cpu().clamp(min=1e-300).log()).sum().exp()
        scalars["alrao/rate"] = mean.item()
    return scalars
