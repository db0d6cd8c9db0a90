r"""Auto's step: Adam's without its first moment or, for hidden matrices, Muon's; and an average.

Three sets of weights are involved, as in Schedule-Free: the step moves :math:`z`, :math:`x` is the average
of all :math:`z`, and the gradient is taken between them, at :math:`y = (1 - \beta) z + \beta x`. Only
:math:`y` and :math:`z` are kept; :math:`x` follows from both. With the step :math:`\delta`, in which the
decay of the weights is included, and the share :math:`c` of the newest weights in the average,

.. math:: z' = z - \delta, \qquad y' = (1 - c)\,(y - (1 - \beta)\, \delta) + c\, z'

During the search gradients are taken at the newest weights, :math:`y' = y - \delta`, and their average
:math:`x` is kept for evaluations. It is where the averaging begins: the last steps of a search are large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .matrices import MOMENTUM, PERIOD, orthogonal_steps

__all__ = ["Moving", "average_of", "newest_share", "round_to_", "take_step", "widened"]


@dataclass
class Moving:
    """Parameters that have taken the same number of steps, as a step moves them.

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
    """Rates of features or copies in units of that, by the place of their parameter; they broadcast to it."""
    step: Any
    """Steps taken, this one included."""
    k: Any
    """Those since the end of the search."""
    turns: dict[int, int]
    """The turns of hidden matrices, whose steps are orthogonal, by their places in the lists."""
    others: list[int]
    """The places of other matrices, which decay too."""
    whole: dict[int, Any]
    """Of parameters that are parts of sharded ones, the whole."""
    x: list[Tensor]
    """During the search, from its second step on, the averages; change in place."""


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
        weight_decay: decoupled decay of matrices, in proportion to the rates.
        newest: steps that this one stands for.
    """
    steps = _unit_steps(m, beta2, eps, weight_decay) | _matrix_steps(m, weight_decay)
    delta, y = list(steps.values()), [m.y[i] for i in steps]
    own = {i: rates for i, rates in m.own_rates.items() if i in steps}
    if own:
        torch._foreach_mul_([steps[i] for i in own], list(own.values()))
    scale = m.rate
    if isinstance(lr, Tensor) and delta:  # alpha must be a number
        torch._foreach_mul_(delta, lr.to(delta[0].dtype))  # in another one it would be a launch for each
    else:
        scale *= lr
    if not m.z:
        torch._foreach_add_(y, delta, alpha=-scale)
        if m.x:
            torch._foreach_lerp_(m.x, m.y, newest_share(m.step))
        return
    if delta:
        torch._foreach_add_([m.z[i] for i in steps], delta, alpha=-scale)
        torch._foreach_add_(y, delta, alpha=-(1 - beta) * scale)
    _average_(m, newest)


def _unit_steps(m: Moving, beta2: float, eps: float, weight_decay: float) -> dict[int, Tensor]:
    """Return Adam's steps without the first moment, of about unit size, by the places of parameters."""
    at = [i for i in range(len(m.y)) if i not in m.turns]
    if not at:
        return {}
    g, exp_avg_sq = ([each[i] for i in at] for each in (m.g, m.moments))
    torch._foreach_mul_(exp_avg_sq, beta2)
    torch._foreach_addcmul_(exp_avg_sq, g, g, 1 - beta2)
    denominators = torch._foreach_div(exp_avg_sq, 1 - beta2**m.step)
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, eps)
    delta = dict(zip(at, torch._foreach_div(g, denominators), strict=True))
    if weight_decay and m.others:
        torch._foreach_add_([delta[i] for i in m.others], [m.y[i] for i in m.others], alpha=weight_decay)
    return delta


def _matrix_steps(m: Moving, weight_decay: float) -> dict[int, Tensor]:
    """Return the steps of the hidden matrices whose turn it is; captured, of all of them, a fifth as far."""
    if not m.turns:
        return {}
    torch._foreach_lerp_([m.moments[i] for i in m.turns], [m.g[i] for i in m.turns], 1 - MOMENTUM)
    captured = isinstance(m.k, Tensor)
    at = [i for i, turn in m.turns.items() if captured or (m.k >= PERIOD and m.k % PERIOD == turn)]
    if not at:
        return {}
    y, g, exp_avg = ([each[i] for i in at] for each in (m.y, m.g, m.moments))
    length = 1 if captured else PERIOD
    delta = orthogonal_steps(g, exp_avg, [m.whole.get(i) for i in at], length)
    if weight_decay:
        torch._foreach_add_(delta, y, alpha=length * weight_decay)
    return dict(zip(at, delta, strict=True))


def _average_(m: Moving, newest: int) -> None:
    """Move the training weights to the iterates by the newest share."""
    if not isinstance(m.k, Tensor):
        torch._foreach_lerp_(m.y, m.z, newest_share(m.k, newest))
        return
    towards = torch._foreach_sub(m.z, m.y)
    # Every operation on a single number is a launch too: the share is 6 / (1 / k + 2 k + 3).
    torch._foreach_div_(towards, torch.add(m.k.reciprocal(), m.k, alpha=2).add_(3))
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


def widened(narrow: list[Tensor]) -> list[Tensor]:
    """Return tensors of narrow types in float32."""
    wide = [torch.empty_like(each, dtype=torch.float32) for each in narrow]
    torch._foreach_copy_(wide, narrow)
    return wide


def round_to_(params: list[Tensor], rests: list[Tensor], wide: list[Tensor]) -> None:
    """Round weights to parameters of narrow types, and keep what that takes from them. Changes ``wide``."""
    for dtype in {p.dtype for p in params}:
        of_type = [x for x, p in zip(wide, params, strict=True) if p.dtype == dtype]
        torch._foreach_clamp_max_(of_type, torch.finfo(dtype).max)
        torch._foreach_clamp_min_(of_type, torch.finfo(dtype).min)
    torch._foreach_copy_(params, wide)
    torch._foreach_sub_(wide, widened(params))
    torch._foreach_copy_(rests, wide)
