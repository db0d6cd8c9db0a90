"""The arithmetic of one update of a parameter group.

On the CPU it is torch's arithmetic, to the bit. Where nothing may be read on the host, a decision becomes a
mask: a step whose loss is refused runs like any other, with coefficients that change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..runtime.capturable import in_type_of, one_unless

BLOCK = 2**18
"""The most weights of a parameter that are updated at a time.

An update is several passes over weights, gradients, state and temporary tensors. Large ones leave the cache
between two passes, and the system must clear the memory of large temporary tensors.
"""


@dataclass
class GroupUpdate:
    """One update of some parameters of a group.

    ``rates`` broadcast to ``params``; ``constant`` is the rate of all of them where there is only one.
    """

    params: list[Tensor]
    grads: list[Tensor]
    rates: list[Any]
    constant: float | None
    factor: Any
    """``lr`` of the group: a number, or a tensor with ``capturable``."""
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

    def one_by_one(self) -> Iterator[GroupUpdate]:
        """Return an update for each parameter: slower, with less memory at a time."""
        for p, grad, rate in zip(self.params, self.grads, self.rates, strict=True):
            yield replace(self, params=[p], grads=[grad], rates=[rate])

    def in_blocks(self, state: Any) -> Iterator[GroupUpdate]:
        """Return the update of one parameter, whose state is complete, as updates of its blocks.

        Each block must be updated before the next one is asked for.
        """
        (p,), (grad,), (rate,) = self.params, self.grads, self.rates
        blocks = block_slices(p.shape)
        if not blocks:
            yield self
        for i, rows in enumerate(blocks):
            part = Part(state, p, rows)
            part.begin(1 if i else None)
            yield replace(self, params=[part.param], grads=[part.of(grad)], rates=[part.of(rate)])
            part.end(None if i else ())

    def of_real_numbers(self) -> GroupUpdate:
        """Return the same update with complex parameters and gradients viewed as pairs of real numbers."""
        pairs = zip(self.rates, self.params, strict=True)
        rates = [r[..., None] if isinstance(r, Tensor) and p.is_complex() else r for r, p in pairs]
        return replace(self, params=as_real(self.params), grads=as_real(self.grads), rates=rates)

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


def as_real(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors, those of complex numbers viewed as pairs of real ones."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]


# Parts of a parameter.


class Part:
    """A part of a parameter, by slices of its first axes; while it is updated, it has its own state."""

    def __init__(self, state: Any, whole: Tensor, rows: tuple[slice, ...]) -> None:
        self.whole, self.rows, self._state = whole, rows, state
        self.param = whole.detach()[rows]
        self._given = {key: self.of(value) for key, value in state[whole].items()}

    def of(self, value: Any) -> Any:
        """Return what belongs to this part of a value for the parameter; it may have axes of length 1."""
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        sizes = zip(self.rows, value.shape, self.whole.shape, strict=False)
        return value[tuple(rows if size == of_whole else slice(None) for rows, size, of_whole in sizes)]

    def begin(self, stands_for: int | None = None) -> None:
        """Give the part its state; for a step that stands for several, counted already, with counters."""
        of_part = dict(self._given)
        if stands_for is not None:
            counters = {"step": lambda now: now / stands_for - 1, "k": lambda now: now - 1}
            of_part.update({key: counters[key](of_part[key]) for key in counters.keys() & of_part.keys()})
        self._state[self.param] = of_part

    def end(self, starts_as_weights: Collection[str] | None) -> None:
        """Take the state back; what is new, and the counters, become the parameter's.

        Of new state, ``starts_as_weights`` begins as a copy of the weights. With None the counters stay.
        """
        whole = self._state[self.whole]
        for key, value in self._state.pop(self.param).items():
            if value is self._given.get(key) or starts_as_weights is None:
                continue
            if isinstance(value, Tensor) and value.shape == self.param.shape:
                start = self.whole.detach() if key in starts_as_weights else torch.zeros_like(self.whole)
                whole[key] = start.to(value.dtype, copy=True)
                whole[key][self.rows] = value
            else:
                whole[key] = value


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
