"""``Zoom``: narrow the interval of learning rates around those that the posterior favours."""

from __future__ import annotations

from math import exp, log
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..finite import in_range, keep_finite_
from ..optim import AlraoOptimizer
from ..rates import Interval
from ..runtime.sharding import local

EDGE = 0.4
"""A narrow interval moves once the posterior's centre is this part of its width away from its middle."""


class Zoom(LRScheduler):
    r"""Narrow the interval of learning rates around the rate that the posterior favours. Experimental.

    During the first ``steps`` steps the interval shrinks, evenly on the logarithmic scale, from the one that
    the optimizer was built with to one of ratio ``width``. Every feature keeps its place
    :math:`u_i \in [0, 1]` in it,

    .. math:: \log\eta_i(t) = c(t) + \left(u_i - \tfrac12\right) w(t)

    with the width :math:`w` and the centre :math:`c`: the posterior mean of the copies' log-rates, averaged
    over half of that time. So does every copy, with a width that ends at the ratio ``copies``. The interval
    never leaves the first one. Once narrow it stays, unless the posterior mean is more than 0.4 of its width
    away from its centre: then it moves there.

    Call it after each ``optimizer.step()``, beside torch's schedulers, which change the factor
    ``param_groups[…]["lr"]``. To resume, load its state. On SGD's steps, without normalisation layers, it
    does not help.

    Args:
        optimizer: an optimizer of alrao whose copies have an interval.
        steps: steps of the optimizer during which the interval shrinks, for example 15 % of the training.
        width: ratio of the highest to the lowest rate of features at the end.
        copies: the same for the copies of the head. Theirs is larger, so that an early error of the posterior
            can be corrected.
        rewind: shrink what features have moved together with their rates, as if they had had the lower ones
            from the start; this needs a copy of the weights until the interval is narrow.
        every: steps from one move of the rates to the next.

    Example:
        >>> import torch, alrao.contrib.zoom
        >>> model = alrao.Alrao(torch.nn.Linear(4, 3))
        >>> optimizer = alrao.Adam(model, lr=(1e-6, 0.1), evidence="sum")
        >>> zoom = alrao.contrib.zoom.Zoom(optimizer, steps=15)
        >>> for _ in range(100):
        ...     loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     zoom.step()
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
        copies: float = 300.0,
        rewind: bool = True,
        every: int = 10,
    ) -> None:
        if not isinstance(optimizer, AlraoOptimizer):
            raise TypeError(
                f"Zoom needs an optimizer of alrao, got {type(optimizer).__name__}: use alrao.SGD, "
                "alrao.Adam, alrao.AdamW or alrao.PerFeature"
            )
        for name, value in {"steps": steps, "every": every, "width": width, "copies": copies}.items():
            kind = int if name in ("steps", "every") else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind) or not value >= 1:
                what = "a whole number of steps" if kind is int else "a ratio of rates"
                raise ValueError(f"{name} must be {what}, at least 1, got {value!r}")
        _check(optimizer)
        self.steps, self.width, self.copies, self.every = steps, width, copies, every
        low, high = _initial(optimizer, optimizer.group_of_head) or (1.0, 1.0)
        self._centre: float = (log(low) + log(high)) / 2  # of the interval, at the next move
        self._placed: float = self._centre  # the centre at the last move
        self._moved = 0  # the step of it
        self._start: list[list[Tensor]] | None = None if rewind else []
        """The weights of each group before the first step, until the interval is narrow."""
        # Not now: until the first step weights may be loaded or broadcast.
        self._first: Any = optimizer.register_step_pre_hook(self._remember)
        super().__init__(optimizer)

    @torch.no_grad()
    def _remember(self, *_: Any) -> None:
        """Keep the weights as they are before the first step."""
        if self._start is None:
            self._start = [
                [p.detach().clone() for p in group["params"]] if _initial(self.optimizer, i) else []
                for i, group in enumerate(self.optimizer.param_groups)
            ]

    @property
    def interval(self) -> Interval:
        """The lowest and the highest rate that a feature can have now."""
        low, high = self._ends(self.optimizer.group_of_head, self.width)
        return exp(low), exp(high)

    def get_lr(self) -> list[Any]:
        """Return the factors as they are: Zoom moves the rates behind them."""
        return [group["lr"] for group in self.optimizer.param_groups]

    @torch.no_grad()
    def step(self, epoch: int | None = None) -> None:
        """Follow the posterior, and move the rates every ``every`` steps."""
        super().step(epoch)
        if self.last_epoch < 1:
            return
        if self._first is not None:
            self._first.remove()
            self._first = None
        head = self.optimizer.group_of_head
        low, high = self._ends(head, self.copies)
        weights = self.optimizer.model.head.averaging.weights.tolist()
        place = sum(j * weight for j, weight in enumerate(weights)) / (len(weights) - 1)
        pull = low + place * (high - low) - self._centre
        low, high = self._ends(head, self.width)
        if self._moved < self.steps or abs(pull) > EDGE * (high - low):
            self._centre += pull / max(1.0, self.steps / 2)
        if self.last_epoch % self.every == 0 or self.last_epoch == self.steps:
            self._placed, self._moved = self._centre, self.last_epoch
            self._move()

    def _ends(self, group: int, ratio: float) -> Interval:
        """Return the ends, on the logarithmic scale, of a group's interval that shrinks to this ratio."""
        (low, high), (least, most) = (
            map(log, _initial(self.optimizer, i) or (1.0, 1.0)) for i in (group, self.optimizer.group_of_head)
        )
        last = min(high - low, log(ratio))
        width = high - low + (last - (high - low)) * min(1.0, self._moved / self.steps)
        centre = low + (self._placed - least) / (most - least) * (high - low)
        centre = min(max(centre, low + width / 2), high - width / 2)
        return centre - width / 2, centre + width / 2

    def _move(self) -> None:
        """Set the interval of every group that has one and is elsewhere."""
        optimizer, starts = self.optimizer, self._start or []
        for i, group in enumerate(optimizer.param_groups):
            if _initial(optimizer, i) is None:
                continue
            ends = [self._ends(i, ratio) for ratio in (self.width, self.copies)]
            body, copies = ((exp(low), exp(high)) for low, high in ends)
            if (body, copies) == (optimizer.interval(i), optimizer.interval(i, copies=True)):
                continue
            start = starts[i] if i < len(starts) else []
            moving = group["params"] if start else []
            before = [optimizer.rates(p) for p in moving]
            optimizer.set_interval(i, body=body, copies=copies)
            pairs = zip(moving, before, strict=True)
            _rewind_(moving, start, [optimizer.rates(p) / rate for p, rate in pairs])
        if self._moved >= self.steps:
            self._start = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": None}  # a copy of the optimizer has no hooks

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._start is None:
            self._first = self.optimizer.register_step_pre_hook(self._remember)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as in torch; the rates are in the optimizer's."""
        return {key: value for key, value in super().state_dict().items() if key != "_first"}


def _check(optimizer: AlraoOptimizer) -> None:
    """Raise a ValueError for an optimizer whose rates cannot be moved."""
    copies, groups = optimizer.model.head.copies, optimizer.param_groups
    redrawn = next((group["distribution"]["kind"] for group in groups if group["redraws"] is not None), None)
    problem = ""
    if redrawn is not None:
        problem = f"moves rates that are drawn once, got {redrawn}: pass an interval as lr"
    elif optimizer.sleeps:
        problem = "moves the rates of all copies of the head, so none may sleep: pass sleep=False"
    elif copies < 2:
        problem = (
            f"follows the posterior over several copies, got {copies or 'a plain network'}: build "
            "the optimizer for alrao.Alrao(net, copies=10), or use alrao.Auto(net)"
        )
    elif _initial(optimizer, optimizer.group_of_head) is None:
        problem = (
            "follows the rates of the copies of the head, which must have an interval, got "
            f"{groups[optimizer.group_of_head]['distribution']}: pass one as lr=(low, high)"
        )
    if problem:
        raise ValueError(f"Zoom {problem}")


def _initial(optimizer: AlraoOptimizer, group: int) -> Interval | None:
    """Return the interval that a group began with, if it has one that can shrink."""
    interval = optimizer.interval(group, initial=True)
    return interval if interval is not None and interval[0] < interval[1] else None


def _rewind_(params: list[Tensor], starts: list[Tensor], parts: list[Tensor]) -> None:
    """Shrink distances from the start to a part, where that is below 1; weights that failed start again."""
    found = [i for i, p in enumerate(params) if p.requires_grad]
    weights, kept = ([local(each[i]) for i in found] for each in (params, parts))
    origins = [local(starts[i]).to(p) for i, p in zip(found, weights, strict=True)]
    for p, origin, part in zip(weights, origins, kept, strict=True):
        p += (p - origin) * (part.clamp(max=1.0) - 1)  # exactly 0 where nothing shrinks
    if not in_range(weights):
        for p, origin in zip(weights, origins, strict=True):
            keep_finite_(p, origin)
