"""Where Auto takes its gradients on a plain network: nearer to the average, or to the newest weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..finite import alive, is_finite
from .body import Shards
from .on_device import widest

__all__ = ["START", "GradientPoint", "PointOnDevice"]

START = (1.0, 0.0, 0.0, 0.0, 0.0)
"""The part, both running means, the number of looks and that of steps, before the first step."""

EVERY = 4
"""Steps from one look at the slope to the next: a look costs two passes over the weights."""

RECENT = 10
"""Looks over which the slope is averaged."""

PACE = 0.2
"""How far the part moves at a look at most."""

LOWEST = 0.15
"""The smallest part. The average is computed from the training weights, so some of it must be in them."""


class GradientPoint:
    r"""How much of the average is in the training weights: less of it where the average lags behind.

    With :math:`y = (1 - \beta) z + \beta x`, the loss at :math:`y` has the slope
    :math:`\langle g, z - x \rangle` from the average :math:`x` towards the newest weights :math:`z`. Around
    a minimum of the loss it is positive: :math:`z` is thrown about by noise, and :math:`x` is in the middle.
    Where it stays negative, :math:`x` is behind: two networks that play against each other turn in circles
    that grow with the delay, and a loss that still falls fast has left the average behind. Every 4 steps,
    with running means over 10 looks,

    .. math:: p \leftarrow p + 0.2\, \frac{\overline{\langle g, z - x \rangle}}
        {\overline{|\langle g, z - x \rangle|}}, \qquad 0.15 \le p \le 1, \qquad \beta = p\, \beta_1

    so the gradient is taken towards the lower end of the line between both. What is evaluated is
    :math:`x` in any case.

    Args:
        numbers: what :meth:`read` returned, to continue from.
    """

    def __init__(self, numbers: Sequence[float] = START) -> None:
        self.part, self._mean, self._size, self._looks, self._steps = numbers
        self._seen: list[tuple[Tensor, Tensor]] = []

    def read(self) -> list[float]:
        """Return all numbers that it consists of."""
        return [self.part, self._mean, self._size, self._looks, self._steps]

    def move(
        self,
        states: list[dict[str, Any]],
        z: list[Tensor],
        y: list[Tensor],
        g: list[Tensor],
        highest: float,
        shares: list[float],
    ) -> tuple[float, list[float]]:
        """Return beta, and how much nearer to z each y gets by it and by the newest point's share.

        The slope is noted if it is due.
        """
        if self._steps % EVERY == 0:
            for a, b, of in zip(torch._foreach_sub(z, y), g, z, strict=True):  # z - y points as z - x does
                self._seen.append((torch.dot(a.flatten(), b.flatten()).double(), of))
        beta, nearer = highest * self.part, []
        for state, c in zip(states, shares, strict=True):
            before = state.get("beta", highest)
            nearer.append(c if beta == before else 1 - (1 - c) * beta / before)
            state["beta"] = beta
        return beta, nearer

    def follow(self, shards: Shards) -> None:
        """Move the part by what has been noted of all parameters, in all processes."""
        self._steps += 1
        if not self._seen:
            return
        slope = float(shards.total(*zip(*self._seen, strict=True)))
        self._seen.clear()
        if is_finite(slope):
            self._looks += 1
            share = 1 / min(self._looks, RECENT)
            self._mean += (slope - self._mean) * share
            self._size += (abs(slope) - self._size) * share
            steady = self._mean / self._size if self._size else 0.0
            self.part = min(max(self.part + PACE * steady, LOWEST), 1.0)


class PointOnDevice:
    """A :class:`GradientPoint` whose numbers are on a device.

    Args:
        numbers: what :meth:`read` returned, to continue from.
        device: where the numbers are.
    """

    def __init__(self, numbers: Sequence[float], device: torch.device) -> None:
        # In one tensor: torch's compiler drops changes in place of tensors without an axis.
        self.numbers = torch.tensor(numbers, dtype=widest(device), device=device)
        self._seen: list[tuple[Tensor, Tensor]] = []

    def read(self) -> list[float]:
        """Return all numbers that it consists of, read on the host."""
        numbers: list[float] = self.numbers.tolist()
        return numbers

    @property
    def part(self) -> Tensor:
        """The part of the average in the training weights, in units of the group's."""
        return self.numbers[0]

    def move(
        self, before: list[Tensor], highest: float, shares: list[Tensor], live: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the betas, and how much nearer to z each y gets; ``before`` becomes the former.

        Args:
            before: the betas until now.
            highest: the group's.
            shares: the newest point's share in each average.
            live: 1 if this step averages, else 0, which changes nothing.
        """
        now = [old + live * (highest * self.part.to(old.device) - old) for old in before]
        nearer = [live * (1 - (1 - c) * b / old) for c, b, old in zip(shares, now, before, strict=True)]
        torch._foreach_copy_(before, now)
        return now, nearer

    def observe(self, z: list[Tensor], y: list[Tensor], g: list[Tensor]) -> None:
        """Note the slope that some parameters have, before they move."""
        towards = list(torch._foreach_sub(z, y))
        torch._foreach_mul_(towards, g)
        self._seen += [(each.sum().to(self.numbers), of) for each, of in zip(towards, z, strict=True)]

    def follow(self, shards: Shards, counts: Tensor) -> None:
        """Do as :meth:`GradientPoint.follow`, if this step counts."""
        seen, self._seen = self._seen, []
        numbers = self.numbers
        if seen:
            slope = shards.total(*zip(*seen, strict=True))
            part, mean, size, looks, steps = numbers.unbind()
            looking = (steps % EVERY == 0) & alive(slope) & counts
            slope = torch.where(looking, slope, 0.0)
            looks = looks + looking
            share = looking / looks.clamp(1, RECENT)
            mean, size = mean + (slope - mean) * share, size + (slope.abs() - size) * share
            steady = (mean / size).masked_fill(size == 0, 0.0)
            part = (part + PACE * steady * looking).clamp(LOWEST, 1.0)
            numbers[:4].copy_(torch.stack([part, mean, size, looks]))
        numbers[4:].add_(counts)
