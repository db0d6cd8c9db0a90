"""``prepare``: a model and its optimizer in one line, with copies of the output layer where they fit."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from .auto import Auto
from .model import Alrao
from .tensors import Randomness

__all__ = ["prepare"]

TOLERANCE = 1e-3
"""Largest relative difference of a loss and of its gradients between a network and its conversion."""

MANY = 2**20
"""Weights of all copies together up to which they may outweigh the rest of the network: they cost little."""

logger = logging.getLogger("alrao")


def prepare(
    net: nn.Module, loss: Callable[[nn.Module], Tensor] | None = None, **options: Any
) -> tuple[nn.Module, Auto]:
    """Return a model and its optimizer: an :class:`Alrao` model where the loss allows it, else ``net``.

    Without a loss nothing can be known of it, so the network stays plain, which is right for any loss. With
    one, the loss of a first batch is computed and differentiated twice, on copies: of the network, and of the
    same network with copies of its output layer, which are alike at the start. If both losses and the
    gradients of the body agree, no warning is issued and a step is accepted, the network is converted. So
    it is for a cross-entropy; with two heads, a Dice loss or a policy it stays plain. So does a network whose
    copies would have more than a million weights and more than the rest, such as a language model of words:
    a step would take several times as long. The logger ``alrao`` reports the choice and the reason at level
    INFO.

    Experimental: it may change in any release.

    Args:
        net: any network.
        loss: a function of the network that returns the loss of a typical batch. Leave it out if the sign of
            the loss changes from batch to batch, as in reinforcement learning.
        options: arguments of :class:`Auto`.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> x, y = torch.randn(16, 4), torch.randint(3, (16,))
        >>> loss = lambda net: torch.nn.functional.cross_entropy(net(x), y)
        >>> model, optimizer = alrao.prepare(net, loss)
        >>> isinstance(model, alrao.Alrao)
        True
    """
    if next(net.parameters(), None) is None:
        raise ValueError("prepare needs a network with parameters to train, this one has none")
    why = "no loss was given" if loss is None else _why_plain(net, loss)
    if why is None:
        logger.info("the network has copies of its output layer: the loss of the first batch allows them")
        model: nn.Module = Alrao(net)
    else:
        logger.info("the network stays plain, which is right for any loss: %s", why)
        model = net
    return model, Auto(model, **options)


def _why_plain(net: nn.Module, loss: Callable[[nn.Module], Tensor]) -> str | None:
    """Return why a network should not be converted, or None."""
    numbers = Randomness(net.parameters())
    try:
        twin = copy.deepcopy(net)
    except Exception as error:
        return f"it cannot be copied for a trial ({error})"
    value, grads = _differentiated(twin, loss)  # an error here is the user's
    if not grads:
        return "the loss has no gradient"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model = Alrao(copy.deepcopy(net), keep_output=True)
            parts = model.head.parameters(), model.body_parameters()
            of_copies, others = (sum(p.numel() for p in part) for part in parts)
            if of_copies > max(MANY, others):
                return (
                    f"copies of its output layer would have {of_copies:,} weights, the rest of the network "
                    f"has {others:,}, so that a step would take several times as long"
                )
            now, its = _differentiated(model, loss)
            Auto(model).step()
    except Exception as error:
        what = "a warning" if isinstance(error, UserWarning) else "an error"
        return f"with copies of its output layer there is {what}: {error}"
    finally:
        numbers.restore()
    body = [name for name in grads if name in its and its[name].shape == grads[name].shape]
    if not _close([now], [value]):
        return f"the loss is {now.item():.3g} with copies that are alike, and {value.item():.3g} without"
    if not _close([its[name] for name in body], [grads[name] for name in body]):
        return "the body has other gradients with copies that are alike"
    return None


def _differentiated(net: nn.Module, loss: Callable[[nn.Module], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and its gradients, by name; random numbers are the same at each call."""
    numbers = Randomness(net.parameters())
    try:
        with torch.enable_grad():
            value = loss(net)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise TypeError(f"loss must return the loss of a batch, a tensor of one number, got {value!r}")
        if value.requires_grad:
            value.backward()
    finally:
        numbers.restore()
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return value.detach().as_subclass(Tensor), grads


def _close(a: list[Tensor], b: list[Tensor]) -> bool:
    differences = [x - y for x, y in zip(a, b, strict=True)]
    return bool(get_total_norm(differences) <= TOLERANCE * get_total_norm(b))
