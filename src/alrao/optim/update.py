"""The arithmetic of one update: parameters, gradients, and a rate for every feature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Self

import torch
from torch import Tensor

from ..finite import in_range, keep_finite_
from ..shards import local

__all__ = ["GroupUpdate", "as_real", "rewind_", "roots"]


@dataclass
class GroupUpdate:
    """One update of some parameters of a group: their gradients, their rates, the group's factor.

    ``rates`` broadcast to ``params``; ``constant`` is the rate of all of them where there is only one.
    """

    params: list[Tensor]
    grads: list[Tensor]
    rates: list[Tensor]
    constant: float | None
    factor: Any

    def one_by_one(self) -> Iterator[GroupUpdate]:
        """Return an update for each parameter: slower, with less memory at a time."""
        for p, grad, rate in zip(self.params, self.grads, self.rates, strict=True):
            yield GroupUpdate([p], [grad], [rate], self.constant, self.factor)

    def of_real_numbers(self) -> Self:
        """Return the same update with complex parameters and gradients viewed as pairs of real numbers."""
        rates = list(self.rates)
        for i, p in enumerate(self.params):
            if self.constant is None and p.is_complex():
                rates[i] = rates[i][..., None]
        return replace(self, params=as_real(self.params), grads=as_real(self.grads), rates=rates)

    def negate(self) -> None:
        """Maximize instead of minimizing."""
        self.grads = list(torch._foreach_neg(self.grads))

    def move(self, directions: list[Tensor]) -> None:
        """Step against ``directions``."""
        if self.constant is not None:
            torch._foreach_add_(self.params, directions, alpha=-self.factor * self.constant)
        else:
            torch._foreach_addcmul_(self.params, directions, self.rates, -self.factor)

    def move_ratio(self, above: list[Tensor], below: list[Tensor], divisors: list[Any]) -> None:
        """Step against ``above / below / divisors``; ``below`` is overwritten."""
        lr = self.factor
        if self.constant is not None:
            lr *= self.constant
        else:
            torch._foreach_div_(below, self.rates)  # a rate of 0: no step, by division by infinity
        torch._foreach_addcdiv_(self.params, above, below, [-(lr / divisor) for divisor in divisors])

    def penalised(self, weight_decay: float) -> list[Tensor]:
        """Return the gradients of the loss with an L2 penalty."""
        return list(torch._foreach_add(self.grads, self.params, alpha=weight_decay))

    def decayed(self, weight_decay: float) -> list[Tensor]:
        """Return the gradients of the loss with an L2 penalty, clamped so that it never overshoots zero.

        At a rate above ``1 / weight_decay`` the penalty alone would make the weights diverge.
        """
        if self.constant is not None:
            return self.penalised(weight_decay)
        decay = [(1 / (rate * self.factor)).clamp_(max=weight_decay) for rate in self.rates]
        return list(torch._foreach_addcmul(self.grads, self.params, decay))

    def shrink(self, weight_decay: float) -> None:
        """Decay the weights in proportion to their rates, at most to zero."""
        if self.constant is not None:
            _multiply(self.params, max(0.0, 1 - self.factor * self.constant * weight_decay))
            return
        decay = [(1 - rate * (self.factor * weight_decay)).clamp_(min=0) for rate in self.rates]
        torch._foreach_mul_(self.params, decay)

    def scale_(self, kept: list[Tensor], factor: float) -> None:
        """Multiply what is kept of earlier gradients by a factor."""
        _multiply(kept, factor)

    def mix_(self, kept: list[Tensor], new: list[Tensor], part: float) -> None:
        """Move what is kept of earlier gradients a part of the way to new ones."""
        torch._foreach_lerp_(kept, new, part)

    def count(self, steps: list[Any]) -> list[Any]:
        """Count this update in tensors on the host, and return the numbers."""
        for step in steps:
            step += 1
        return [step.item() for step in steps]

    def unbias(self, beta: float, steps: list[Any]) -> list[Any]:
        """Return what a running average must be divided by after some steps."""
        return [1 - beta**step for step in steps]


def _multiply(tensors: list[Tensor], factor: float) -> None:
    for each in tensors:
        each.mul_(factor)  # _foreach_mul_ rounds the factor first, to the type of a tensor


def as_real(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors, those of complex numbers viewed as pairs of real ones."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]


def roots(numbers: list[Any]) -> list[Any]:
    """Return the square roots of numbers, or of tensors."""
    if isinstance(numbers[0], Tensor):
        return list(torch._foreach_sqrt(numbers))
    return [sqrt(number) for number in numbers]


def rewind_(params: list[Tensor], starts: list[Tensor], parts: list[Tensor]) -> None:
    """Shrink distances from the start to a part, where that is below 1; weights that failed start again."""
    found = [i for i, p in enumerate(params) if p.requires_grad]
    if not found:
        return
    weights, kept = ([local(each[i]) for i in found] for each in (params, parts))
    origins = [local(starts[i]).to(p) for i, p in zip(found, weights, strict=True)]
    lost = torch._foreach_clamp_max(kept, 1.0)
    torch._foreach_sub_(lost, 1.0)
    back = torch._foreach_mul(torch._foreach_sub(weights, origins), lost)  # exactly 0 where nothing shrinks
    torch._foreach_add_(weights, back)
    if not in_range(weights):
        for p, origin in zip(weights, origins, strict=True):
            keep_finite_(p, origin)
