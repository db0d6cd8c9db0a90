"""``recalibrate``: the statistics of BatchNorm at the weights that are evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .finite import keep_finite_
from .statistics import take_statistics
from .trainable import find_alrao, unwrapped


@torch.no_grad()
def recalibrate(model: nn.Module, loader: Iterable[Any], device: torch.device | str | None = None) -> None:
    """Compute the running statistics of BatchNorm layers again, at the averaged weights.

    :class:`Auto` does this by itself, with the last batches of the training. This is torch's ``update_bn`` at
    the weights that are evaluated: the statistics become the mean over the batches of ``loader``. Everything
    but the BatchNorm layers is in evaluation mode meanwhile, so that dropout is off.
    The modes are restored. A model without such layers is left as it is.

    Args:
        model: an :class:`Alrao` model or a plain network, possibly wrapped.
        loader: batches of inputs, or tuples or lists that start with the inputs.
        device: where to move the inputs; by default they stay where they are.

    Raises:
        ValueError: the loader is empty; the statistics are unchanged then.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> alrao.recalibrate(model, [torch.full((2, 4), 3.0)])
        >>> torch.allclose(net[1].running_mean, net[0](torch.full((4,), 3.0)))
        True
    """
    inner = find_alrao(model) or unwrapped(model)
    layers = [
        module
        for module in inner.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    ]
    if not layers:
        return
    modes = [(module, module.training) for module in model.modules()]
    momenta = [layer.momentum for layer in layers]
    before = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers(recurse=False)]
    inner.eval()
    seen = False
    try:
        for layer in layers:
            for name, start in (("running_mean", 0.0), ("running_var", 1.0), ("num_batches_tracked", 0)):
                layer.get_buffer(name).fill_(start)  # not reset_running_stats(), which is remembered
            layer.momentum = None  # a mean over all batches
            layer.training = True
        for batch in loader:
            inputs = batch[0] if isinstance(batch, list | tuple) else batch
            inner(inputs.to(device) if device is not None and isinstance(inputs, Tensor) else inputs)
            seen = True
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for buffer, value in before:
            if not seen:
                buffer.copy_(value)
            keep_finite_(buffer, value)
        if seen:
            take_statistics(layers)  # before those that training has gathered are put back
        inner.train(dict(modes)[inner])  # with the weights of that mode
        for module, mode in modes:
            module.training = mode
    if not seen:
        raise ValueError("recalibrate needs at least one batch, the loader has none: pass the training data")
