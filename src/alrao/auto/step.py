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

from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.capturable import COUNTS
from .matrices import MOMENTUM, PERIOD, orthogonal_steps

__all__ = [
    "Weight",
    "Weights",
    "average_of",
    "newest_share",
    "rate_left",
    "round_to_",
    "take_step",
    "widened",
]

STEADY = 1000
"""Steps after the search at the rate found; then it falls as one over their root. Short runs need all of it;
long ones end at a lower loss than at a constant rate, though their weights are averaged."""


class Weight(NamedTuple):
    """A parameter, or a part of one, as a step moves it."""

    y: Tensor
    """Training weights, at least in float32; change in place."""
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


class Weights:
    """Parameters that have taken the same number of steps, in the lists that foreach functions take."""

    def __init__(self, weights: list[Weight], at: list[int]) -> None:
        self.at, self.of, self.state = at, weights, weights[0].state  # places in the group; counters
        self.y, states = [w.y for w in weights], [w.state for w in weights]
        self.z, self.x = ([s[key] for s in states if key in s] for key in "zx")
        self.target = self.z or self.y
        """What steps move."""
        self.units = [i for i, w in enumerate(weights) if w.turn is None]
        self.exp_avg_sq = [states[i]["exp_avg_sq"] for i in self.units]
        self.matrices = [i for i, w in enumerate(weights) if w.turn is not None]
        self.exp_avg = [states[i]["exp_avg"] for i in self.matrices]

    def due(self, k: Any) -> list[int]:
        """Return the hidden matrices whose turn it is; where that is not known on the host, all of them."""
        if isinstance(k, Tensor):
            return self.matrices
        turn = k % PERIOD if k >= PERIOD else None
        return [i for i in self.matrices if self.of[i].turn == turn]


class Kept(NamedTuple):
    """What a step of a group needs of its parameters, kept as long as nothing of it is replaced."""

    params: list[Tensor]
    states: list[dict[str, Any]]
    known: int
    """Number of all parameters that the optimizer has a state of."""
    ages: list[Weights]
    rate: float
    """The learning rate of all that have no rates of their own."""

    def fits(self, params: list[Tensor], known: int) -> bool:
        """Return whether this is still what a step of these parameters needs."""
        if len(params) != len(self.params) or known != self.known or not all(map(is_, params, self.params)):
            return False
        for age in self.ages:
            k = age.state["k"]
            for weight, z in zip(age.of, age.z, strict=True):
                own = weight.state["k"]
                same = own is k or not (isinstance(k, Tensor) or own != k)
                if weight.state["z"] is not z or z.dtype is not weight.y.dtype or not same:
                    return False
        return True


def take_step(
    of: Weights,
    g: list[Tensor],
    rate: float,
    *,
    lr: Any,
    beta: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    falls: bool = True,
    newest: int = 1,
) -> None:
    """Move training weights and, after the search, the iterates.

    Args:
        of: what moves.
        g: their gradients, in the types of the weights.
        rate: learning rate of all that have no rates of their own.
        lr: factor on all rates, a number or a tensor without an axis.
        beta: share of the average in the training weights.
        beta2: coefficient of the running average of squared gradients.
        eps: term added to the denominator.
        weight_decay: decoupled decay of matrices, in proportion to the rates.
        falls: whether the rates fall after ``STEADY`` steps.
        newest: steps that this one stands for.
    """
    step, k = (of.state[key] for key in COUNTS)  # tensors, where nothing may be read on the host
    at = of.due(k)
    moved, delta = of.units + at, _unit_steps(of, g, step, beta2, eps, weight_decay) if of.units else []
    if of.matrices:
        torch._foreach_lerp_(of.exp_avg, [g[i] for i in of.matrices], 1 - MOMENTUM)
    if at:  # where numbers stay on a device, all of them move, a fifth as far
        delta += _matrix_steps(of, g, at, 1 if isinstance(k, Tensor) else PERIOD, weight_decay)
    own = [(d, of.of[i].rates) for d, i in zip(delta, moved, strict=True) if of.of[i].rates is not None]
    if own:
        torch._foreach_mul_(*map(list, zip(*own, strict=True)))
    if falls and isinstance(k, Tensor):  # a launch for each operation on a single number
        rate, lr = rate * STEADY**0.5, k.clamp(min=STEADY).rsqrt_().mul_(lr)
    elif falls:
        rate *= rate_left(k)
    if isinstance(lr, Tensor) and delta:  # alpha must be a number
        torch._foreach_mul_(delta, lr.to(delta[0].dtype))  # in another one it would be a launch for each
    else:
        rate *= lr
    if delta:
        torch._foreach_add_([of.target[i] for i in moved], delta, alpha=-rate)
    if delta and of.z:
        torch._foreach_add_([of.y[i] for i in moved], delta, alpha=-(1 - beta) * rate)
    if of.z:
        _average_(of.y, of.z, k, newest)
    if of.x:  # of the search, from its second step on
        torch._foreach_lerp_(of.x, of.y, newest_share(step))


def _unit_steps(
    of: Weights, g: list[Tensor], step: Any, beta2: float, eps: float, weight_decay: float
) -> list[Tensor]:
    """Return Adam's steps without the first moment, of about unit size."""
    g, exp_avg_sq = [g[i] for i in of.units], of.exp_avg_sq
    torch._foreach_mul_(exp_avg_sq, beta2)
    torch._foreach_addcmul_(exp_avg_sq, g, g, 1 - beta2)
    denominators = torch._foreach_div(exp_avg_sq, 1 - beta2**step)
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, eps)
    delta = list(torch._foreach_div(g, denominators))
    others = [(d, of.y[i]) for d, i in zip(delta, of.units, strict=True) if of.of[i].decays]
    if weight_decay and others:
        torch._foreach_add_(*map(list, zip(*others, strict=True)), alpha=weight_decay)
    return delta


def _matrix_steps(
    of: Weights, g: list[Tensor], at: list[int], length: int, weight_decay: float
) -> list[Tensor]:
    """Return the steps of hidden matrices, each of which stands for ``length`` of them."""
    weights = [of.of[i] for i in at]
    averages, whole = [w.state["exp_avg"] for w in weights], [w.whole for w in weights]
    delta = orthogonal_steps([g[i] for i in at], averages, whole, length)
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


def rate_left(k: int) -> float:
    """Return the part of the rate found that is left at the k-th step after the search."""
    return 1.0 if k <= STEADY else (STEADY / k) ** 0.5


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
