r"""Auto's step: Adam's without its first moment or, for hidden matrices, Muon's; and an average.

Three sets of weights are involved, as in Schedule-Free: the step moves :math:`z`, :math:`x` is the average
of all :math:`z`, and the gradient is taken between them, at :math:`y = (1 - \beta) z + \beta x`. Only
:math:`y` and :math:`z` are kept; :math:`x` follows from both. With the step :math:`\delta` and the share
:math:`c` of the newest weights in the average,

.. math:: z' = z - \delta, \qquad y' = (1 - c)\,(y - (1 - \beta)\, \delta) + c\, z'

During the search there is no average: :math:`y' = y - \delta`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..finite import keep_finite_, zero_nonfinite_
from ..runtime.capturable import in_type_of
from .matrices import MOMENTUM, PERIOD, orthogonal_steps

__all__ = ["Moving", "average_of", "newest_share", "round_to_", "take_step"]


@dataclass
class Moving:
    """Parameters that have taken the same number of steps of one kind, as a step moves them.

    ``step`` and ``k`` are numbers, or tensors without an axis where nothing may be read on the host.
    """

    y: list[Tensor]
    """Training weights, at least in float32; change in place."""
    z: list[Tensor]
    """Schedule-free iterates; change in place. Empty during the search."""
    g: list[Tensor]
    """Gradients, in the types of ``y``."""
    moments: list[Tensor]
    """``exp_avg_sq`` or, of hidden matrices, ``exp_avg``; change in place."""
    rate: float
    """Learning rate of all parameters without rates of their own."""
    own_rates: dict[int, Tensor]
    """Rates of features or copies, by the place of their parameter in the lists; they broadcast to it."""
    step: Any
    """Steps taken, this one included."""
    k: Any
    """Those since the end of the search."""
    matrices: bool = False
    """Whether these are hidden matrices, whose steps are orthogonal."""
    whole: list[Any] = field(default_factory=list)
    """Of each matrix, the sharded parameter that it is a part of, or None."""


def take_step(
    m: Moving, *, lr: Any, beta: float, beta2: float, eps: float, weight_decay: float, newest: int = 1
) -> None:
    """Move the training weights and, once the search is over, the iterates.

    Args:
        m: what moves.
        lr: factor on all rates, a number or a tensor without an axis.
        beta: share of the average in the training weights.
        beta2: coefficient of the running average of squared gradients.
        eps: term added to the denominator.
        weight_decay: decoupled decay of the training weights, in proportion to the rates.
        newest: steps that this one stands for.
    """
    delta, scale = _matrix_steps(m) if m.matrices else _unit_steps(m, beta2, eps)
    relative: list[Tensor] = []
    if m.own_rates:
        relative = list(torch._foreach_div(list(m.own_rates.values()), m.rate))
        if delta:
            torch._foreach_mul_([delta[i] for i in m.own_rates], relative)
    if weight_decay:
        _decay_(m, lr * m.rate * weight_decay, relative, beta)
    if delta and isinstance(lr, Tensor):  # alpha must be a number
        torch._foreach_mul_(delta, in_type_of(delta, lr))
    elif delta:
        scale *= lr
    if delta and m.z:
        torch._foreach_add_(m.z, delta, alpha=-scale)
    if delta:
        torch._foreach_add_(m.y, delta, alpha=-(1 - beta) * scale if m.z else -scale)
    if m.z:
        _average_(m, newest)


def _unit_steps(m: Moving, beta2: float, eps: float) -> tuple[list[Tensor], float]:
    """Return Adam's steps without the first moment, of about unit size, in a unit that is returned too."""
    torch._foreach_mul_(m.moments, beta2)
    torch._foreach_addcmul_(m.moments, m.g, m.g, 1 - beta2)
    bias, scale = 1 - beta2**m.step, m.rate
    if isinstance(bias, Tensor):  # only numbers are added without a read
        denominators = torch._foreach_div(m.moments, in_type_of(m.moments, bias))
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, eps)
    else:
        denominators = torch._foreach_sqrt(m.moments)
        torch._foreach_add_(denominators, eps * sqrt(bias))
        scale *= sqrt(bias)
    return list(torch._foreach_div(m.g, denominators)), scale


def _matrix_steps(m: Moving) -> tuple[list[Tensor], float]:
    """Return the steps of hidden matrices, or none between their moves. A captured step always moves."""
    torch._foreach_lerp_(m.moments, m.g, 1 - MOMENTUM)
    if isinstance(m.k, Tensor):
        return orthogonal_steps(m.g, m.moments, m.whole), m.rate
    if m.k % PERIOD:
        return [], m.rate
    return orthogonal_steps(m.g, m.moments, m.whole), PERIOD * m.rate


def _decay_(m: Moving, part: Any, relative: list[Tensor], beta: float) -> None:
    """Take a part of the training weights from both sets, at most all of a weight."""
    most = part.clamp(max=1.0) if isinstance(part, Tensor) else min(part, 1.0)
    lost = list(torch._foreach_mul(m.y, most))
    for i, rate in zip(m.own_rates, relative, strict=True):
        lost[i] = m.y[i] * (rate * part).clamp(max=1.0)
    if m.z:
        torch._foreach_sub_(m.z, lost)
    torch._foreach_add_(m.y, lost, alpha=-(1 - beta) if m.z else -1.0)


def _average_(m: Moving, newest: int) -> None:
    """Move the training weights to the iterates by the newest share."""
    if not isinstance(m.k, Tensor):
        torch._foreach_lerp_(m.y, m.z, newest_share(m.k, newest))
        return
    towards = torch._foreach_sub(m.z, m.y)
    # Every operation on a single number is a launch too: the share is 6 / (1 / k + 2 k + 3).
    torch._foreach_div_(towards, in_type_of(towards, torch.add(m.k.reciprocal(), m.k, alpha=2).add_(3)))
    torch._foreach_add_(m.y, towards, alpha=6)


def newest_share(k: int, newest: int = 1) -> float:
    """Return k² / (1² + … + k²), the weight of the newest of k points in their average, or of the newest."""
    if newest == 1:
        return 6 * k / ((k + 1) * (2 * k + 1))
    before = max(0, k - newest)
    return 1 - before * (before + 1) * (2 * before + 1) / (k * (k + 1) * (2 * k + 1))


def average_of(y: Tensor, z: Tensor, beta: float) -> Tensor:
    """Return the averaged weights x that the training weights and the iterate belong to."""
    return torch.lerp(z, y, 1 / beta)


def round_to_(p: Tensor, rest: Tensor, wide: Tensor) -> None:
    """Round weights to a parameter of a narrow type, and keep what that takes from them."""
    rounded = wide.to(p.dtype)
    keep_finite_(rounded, p)
    p.copy_(rounded)
    rest.copy_(wide - rounded)
    zero_nonfinite_(rest)
