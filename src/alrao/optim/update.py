"""The arithmetic of one update: parameters, gradients, and a rate for every feature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GroupUpdate", "in_range"]

MOST = 1e15
"""The largest norm of a gradient that is applied without a look at its entries."""


def in_range(grads: list[Tensor]) -> bool:
    """Whether all gradients are finite, and so small that no update by them can overflow."""
    norms = torch._foreach_norm(grads)
    if all(grad.is_cpu for grad in grads):
        return sum([norm.item() for norm in norms]) <= MOST
    return bool(torch.stack([norm.float() for norm in norms]).amax() <= MOST)


@dataclass
class GroupUpdate:
    """One update of some parameters of a group: what moves, by what, and how fast.

    ``rates`` broadcast to ``params``; ``constant`` stands for all of them where they are one number.
    """

    params: list[Tensor]
    grads: list[Tensor]
    rates: list[Tensor]
    constant: float | None
    factor: float

    def move(self, directions: list[Tensor]) -> None:
        """Step against ``directions``."""
        if self.constant is not None:
            torch._foreach_add_(self.params, directions, alpha=-self.factor * self.constant)
        else:
            torch._foreach_addcmul_(self.params, directions, self.rates, -self.factor)

    def move_ratio(self, above: list[Tensor], below: list[Tensor], divisors: list[float]) -> None:
        """Step against ``above / below / divisors``; ``below`` is overwritten."""
        lr = self.factor
        if self.constant is not None:
            lr *= self.constant
        else:
            torch._foreach_div_(below, self.rates)  # a rate of 0: no step, by division by infinity
        torch._foreach_addcdiv_(self.params, above, below, [-(lr / divisor) for divisor in divisors])

    def decayed(self, weight_decay: float) -> list[Tensor]:
        """The gradients of the loss with an L2 penalty.

        A feature whose rate is so high that the penalty alone would throw its weights beyond 0, further each
        time, has as much of it as brings them to 0.
        """
        if self.constant is not None:
            return list(torch._foreach_add(self.grads, self.params, alpha=weight_decay))
        decay = [(1 / (rate * self.factor)).clamp_(max=weight_decay) for rate in self.rates]
        return list(torch._foreach_addcmul(self.grads, self.params, decay))

    def shrink(self, weight_decay: float) -> None:
        """Decay the weights in proportion to their rates, at most to 0."""
        if self.constant is not None:
            torch._foreach_mul_(self.params, max(0.0, 1 - self.factor * self.constant * weight_decay))
            return
        decay = [(1 - rate * (self.factor * weight_decay)).clamp_(min=0) for rate in self.rates]
        torch._foreach_mul_(self.params, decay)
