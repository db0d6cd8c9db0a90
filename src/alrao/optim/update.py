"""The arithmetic of one update of a parameter group.

On the CPU it is torch's arithmetic, to the bit. Where nothing may be read on the host, a decision becomes a
mask: a step whose loss is refused runs like any other, with coefficients that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..runtime.capturable import in_type_of, one_unless
from ..runtime.sharding import local

BLOCK = 2**18
"""The most weights of a parameter that are updated at a time.

An update is several passes over weights, gradients, state and temporary tensors. Large ones leave the cache
between two passes, and the system must clear the memory of large temporary tensors.
"""


@dataclass
class GroupUpdate:
    """One update of some parameters of a group; ``constant`` is the rate of all where there is only one."""

    params: list[Tensor]
    grads: list[Tensor]
    rates: list[Any]
    states: list[dict[str, Any]]
    """What is kept of each parameter: complete, and counted, before the first part of it is updated."""
    whole: list[Tensor]  # what each of ``params`` is, or is a part of: of a sharded one, this process's
    constant: float | None
    factor: Any  # ``lr`` of the group: a number, or a tensor with ``capturable``
    stopped: list[Tensor] | None = None
    """None on the host; else masks of the gradients. Nothing may change if all of their entries are true."""
    _live: Tensor | None = field(default=None, init=False)  # dynamo does not take cached_property

    @property
    def live(self) -> Tensor:
        """1, or 0 for an update that changes nothing; computed where an optimizer asks for it."""
        if self._live is None:
            assert self.stopped is not None
            self._live = one_unless(*self.stopped)
        return self._live

    def count(self) -> None:
        """Count the step in the states that count, unless it changes nothing."""
        steps = [state["step"] for state in self.states if "step" in state]
        if self.stopped is None:
            for step in steps:
                step += 1
        elif steps:
            torch._foreach_add_(steps, [self.live] * len(steps))

    def one_by_one(self) -> Iterator[GroupUpdate]:
        """Return an update for each parameter: slower, with less memory at a time."""
        lists = zip(self.params, self.grads, self.rates, self.states, self.whole, strict=True)
        for p, grad, rate, state, whole in lists:
            yield replace(self, params=[p], grads=[grad], rates=[rate], states=[state], whole=[whole])

    def of_this_process(self) -> GroupUpdate:
        """Return the update of this process's parts of sharded parameters; the gradients are theirs."""
        params, states = map(local, self.params), map(local, self.states)
        return replace(self, params=list(params), states=list(states), whole=self.params)

    def part(self, rows: Sequence[tuple[slice, ...]], grads: list[Tensor]) -> GroupUpdate:
        """Return the update of a part of each parameter, by slices of its first axes, with its gradient."""
        cut = list(zip(rows, self.params, strict=True))
        rates = [rows_of(rate, *each) for rate, each in zip(self.rates, cut, strict=True)]
        states = [
            {key: rows_of(value, *each) for key, value in state.items()} if each[0] else state
            for state, each in zip(self.states, cut, strict=True)
        ]
        params = [rows_of(p.detach(), at, p) if at else p for at, p in cut]
        return replace(self, params=params, grads=grads, rates=rates, states=states)

    def in_blocks(self) -> Iterator[GroupUpdate]:
        """Return the update of one parameter as updates of its blocks."""
        (p,), (grad,) = self.params, self.grads
        for rows in block_slices(p.shape) or [()]:
            yield self.part([rows], [rows_of(grad, rows, p)])

    def of_real_numbers(self) -> GroupUpdate:
        """Return the same update with complex numbers viewed as pairs of real ones."""
        pairs = zip(self.rates, self.params, strict=True)
        rates = [r[..., None] if isinstance(r, Tensor) and p.is_complex() else r for r, p in pairs]
        params, grads = map(_as_real, self.params), map(_as_real, self.grads)
        states = [{key: _as_real(value) for key, value in state.items()} for state in self.states]
        return replace(self, params=list(params), grads=list(grads), rates=rates, states=states)

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
        """Return the same, with a penalty that never overshoots zero."""
        # At a rate above 1 / weight_decay the penalty alone would make the weights diverge.
        if self.constant is not None:
            return self.penalised(weight_decay)
        decay = self._lrs()
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


def _multiply(tensors: list[Tensor], factor: float) -> None:
    for each in tensors:
        each.mul_(factor)  # _foreach_mul_ rounds the factor first, to the type of a tensor


def _as_real(value: Any) -> Any:
    return torch.view_as_real(value) if isinstance(value, Tensor) and value.is_complex() else value


def rows_of(value: Any, rows: tuple[slice, ...], whole: Tensor) -> Any:
    """Return what belongs to a part of a parameter, by slices of its first axes; axes of length 1 stay."""
    if not rows or not isinstance(value, Tensor) or value.ndim < 2:
        return value
    sizes = zip(rows, value.shape, whole.shape, strict=False)
    return value[tuple(part if size == of_whole else slice(None) for part, size, of_whole in sizes)]


def block_slices(shape: torch.Size) -> list[tuple[slice, ...]]:
    """Return where the blocks of a parameter are: along its first axis, or the second too; none, if small."""
    each = shape[1:].numel()
    if shape.numel() <= BLOCK or len(shape) < 2:
        return []

    def slices(length: int, most: int) -> list[slice]:
        return [slice(start, min(start + most, length)) for start in range(0, length, most)]

    if each <= BLOCK or len(shape) < 3:
        return [(rows,) for rows in slices(shape[0], max(1, BLOCK // each))]
    inner = slices(shape[1], max(1, BLOCK // shape[2:].numel()))
    return [(slice(j, j + 1), rows) for j in range(shape[0]) for rows in inner]
