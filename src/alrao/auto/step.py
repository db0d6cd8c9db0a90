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

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.capturable import COUNTS
from .matrices import MOMENTUM, PERIOD, orthogonal_steps

__all__ = ["Weight", "average_of", "newest_share", "round_to_", "take_step", "widened"]


class Weight(NamedTuple):
    """A parameter, or a part of one, as a step moves it."""

    y: Tensor
    """Training weights, at least in float32; change in place."""
    g: Tensor
    """The gradient, in the type of ``y``."""
    state: dict[str, Any]
    """What is kept of it; tensors change in place. The iterate ``z`` is there once the search is over."""
    rates: Tensor | None
    """Rates of features or copies in units of the rate of all others; they broadcast to it."""
    turn: int | None
    """The turn of a hidden matrix, whose steps are orthogonal."""
    decays: bool
    """Whether it is another matrix, which decays too."""
    whole: Tensor | None
    """The sharded parameter that it is a part of."""


def take_step(
    weights: list[Weight],
    rate: float,
    *,
    lr: Any,
    beta: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    newest: int = 1,
) -> None:
    """Move training weights that have taken the same number of steps and, after the search, the iterates.

    Args:
        weights: what moves.
        rate: learning rate of all that have no rates of their own.
        lr: factor on all rates, a number or a tensor without an axis.
        beta: share of the average in the training weights.
        beta2: coefficient of the running average of squared gradients.
        eps: term added to the denominator.
        weight_decay: decoupled decay of matrices, in proportion to the rates.
        newest: steps that this one stands for.
    """
    step, k = (weights[0].state[key] for key in COUNTS)  # tensors, where nothing may be read on the host
    moved = [w for w in weights if w.turn is None]
    delta = _unit_steps(moved, step, beta2, eps, weight_decay) if moved else []
    turning = [w for w in weights if w.turn is not None]
    if turning:
        torch._foreach_lerp_([w.state["exp_avg"] for w in turning], [w.g for w in turning], 1 - MOMENTUM)
        captured = isinstance(k, Tensor)  # all of them move, a fifth as far
        turning = [w for w in turning if captured or (k >= PERIOD and k % PERIOD == w.turn)]
        delta += _matrix_steps(turning, 1 if captured else PERIOD, weight_decay) if turning else []
        moved += turning
    own = [(d, w.rates) for d, w in zip(delta, moved, strict=True) if w.rates is not None]
    if own:
        torch._foreach_mul_(*map(list, zip(*own, strict=True)))
    if isinstance(lr, Tensor) and delta:  # alpha must be a number
        torch._foreach_mul_(delta, lr.to(delta[0].dtype))  # in another one it would be a launch for each
    else:
        rate *= lr
    y, z = [w.y for w in weights], [w.state["z"] for w in weights if "z" in w.state]
    if not z:
        torch._foreach_add_(y, delta, alpha=-rate)
        if "x" in weights[0].state:  # from its second step on
            torch._foreach_lerp_([w.state["x"] for w in weights], y, newest_share(step))
        return
    if delta:
        torch._foreach_add_([w.state["z"] for w in moved], delta, alpha=-rate)
        torch._foreach_add_([w.y for w in moved], delta, alpha=-(1 - beta) * rate)
    _average_(y, z, k, newest)


def _unit_steps(
    weights: list[Weight], step: Any, beta2: float, eps: float, weight_decay: float
) -> list[Tensor]:
    """Return Adam's steps without the first moment, of about unit size."""
    g, exp_avg_sq = [w.g for w in weights], [w.state["exp_avg_sq"] for w in weights]
    torch._foreach_mul_(exp_avg_sq, beta2)
    torch._foreach_addcmul_(exp_avg_sq, g, g, 1 - beta2)
    denominators = torch._foreach_div(exp_avg_sq, 1 - beta2**step)
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, eps)
    delta = list(torch._foreach_div(g, denominators))
    others = [(d, w.y) for d, w in zip(delta, weights, strict=True) if w.decays]
    if weight_decay and others:
        torch._foreach_add_(*map(list, zip(*others, strict=True)), alpha=weight_decay)
    return delta


def _matrix_steps(weights: list[Weight], length: int, weight_decay: float) -> list[Tensor]:
    """Return the steps of hidden matrices, each of which stands for ``length`` of them."""
    g, exp_avg = [w.g for w in weights], [w.state["exp_avg"] for w in weights]
    delta = orthogonal_steps(g, exp_avg, [w.whole for w in weights], length)
    if weight_decay:
        torch._foreach_add_(delta, [w.y for w in weights], alpha=length * weight_decay)
    return delta


def _average_(y: list[Tensor], z: list[Tensor], k: Any, newest: int) -> None:
    """Move the training weights to the iterates by the newest share."""
    if not isinstance(k, Tensor):
        torch._foreach_lerp_(y, z, newest_share(k, newest))
        return
    towards = torch._foreach_sub(z, y)
    # Every operation on a single number is a launch too: the share is 6 / (1 / k + 2 k + 3).
    torch._foreach_div_(towards, torch.add(k.reciprocal(), k, alpha=2).add_(3))
    torch._foreach_add_(y, towards, alpha=6)


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
