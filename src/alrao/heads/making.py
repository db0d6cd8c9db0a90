"""The head for an output layer and a likelihood."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ..posterior import Posterior
from .adaptive import AdaptiveHead
from .base import Head
from .linear import LINEAR_HEADS

__all__ = ["check_net", "make_head"]


def check_net(net: nn.Module) -> None:
    """Raise for a network that cannot be converted."""
    if isinstance(net, torch.jit.ScriptModule):
        raise TypeError("Alrao cannot convert a scripted or traced network: pass the original one")
    if not isinstance(net, nn.Module):
        raise TypeError(f"Alrao takes a network, a torch.nn.Module, got {type(net).__name__}")
    if any(isinstance(module, Head) for module in net.modules()):
        raise ValueError("this network has been converted already: use the Alrao model made of it")
    if any(isinstance(parameter, UninitializedParameter) for parameter in net.parameters()):
        raise ValueError("the network has lazy layers of unknown size: run a batch through it first")


def make_head(layer: nn.Module, name: str, likelihood: str | None, averaging: Posterior, keep: bool) -> Head:
    """Return the head that takes the place of an output layer.

    Args:
        layer: the output layer.
        name: its name, for messages.
        likelihood: ``"categorical"``, ``"gaussian"``, ``"bernoulli"``, or None for the default.
        averaging: the posterior over the copies.
        keep: start every copy from the layer as it is.
    """
    if isinstance(layer, nn.AdaptiveLogSoftmaxWithLoss):
        if likelihood not in (None, "categorical"):
            raise ValueError(
                f"an adaptive softmax is categorical, got likelihood={likelihood!r}: leave likelihood out"
            )
        return AdaptiveHead(layer, averaging, keep=keep)
    likelihood = likelihood or "categorical"
    if likelihood not in LINEAR_HEADS:
        raise ValueError(
            f"likelihood must be one of {', '.join(map(repr, LINEAR_HEADS))}, got {likelihood!r}"
        )
    outputs = next(layer.parameters()).shape[0]
    if likelihood == "categorical" and outputs == 1:
        raise ValueError(
            f"the output layer {name!r} has a single output, and a softmax over one class is always 1: pass "
            "likelihood='bernoulli' for a binary target, 'gaussian' for regression"
        )
    return LINEAR_HEADS[likelihood](layer, averaging, keep=keep)
