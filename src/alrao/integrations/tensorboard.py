"""Logging of the posterior and the learning rates to TensorBoard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..optim import AlraoOptimizer
from ..trainable import find_alrao, unwrap, unwrapped
from ._posterior import interval_scalars, posterior_scalars, unprepared

__all__ = ["log"]


@torch.no_grad()
def log(
    writer: Any, model: nn.Module, optimizer: AlraoOptimizer | None = None, step: int | None = None
) -> None:
    """Log the posterior and the learning rates of an Alrao model.

    Scalars: ``alrao/posterior/…``, the posterior of each copy of the head, named after its rate (its initial
    rate, if :class:`Zoom` moves it); ``alrao/rate``, the geometric mean rate of the copies under the
    posterior; ``alrao/copies``, the effective number of copies (the exponential of the posterior's entropy).
    With the optimizer: ``alrao/lr``, the learning rate of the first group (that of :class:`Auto`, or the
    middle of its interval, times the factor); ``alrao/interval/low`` and ``…/high``, the ends;
    ``alrao/factor/…``, the schedule's factor of each parameter group; and the histograms
    ``alrao/log10 rates/…`` of the features' rates of each parameter, times the factor. Under :class:`Auto`
    all but ``alrao/lr`` are of the rates found, before they fall.

    Args:
        writer: a :class:`torch.utils.tensorboard.SummaryWriter`, or anything with its ``add_scalar`` and
            ``add_histogram``.
        model: an :class:`alrao.Alrao` model; it may be wrapped by DDP or ``torch.compile``. A plain network
            has no posterior to log.
        optimizer: its optimizer; it may be wrapped by Accelerate or Lightning. Without it the features' rates
            are not logged, and copies are named after their current rates.
        step: the step, passed on to the writer.

    Example:
        >>> import alrao, torch
        >>> from alrao.integrations import tensorboard
        >>> model = alrao.Alrao(torch.nn.Linear(4, 3), copies=2)
        >>> optimizer = alrao.SGD(model, lr=(0.1, 1.0))
        >>> class Printer:
        ...     def add_scalar(self, name, value, step):
        ...         print(name, round(value, 3))
        ...     def add_histogram(self, name, values, step):
        ...         print(name, len(values))
        >>> tensorboard.log(Printer(), model, optimizer, step=0)
        alrao/posterior/0 at 0.1 0.5
        alrao/posterior/1 at 1 0.5
        alrao/copies 2.0
        alrao/rate 0.316
        alrao/lr 0.316
        alrao/interval/low 0.1
        alrao/interval/high 1.0
        alrao/factor/group 0 1.0
        alrao/log10 rates/weight 2
        alrao/log10 rates/bias 2
    """
    optimizer = unprepared(optimizer)
    alrao = unwrap(model) if optimizer is None else find_alrao(model)
    scalars = {} if optimizer is None else interval_scalars(optimizer)
    for name, value in (scalars if alrao is None else posterior_scalars(alrao, optimizer)).items():
        writer.add_scalar(name, value, step)
    if optimizer is None:
        return
    net = unwrapped(model) if alrao is None else alrao.net
    names = {p: name for name, p in net.named_parameters()}
    for index, group in enumerate(optimizer.param_groups):
        factor = float(group["lr"])
        writer.add_scalar(f"alrao/factor/group {index}", factor, step)
        for p in group["params"]:
            drawn = optimizer.rates(p).double().cpu().flatten() * factor
            drawn = drawn[drawn > 0]  # the logarithm of a frozen feature's rate is -inf
            if len(drawn):
                writer.add_histogram(f"alrao/log10 rates/{names[p]}", drawn.log10(), step)
