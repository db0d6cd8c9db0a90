"""Auto's step where numbers are read on the host: Adam's without its first moment, and what it moves."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..finite import keep_finite_, zero_nonfinite_
from .gradient_point import GradientPoint
from .update import GroupUpdate

__all__ = ["newest_share", "round_to", "step_on_host"]

LARGEST_FACTOR = 1e6
"""Below this ``lr`` a step cannot overflow: rates are at most 0.1, and directions of about unit size."""


class _UnitStep:
    """The step against ``g / below``, at every feature's rate, with the decay of the weights.

    Args:
        u: the update; its gradients are not used.
        g: the gradients.
        below: what they are divided by, which changes in place.
        unbias: factors of the steps.
        summed: whether sums of the steps are asked for: quotients are computed once then, and kept.
    """

    def __init__(
        self, u: GroupUpdate, g: list[Tensor], below: list[Tensor], unbias: list[float], *, summed: bool
    ) -> None:
        factor = u.factor
        if u.constant is not None:
            factor *= u.constant
        else:
            torch._foreach_div_(below, u.rates)  # a rate of 0: no step, by division by infinity
        self._u, self._g, self._below, self._summed = u, g, below, summed
        self._lengths = [factor * each for each in unbias]
        self._decay: list[Tensor] = []
        if summed:
            for each, divisor in zip(g, below, strict=True):
                torch.div(each, divisor, out=divisor)

    def decay_by(self, weight_decay: float, y: list[Tensor]) -> None:
        """Decay the weights in proportion to their rates, at most to zero."""
        u = self._u
        for each, rate in zip(y, u.rates, strict=True):
            part = rate * (u.factor * weight_decay)
            self._decay.append(each * (part.clamp(max=1) if isinstance(part, Tensor) else min(1.0, part)))

    def of_features(self, at: list[int], like: list[Tensor]) -> list[Tensor]:
        """Return the steps of some parameters without decay, summed to the shapes of other tensors.

        It comes last: sums may share the memory of the steps.
        """
        sums = [_summed_to(self._below[i], each.shape) for i, each in zip(at, like, strict=True)]
        for length, where in _grouped([self._lengths[i] for i in at]):
            torch._foreach_mul_([sums[i] for i in where], length)
        return sums

    def apply(self, to: list[Tensor], shares: list[float]) -> None:
        """Move some tensors, each by its share of the step."""
        lengths = [-share * length for share, length in zip(shares, self._lengths, strict=True)]
        if self._summed:
            for length, at in _grouped(lengths):
                torch._foreach_add_([to[i] for i in at], [self._below[i] for i in at], alpha=length)
        else:
            torch._foreach_addcdiv_(to, self._g, self._below, lengths)
        for each, decay, share in zip(to, self._decay, shares, strict=False):
            each.sub_(decay, alpha=share)


def _summed_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Return ``x.sum_to_size(shape)``, which takes twice as long, for as many axes."""
    return x.sum([i for i, size in enumerate(shape) if size == 1], keepdim=True)


def _grouped(numbers: list[float]) -> Iterable[tuple[float, list[int]]]:
    """Return where each number stands: one or two, unless parameters have joined later."""
    places: dict[float, list[int]] = {}
    for i, number in enumerate(numbers):
        places.setdefault(number, []).append(i)
    return places.items()


def step_on_host(
    u: GroupUpdate,
    states: list[dict[str, Any]],
    y: list[Tensor],
    g: list[Tensor],
    group: dict[str, Any],
    searching: bool,
    point: GradientPoint,
) -> None:
    """Move the training weights and, once the search is over, ``z``, as :class:`Auto` describes it.

    Args:
        u: the update; its gradients are not used.
        states: of each parameter ``v`` and ``step``; after the search ``z`` and ``k`` too.
        y: the training weights, which change in place.
        g: the gradients, in the types of ``y``.
        group: the settings.
        searching: whether the search goes on.
        point: what changes the ``beta`` of states that have one.
    """
    beta, (_, beta2) = group["beta"], group["betas"]
    v = [state["v"] for state in states]
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    unbias = [sqrt(1 - beta2 ** state["step"]) for state in states]
    below = list(torch._foreach_sqrt(v))
    torch._foreach_add_(below, [group["eps"] * each for each in unbias])
    safe = abs(u.factor) <= LARGEST_FACTOR
    comparing = safe and point.compares and not searching
    step = _UnitStep(u, g, below, unbias, summed=comparing)
    if group["weight_decay"] != 0:
        step.decay_by(group["weight_decay"], y)
    z = [] if searching else [state["z"] for state in states]
    before = None if safe else [each.clone() for each in y + z]
    if searching:
        step.apply(y, [1.0] * len(y))
    else:
        mixing = [newest_share(state["k"], group.get("stands_for", 1)) for state in states]
        point.observe(z, y, g)
        betas, nearer = point.move(states, beta, mixing)
        for c, at in _grouped(nearer):
            torch._foreach_lerp_([y[i] for i in at], [z[i] for i in at], c)
        step.apply(y, [1 - each * (1 - c) for each, c in zip(betas, mixing, strict=True)])
        step.apply(z, [1.0] * len(z))
        if at := [i for i, state in enumerate(states) if "last" in state] if comparing else []:
            lasts = [states[i]["last"] for i in at]
            point.turn(step.of_features(at, lasts), lasts)
    if before is not None:
        for now, old in zip(y + z, before, strict=True):
            keep_finite_(now, old)


def newest_share(k: int, newest: int = 1) -> float:
    """Return k² / (1² + … + k²), the weight of the newest of k points in their average, or of the newest."""
    if newest == 1:
        return 6 * k / ((k + 1) * (2 * k + 1))
    before = max(0, k - newest)
    return 1 - before * (before + 1) * (2 * before + 1) / (k * (k + 1) * (2 * k + 1))


def round_to(p: Tensor, rest: Tensor, wide: Tensor) -> None:
    """Round the weights to a parameter of a narrow type, and keep what that takes from them."""
    rounded = wide.to(p.dtype)
    keep_finite_(rounded, p)
    p.copy_(rounded)
    rest.copy_(wide - rounded)
    zero_nonfinite_(rest)
