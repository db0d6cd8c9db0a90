"""``Zoom``: the interval of learning rates narrows around those that the posterior believes in."""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .optimizer import AlraoOptimizer
from .rates import Law, LogUniform, PerWeight, Redrawn, as_law

__all__ = ["Zoom"]


EDGE = 0.4
"""A posterior mean so far from the middle, in widths of the interval, means that the rate lies outside."""


class Zoom(LRScheduler):
    r"""Narrow the interval of learning rates around the rate that the posterior believes in.

    The paper's Alrao keeps the whole interval to the end, so that many features are too slow or too fast all
    the time. Here the interval shrinks, evenly on the logarithmic scale, during the first ``steps`` steps:
    from the one that the optimizer was built with to one of ratio ``width``. Its centre is the posterior's
    mean of the copies' log-rates, averaged over time. Every feature and every copy keeps its relative place:

    .. math:: \log\eta_i(t) = c(t) + \left(u_i - \tfrac12\right) w(t)

    with the place :math:`u_i \in [0, 1]` that was drawn for it, the centre :math:`c` and the width :math:`w`.
    The interval never leaves the one that it began as. Once narrow it stays, unless the posterior sits at one
    of its ends: then the right rate lies beyond, and the interval moves there.

    A feature that began at a rate far too high has by then been thrown about, and a lower rate does not bring
    it back. So, with ``rewind``, the way that it has come from its start shrinks with its rate, as if it had
    had the lower one all along: exactly so where a step is the rate times a direction that does not depend on
    it. This needs a copy of the weights, until the interval is narrow.

    It is called after each ``optimizer.step()``, as torch's schedulers are. They move the factor
    ``param_groups[…]["lr"]``, which Zoom leaves alone: both go together, in any order.

    Args:
        optimizer: an optimizer of alrao whose copies have an interval.
        steps: steps of the optimizer during which the interval shrinks: a seventh of the training, say.
        width: ratio of the highest to the lowest rate in the end.
        memory: steps over which the centre is averaged; by default half of ``steps``.
        rewind: take back what features have moved too far while their rates shrink.
        copies: move the rates of the copies of the output layer too; otherwise they keep the whole interval.
        every: steps from one move of the rates to the next.
        last_epoch: as in torch: the number of the last step, where training is resumed without a state.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.Adam(model)
        >>> zoom = alrao.Zoom(optimizer, steps=15)
        >>> cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        >>> for _ in range(100):
        ...     loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     zoom.step()
        ...     cosine.step()
        >>> low, high = zoom.interval
        >>> round(high / low, 3)
        3.0
    """

    optimizer: AlraoOptimizer

    def __init__(
        self,
        optimizer: Optimizer,
        steps: int,
        *,
        width: float = 3.0,
        memory: float | None = None,
        rewind: bool = True,
        copies: bool = True,
        every: int = 10,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, AlraoOptimizer):
            raise TypeError(
                f"Zoom moves the rates of an optimizer of alrao, got {type(optimizer).__name__}: use "
                "alrao.SGD, alrao.Adam, alrao.AdamW or alrao.Rated"
            )
        for name, value in {"steps": steps, "every": every}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not 1 <= width < inf:
            raise ValueError(
                f"width is the ratio of the highest rate to the lowest, at least 1, got {width!r}"
            )
        memory = max(1.0, steps / 2) if memory is None else memory
        if not 1 <= memory < inf:
            raise ValueError(f"memory must be at least 1 step, got {memory!r}")
        self.steps, self.width, self.memory, self.every = steps, width, memory, every
        self.copies = copies
        law = self._check(optimizer)
        self._centre = (log(law.lo) + log(law.hi)) / 2  # of the copies' interval, at the next move
        self._placed, self._moved = self._centre, 0  # the centre at the last move, and the step of it
        self._start: list[list[Tensor]] = []  # the weights of each group, until the interval is narrow
        self._places: list[list[Tensor]] = []  # of each group
        self._seeds: list[int] = []  # that they were drawn with
        self.optimizer = optimizer
        if rewind:
            self._start = [[p.detach().clone() for p in params] for params in self._moving()]
        super().__init__(optimizer, last_epoch)

    def _check(self, optimizer: AlraoOptimizer) -> LogUniform:
        """The law of the copies' rates, of an optimizer whose rates can be moved."""
        for law in optimizer._laws:
            if isinstance(law, Redrawn):
                raise ValueError(f"Zoom moves rates that are drawn once, not {law!r}: give an interval as lr")
        law = optimizer._laws[_group_of_copies(optimizer)]
        interval = _interval(law)
        if interval is None:
            raise ValueError(
                "Zoom follows the rates of the copies of the output layer, which must have an interval, got "
                f"{law!r}: give one as lr=(low, high)"
            )
        if optimizer.model.head.copies < 2:
            raise ValueError(
                "Zoom follows the posterior over the copies of the output layer, and there is only one: "
                "build the model with several, Alrao(net, copies=10)"
            )
        return interval

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest rate that the copies of the output layer have now, or would have."""
        law = self._law_of_copies
        low, high = self._ends(law, law)
        return exp(low), exp(high)

    @property
    def _law_of_copies(self) -> LogUniform:
        law = _interval(self.optimizer._laws[_group_of_copies(self.optimizer)])
        assert law is not None
        return law

    def get_lr(self) -> list[Any]:
        """The factors as they are: Zoom moves the rates behind them."""
        return [group["lr"] for group in self.optimizer.param_groups]

    @torch.no_grad()
    def step(self, epoch: int | None = None) -> None:
        """Take in the posterior, and move the rates when it is time to."""
        super().step(epoch)
        if self.last_epoch < 1:
            return
        law = self._law_of_copies
        low, high = self._ends(law, law)
        width = high - low
        if not self.copies:
            low, high = log(law.lo), log(law.hi)
        pull = low + self._posterior_mean() * (high - low) - self._centre
        if self._moved < self.steps or abs(pull) > EDGE * width:
            self._centre += pull / self.memory
        if self.last_epoch % self.every == 0 or self.last_epoch == self.steps:
            seeds = [group["seed"] for group in self.optimizer.param_groups]
            known = self._seeds == seeds  # no new group, nor the state of another optimizer
            if self._moved < self.steps or self._centre != self._placed or not known:
                self._placed, self._moved = self._centre, self.last_epoch
                if not known:
                    self._places, self._seeds = self._find_places(), seeds
                self._move(law)

    def _posterior_mean(self) -> float:
        """Of the copies' places: 0 is the lowest rate, 1 the highest."""
        weights = self.optimizer.model.posterior.tolist()
        return sum(j * weight for j, weight in enumerate(weights)) / (len(weights) - 1)

    def _ends(self, law: LogUniform, of_copies: LogUniform) -> tuple[float, float]:
        """What a group's interval has become, on the logarithmic scale.

        A group with another interval than the copies has its centre at the same relative place.
        """
        low, high = log(law.lo), log(law.hi)
        last = min(high - low, log(self.width))
        width = high - low + (last - (high - low)) * min(1.0, self._moved / self.steps)
        place = (self._placed - log(of_copies.lo)) / log(of_copies.hi / of_copies.lo)
        centre = low + place * (high - low)
        centre = min(max(centre, low + width / 2), high - width / 2)
        return centre - width / 2, centre + width / 2

    def _move(self, of_copies: LogUniform) -> None:
        """Give every feature and every copy the rate of its place."""
        laws = self.optimizer._laws
        for i, (params, law, places) in enumerate(zip(self._moving(), laws, self._places, strict=True)):
            interval = _interval(law)
            if places and interval is not None:
                rates = [self.optimizer.state[p]["rate"] for p in params]
                low, high = self._ends(interval, of_copies)
                moved = torch._foreach_mul(places, high - low)
                torch._foreach_add_(moved, low)
                torch._foreach_exp_(moved)
                if i < len(self._start):
                    for p, start, rate, lower in zip(params, self._start[i], rates, moved, strict=True):
                        _rewind(p, start, lower / rate)
                torch._foreach_copy_(rates, moved)
        if self._moved >= self.steps:
            self._start = []
        self.optimizer._show_rates()

    def _moving(self) -> list[list[Tensor]]:
        """The parameters of each group whose rates move."""
        optimizer, copies = self.optimizer, self.optimizer._of_copies
        return [
            [p for p in group["params"] if self.copies or p not in copies] if _interval(law) else []
            for law, group in zip(optimizer._laws, optimizer.param_groups, strict=True)
        ]

    def _find_places(self) -> list[list[Tensor]]:
        """Where in its interval every rate of a group that moves was drawn, from 0 to 1."""
        optimizer, found = self.optimizer, list[list[Tensor]]()
        for law, group, params in zip(optimizer._laws, optimizer.param_groups, self._moving(), strict=True):
            interval = _interval(law)
            if interval is None:
                found.append([])
                continue
            drawn = optimizer._drawn(law, group, params)
            span = log(interval.hi / interval.lo)
            places = [(rate / interval.lo).log() / span for rate in drawn]
            rates = [optimizer.state[p]["rate"] for p in params]
            found.append([place.to(rate) for place, rate in zip(places, rates, strict=True)])
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state, as in torch; the rates are in the optimizer's."""
        return {key: value for key, value in super().state_dict().items() if key not in ("_places", "_seeds")}


def _group_of_copies(optimizer: AlraoOptimizer) -> int:
    groups = optimizer.param_groups
    return next(i for i, g in enumerate(groups) if not optimizer._of_copies.isdisjoint(g["params"]))


def _rewind(p: Tensor, start: Tensor, part: Tensor) -> None:
    """Leave that part of the way from its start; none of a way that is not finite."""
    start = start.to(p)
    way = (p - start) * part.clamp(max=1)
    p.copy_(start + torch.where(way.isfinite(), way, 0))


def _interval(law: Law) -> LogUniform | None:
    """The interval that a law draws from, if it has one that can shrink."""
    law = as_law(law.law) if isinstance(law, PerWeight) else law
    return law if isinstance(law, LogUniform) and law.lo < law.hi else None
