"""Where Auto takes its gradients: nearer to the average, or nearer to the newest weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from typing import Any

import torch
from torch import Tensor

from ..finite import alive, is_finite, zero_nonfinite
from .body import Shards
from .on_device import widest

__all__ = ["START", "GradientPoint", "PointOnDevice"]

START = (0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
"""Before the first step: the number of steps; the share, the mean and the number of comparisons of turns; the
part, both running means and the number of looks of slopes."""

EVERY = 4
"""Steps from one look to the next. A look at the slope costs two passes over the weights, and a look at the
direction one, at two steps in a row."""

TURNS = 5
"""Comparisons over which the likeness of two directions is averaged."""

AGAINST = 0.3
"""How much directions may be opposed to the ones before: around a minimum they are, a little."""

STILLEST = 0.1
"""The smallest share of the newest weights, in units of the usual one."""

RECENT = 10
"""Looks over which the slope is averaged."""

PACE = 0.2
"""How far the part moves at a look at most."""

LOWEST = 0.15
"""The smallest part. The average is computed from the training weights, so some of it must be in them."""


class GradientPoint:
    r"""How much of the average is in the training weights :math:`y = (1 - \beta) z + \beta x`.

    **More, where weights swing.** Where a rate is high for the curvature, :math:`z` jumps from one side of a
    valley to the other, and a gradient taken near it says little more than that. With the step's
    direction summed over the weights of each feature that has several, :math:`d`, the cosine of the angle
    between two successive ones, every 4 steps, and its running mean :math:`\bar\rho` over 5 of them,

    .. math:: q \leftarrow q \exp(\bar\rho + 0.3), \qquad 0.1 \le q \le 1

    is the share of the newest weights. Noise alone turns directions at random, and leaves :math:`q` at 1.

    **Less, where the average lags behind**, on a network without copies. The loss at :math:`y` has the slope
    :math:`\langle g, z - x \rangle` from the average towards the newest weights. Around a minimum it is
    positive: :math:`z` is thrown about by noise, and :math:`x` is in the middle. Where it stays
    negative, :math:`x` is behind: two networks that play against each other turn in circles that grow with
    the delay, and a loss that still falls fast has left the average behind. Every 4 steps, with running
    means over 10 looks,

    .. math:: p \leftarrow p + 0.2\, \frac{\overline{\langle g, z - x \rangle}}
        {\overline{|\langle g, z - x \rangle|}}, \qquad 0.15 \le p \le 1

    Together they are :math:`1 - \beta = q\, (1 - p\, \beta_1)`. Copies of a classifier's head keep
    :math:`\beta_1`, because some of them may sleep. What is evaluated is :math:`x` in any case.

    Args:
        slopes: whether to follow the slope.
        numbers: what :meth:`read` returned, to continue from.
    """

    def __init__(self, *, slopes: bool, numbers: Sequence[float] = START) -> None:
        self.slopes = slopes
        self._steps, self.share, self._likeness, self._compared, *rest = numbers
        self.part, self._mean, self._size, self._looks = rest
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._turned: dict[int, tuple[Tensor, Tensor]] = {}

    def read(self) -> list[float]:
        """Return all numbers that it consists of."""
        of_turns = [self._steps, self.share, self._likeness, self._compared]
        return [*of_turns, self.part, self._mean, self._size, self._looks]

    def move(
        self, states: list[dict[str, Any]], highest: float, shares: list[float]
    ) -> tuple[list[float], list[float]]:
        """Return the betas of some parameters, and how much nearer to z each y gets.

        Args:
            states: of each parameter; those without a ``beta`` keep the group's.
            highest: the group's beta.
            shares: the newest point's share in each average.
        """
        moved = 1 - self.share * (1 - highest * self.part)
        nearer = list(shares)
        for i, state in enumerate(states):
            before = state.get("beta", moved)
            if moved != before:
                state["beta"] = moved
                nearer[i] = 1 - (1 - shares[i]) * moved / before
        return [state.get("beta", highest) for state in states], nearer

    def observe(self, z: list[Tensor], y: list[Tensor], g: list[Tensor]) -> None:
        """Note the slope that some parameters have, before they move, if that is due."""
        if self.slopes and self._steps % EVERY == 0:
            for a, b, of in zip(torch._foreach_sub(z, y), g, z, strict=True):  # z - y points as z - x does
                self._seen.append((torch.dot(a.flatten(), b.flatten()), of))

    @property
    def compares(self) -> bool:
        """Whether the direction of this step is compared with another one's."""
        return self._steps % EVERY < 2

    def turn(self, nows: list[Tensor], lasts: list[Tensor]) -> None:
        """Note the steps of some parameters, or of blocks of them, summed over features.

        Args:
            nows: those steps.
            lasts: what is kept of earlier ones.
        """
        for now, last in zip(nows, lasts, strict=True):
            key = last.data_ptr() if last.numel() else id(last)  # blocks may share their features
            before = self._turned.get(key)
            self._turned[key] = (now if before is None else before[0] + now, last)

    def follow(self, slopes: Shards, features: Shards) -> None:
        """Move by what has been noted of all parameters, in all processes.

        Args:
            slopes: of which processes know a part of each parameter.
            features: of which processes know a part of each parameter's features.
        """
        phase = self._steps % EVERY
        self._steps += 1
        if self._turned:
            nows, lasts = map(list, zip(*self._turned.values(), strict=True))
            self._turned.clear()
            nows = features.summed(nows, lasts)
            if phase == 0:
                torch._foreach_copy_(lasts, nows)
            else:
                self._compare(features.joined([*nows, *lasts], [*lasts, *lasts]).double().view(2, -1))
                torch._foreach_zero_(lasts)  # a parameter without a gradient at the next look has none
        if self._seen:
            slope = slopes.read_total(*zip(*self._seen, strict=True))
            self._seen.clear()
            self._follow_slope(slope)

    def _compare(self, now_and_last: Tensor) -> None:
        (now, product), (_, last) = torch.mm(now_and_last, now_and_last.t()).tolist()
        if is_finite(now) and is_finite(last) and now > 0 and last > 0:
            cosine = product / (sqrt(now) * sqrt(last))
            self._compared += 1
            self._likeness += (cosine - self._likeness) / min(self._compared, TURNS)
            self.share = min(max(self.share * exp(self._likeness + AGAINST), STILLEST), 1.0)

    def _follow_slope(self, slope: float) -> None:
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
        point: the point to continue from.
        device: where the numbers are.
    """

    def __init__(self, point: GradientPoint, device: torch.device) -> None:
        self.slopes: bool = point.slopes
        # In one tensor: torch's compiler drops changes in place of tensors without an axis.
        self.numbers = torch.tensor(point.read(), dtype=widest(device), device=device)
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._turned: list[tuple[Tensor, Tensor]] = []

    def read(self) -> list[float]:
        """Return all numbers that it consists of, read on the host."""
        numbers: list[float] = self.numbers.tolist()
        return numbers

    @property
    def share(self) -> Tensor:
        """The share of the newest weights, in units of the usual one."""
        return self.numbers[1]

    @property
    def part(self) -> Tensor:
        """The part of the average in the training weights, in units of the group's."""
        return self.numbers[4]

    def move(
        self, states: list[dict[str, Any]], highest: float, shares: list[Tensor], live: Tensor
    ) -> tuple[list[Any], list[Tensor]]:
        """Do as :meth:`GradientPoint.move`, unless ``live`` is 0, which changes nothing."""
        moved = 1 - self.share * (1 - highest * self.part)
        betas: list[Any] = [highest] * len(states)
        nearer = list(shares)
        at = [i for i, state in enumerate(states) if "beta" in state]
        for i in at:
            before = states[i]["beta"]
            betas[i] = before + live * (moved - before)
            nearer[i] = live * (1 - (1 - shares[i]) * betas[i] / before)
        if at:
            torch._foreach_copy_([states[i]["beta"] for i in at], [betas[i] for i in at])
        return betas, nearer

    def observe(self, z: list[Tensor], y: list[Tensor], g: list[Tensor]) -> None:
        """Note the slope that some parameters have, before they move."""
        if self.slopes:
            towards = list(torch._foreach_sub(z, y))
            torch._foreach_mul_(towards, g)
            self._seen += [(each.sum().to(self.numbers), of) for each, of in zip(towards, z, strict=True)]

    def turn(self, states: list[dict[str, Any]], directions: list[Tensor]) -> None:
        """Note the directions in which some parameters are about to move."""
        for state, direction in zip(states, directions, strict=True):
            if (last := state.get("last")) is not None:
                now = direction.sum_to_size(last.shape).to(last.dtype)
                self._turned.append((zero_nonfinite(now), last))

    def follow(self, slopes: Shards, features: Shards, counts: Tensor) -> None:
        """Do as :meth:`GradientPoint.follow`, if this step counts."""
        steps, share, likeness, compared, part, mean, size, looks = self.numbers.clone().unbind()
        if self._turned:
            nows, lasts = map(list, zip(*self._turned, strict=True))
            self._turned = []
            nows = features.summed(nows, lasts)
            now, last = (features.joined(each, lasts).to(share) for each in (nows, lasts))
            length = now.norm() * last.norm()
            comparing = (steps % EVERY == 1) & alive(length) & (length > 0) & counts
            cosine = torch.where(comparing, now.dot(last) / length, likeness)
            compared = compared + comparing
            likeness = likeness + (cosine - likeness) / compared.clamp(1, TURNS)
            shrunk = (share * (likeness + AGAINST).exp()).clamp(STILLEST, 1.0)
            share = torch.where(comparing, shrunk, share)
            first, either = (steps % EVERY == 0) & counts, (steps % EVERY < 2) & counts
            pairs = zip(nows, lasts, strict=True)
            torch._foreach_copy_(lasts, [torch.where(either, a * first, b) for a, b in pairs])
        if self._seen:
            slope = slopes.total(*zip(*self._seen, strict=True))
            self._seen = []
            looking = (steps % EVERY == 0) & alive(slope) & counts
            slope = torch.where(looking, slope, 0.0)
            looks = looks + looking
            newest = looking / looks.clamp(1, RECENT)
            mean, size = mean + (slope - mean) * newest, size + (slope.abs() - size) * newest
            steady = (mean / size).masked_fill(size == 0, 0.0)
            part = (part + PACE * steady * looking).clamp(LOWEST, 1.0)
        numbers = [steps + counts, share, likeness, compared, part, mean, size, looks]
        self.numbers.copy_(torch.stack(numbers))
