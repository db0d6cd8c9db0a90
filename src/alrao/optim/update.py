"""The arithmetic of one update of a parameter group.

On the CPU it is torch's arithmetic, to the bit. Where nothing may be read on the host, a decision becomes a
mask: a step whose loss is refused runs like any other, with coefficients that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..finite import in_range, keep_finite_, mask_gradients, mask_on_device, zero_unusable
from ..runtime.blocks import Part, block_slices
from ..runtime.capturable import in_type_of, one_unless
from ..runtime.sharding import local
from ..runtime.sleeping import Sleep
from .groups import GroupRates


@dataclass
class GroupUpdate:
    """One update of some parameters of a group.

    ``rates`` broadcast to ``params``; ``constant`` is the rate of all of them where there is only one.
    """

    params: list[Tensor]
    grads: list[Tensor]
    rates: list[Tensor]
    constant: float | None
    factor: Any
    """``lr`` of the group: a number, or a tensor with ``capturable``."""
    stopped: Tensor | None = None
    """None on the host; else whether nothing may change, a single Boolean. The gradients are 0 then."""
    _live: Tensor | None = field(default=None, init=False)

    @property
    def live(self) -> Tensor:
        """1, or 0 for an update that changes nothing; computed where an optimizer asks for it."""
        if self._live is None:
            assert self.stopped is not None
            self._live = one_unless(self.stopped)
        return self._live

    @classmethod
    def of(
        cls,
        params: list[Tensor],
        grads: list[Tensor],
        rates: list[Any],
        constant: float | None,
        factor: Any,
        gate: bool | Tensor,
    ) -> GroupUpdate | None:
        """Return an update with 0 for gradients that must not be applied; None if there is nothing to apply.

        The gate is whether the loss was finite, or on a device a tensor: whether it was refused.
        """
        if not params:
            return None
        if isinstance(gate, Tensor):
            masked, stopped = mask_on_device(grads, gate)
            return cls(params, masked, rates, constant, factor, stopped)
        usable = mask_gradients(grads, suspect=not gate)
        return None if usable is None else cls(params, usable, rates, constant, float(factor))

    def one_by_one(self) -> Iterator[GroupUpdate]:
        """Return an update for each parameter: slower, with less memory at a time."""
        for p, grad, rate in zip(self.params, self.grads, self.rates, strict=True):
            yield GroupUpdate([p], [grad], [rate], self.constant, self.factor, self.stopped)

    def in_blocks(self, state: Any) -> Iterator[GroupUpdate]:
        """Return the update of one parameter, whose state is complete, as updates of its blocks.

        Each block must be updated before the next one is asked for.
        """
        (p,), (grad,), (rate,) = self.params, self.grads, self.rates
        blocks, beta = block_slices(p.shape), state[p].get("beta")
        if not blocks:
            yield self
        for i, rows in enumerate(blocks):
            part = Part(state, p, rows)
            part.begin(1 if i else None)
            if beta is not None:
                state[part.param]["beta"] = beta  # the first block may have changed it
            yield replace(self, params=[part.param], grads=[part.of(grad)], rates=[part.of(rate)])
            part.end(None if i else ())

    def of_real_numbers(self) -> GroupUpdate:
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
        if self.stopped is not None:
            torch._foreach_addcmul_(self.params, directions, self._lrs(), -1)
        elif self.constant is not None:
            torch._foreach_add_(self.params, directions, alpha=-self.factor * self.constant)
        else:
            torch._foreach_addcmul_(self.params, directions, self.rates, -self.factor)

    def move_ratio(self, above: list[Tensor], below: list[Tensor], divisors: list[Any]) -> None:
        """Step against ``above / below / divisors``; ``below`` is overwritten."""
        if self.stopped is not None:
            steps = list(torch._foreach_div(above, below))
            torch._foreach_div_(steps, divisors)
            torch._foreach_mul_(steps, self._lrs())
            torch._foreach_sub_(self.params, steps)
            return
        lr = self.factor
        if self.constant is not None:
            lr *= self.constant
        else:
            torch._foreach_div_(below, self.rates)  # a rate of 0: no step, by division by infinity
        torch._foreach_addcdiv_(self.params, above, below, [-(lr / divisor) for divisor in divisors])

    def _lrs(self) -> list[Tensor]:
        """Return the learning rates, on a device 0 for an update that changes nothing."""
        factor = self.factor if self.stopped is None else self.live * self.factor
        if self.constant is not None:
            return [factor * self.constant] * len(self.params)
        return list(torch._foreach_mul(self.rates, in_type_of(self.rates, factor)))

    def penalised(self, weight_decay: float) -> list[Tensor]:
        """Return the gradients of the loss with an L2 penalty."""
        if self.stopped is None:
            return list(torch._foreach_add(self.grads, self.params, alpha=weight_decay))
        decay = in_type_of(self.params, self.live * weight_decay)
        return list(torch._foreach_add(self.grads, torch._foreach_mul(self.params, decay)))

    def decayed(self, weight_decay: float) -> list[Tensor]:
        """Return the same, with a penalty that never overshoots zero.

        At a rate above ``1 / weight_decay`` the penalty alone would make the weights diverge.
        """
        if self.constant is not None:
            return self.penalised(weight_decay)
        decay = torch._foreach_mul(self.rates, in_type_of(self.rates, self.factor))
        torch._foreach_reciprocal_(decay)
        torch._foreach_clamp_max_(decay, weight_decay)
        if self.stopped is not None:
            torch._foreach_mul_(decay, in_type_of(self.rates, self.live))
        return list(torch._foreach_addcmul(self.grads, self.params, decay))

    def shrink(self, weight_decay: float) -> None:
        """Decay the weights in proportion to their rates, at most to zero."""
        if self.stopped is None and self.constant is not None:
            _multiply(self.params, max(0.0, 1 - self.factor * self.constant * weight_decay))
            return
        kept = torch._foreach_mul(self._lrs(), -weight_decay)
        torch._foreach_add_(kept, 1)
        torch._foreach_clamp_min_(kept, 0)
        torch._foreach_mul_(self.params, kept)

    def scale_(self, averages: list[Tensor], factor: float) -> None:
        """Multiply running averages of gradients by a factor."""
        if self.stopped is None:
            _multiply(averages, factor)
        else:
            torch._foreach_mul_(averages, in_type_of(averages, 1 - self.live * (1 - factor)))

    def mix_(self, averages: list[Tensor], new: list[Tensor], weight: float) -> None:
        """Move running averages towards new gradients by a weight."""
        if self.stopped is None:
            torch._foreach_lerp_(averages, new, weight)
        else:
            self.scale_(averages, 1 - weight)
            torch._foreach_add_(averages, new, alpha=weight)

    def count(self, steps: list[Any]) -> list[Any]:
        """Count this update in tensors; return them, or on the host their numbers."""
        if self.stopped is None:
            for step in steps:
                step += 1
            return [step.item() for step in steps]
        torch._foreach_add_(steps, [self.live] * len(steps))
        return steps

    def bias_corrections(self, beta: float, steps: list[Any]) -> list[Any]:
        """Return what running averages must be divided by after some steps; 1 - beta after none."""
        if self.stopped is None:
            return [1 - beta**step for step in steps]
        powers = list(torch._foreach_pow(beta, torch._foreach_clamp_min(steps, 1.0)))
        torch._foreach_mul_(powers, -1)
        torch._foreach_add_(powers, 1)
        return powers


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


def missed_steps(
    sleep: Sleep, state: Any, rates: GroupRates, factor: float
) -> Iterator[tuple[int, Part, GroupUpdate]]:
    """Return the sleeping copies that took part: how many steps the step stands for, and the step."""
    head = sleep.head
    awake, copies = range(head.copies)[head.awake], range(head.copies)
    for p, rate, of_copies in rates.entries:
        if not of_copies or p.grad is None:
            continue
        for j in (j for j in copies[head.part] if j not in awake):
            part, stands_for = Part(state, p, (slice(j, j + 1),)), sleep.since[j]
            at = part.of(rate) * stands_for if isinstance(rate, Tensor) else rate
            grads = [zero_unusable(part.of(p.grad))]
            yield stands_for, part, GroupUpdate([part.param], grads, [at], rates.constant, factor)


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
