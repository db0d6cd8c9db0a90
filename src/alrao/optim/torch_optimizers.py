"""What is known of the optimizers of torch, and of others like them: their options and their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["check_capturable", "default_interval", "default_lr", "options_of", "params_first", "signature_of"]

SPAN = 1e3
"""The default interval of rates: from this factor below to this factor above the optimizer's default."""

COUNTS_NOTHING = {torch.optim.SGD, getattr(torch.optim, "Muon", torch.optim.SGD)}
"""Optimizers that need no option to be capturable, for they have no counter to read."""


def signature_of(kind: type[Optimizer]) -> dict[str, inspect.Parameter]:
    """Return the arguments of an optimizer's constructor, by name."""
    return dict(inspect.signature(kind.__init__).parameters)


def params_first(init: Callable[..., None]) -> inspect.Signature:
    """Return the signature of a constructor as tools expect it: torch's, with ``params`` for the model.

    LightningCLI passes all arguments of a signature by name, but for ``params``.
    """
    signature = inspect.signature(init)
    kept = [each for name, each in signature.parameters.items() if name != "params"]
    return signature.replace(
        parameters=[each.replace(name="params") if each.name == "model" else each for each in kept]
    )


def default_lr(kind: type[Optimizer]) -> float:
    """Return the default learning rate of an optimizer."""
    default = signature_of(kind)["lr"].default
    if isinstance(default, int | float) and default > 0:
        return float(default)
    raise ValueError(f"{kind.__name__} has no default learning rate: pass an interval such as lr=(1e-5, 0.1)")


def default_interval(kind: type[Optimizer]) -> tuple[float, float]:
    """Return the default interval of rates, around an optimizer's default learning rate."""
    return default_lr(kind) / SPAN, default_lr(kind) * SPAN


def options_of(kind: type[Optimizer], options: dict[str, Any], *, ours: type[Optimizer]) -> dict[str, Any]:
    """Return the options of an optimizer, given and default; raise for one that is not supported."""
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise TypeError(
            "PerFeature takes the class of an optimizer first, then the model: "
            f"alrao.PerFeature(torch.optim.NAdam, model), got {kind!r}"
        )
    name = kind.__name__
    if issubclass(kind, ours):
        raise TypeError(f"{name} already has a rate for every feature: use alrao.{name}(model)")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{name} is not supported: it searches along one line for all weights, so its update has no rate "
            "for each feature. Use an optimizer whose step needs no closure"
        )
    if issubclass(kind, torch.optim.SparseAdam):
        raise TypeError(f"{name} is not supported: it takes only sparse gradients. Use alrao.SGD for those")
    known = signature_of(kind)
    if "lr" not in known:
        raise TypeError(f"{name} is not supported: it has no learning rate lr")
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    for option in options:
        if option not in known and not open_ended:
            close = get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(list(known)[2:])}"
            raise TypeError(f"{name} has no option {option!r}: {hint}")
    if options.get("differentiable"):
        raise ValueError("differentiable=True is not supported by alrao's step: leave it out")
    probe = kind([nn.Parameter(torch.zeros(2, 2, device="cpu"))], **{**options, "lr": 1.0})
    return {key: value for key, value in probe.defaults.items() if key != "lr"}


def check_capturable(kind: type[Optimizer]) -> None:
    """Raise a ValueError for an optimizer that reads a counter on the host."""
    if "capturable" not in signature_of(kind) and kind not in COUNTS_NOTHING:
        raise ValueError(
            f"capturable=True is not supported: torch's {kind.__name__} has no such option, it reads its own "
            "counter on the host. Leave it out, or use another optimizer, such as torch.optim.NAdam"
        )
