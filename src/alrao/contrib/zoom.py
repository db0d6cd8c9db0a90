"""``Zoom``: narrow the interval of learning rates around those that the posterior favours."""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..optim import AlraoOptimizer
from ..optim.update import rewind_
from ..rates import Interval

MEANING = {
    "width": "the ratio of the highest to the lowest rate of features",
    "copies": "the ratio of the highest to the lowest rate of copies",
    "memory": "the number of steps over which the centre is averaged",
}

EDGE = 0.4
"""A narrow interval moves once the posterior's centre is this part of its width away from its middle."""


class Zoom(LRScheduler):
    r"""Narrow the interval of learning rates around the rate that the posterior favours.

    The paper's method keeps the whole interval to the end, so many features stay too slow or too fast. Here
    the interval shrinks during the first ``steps`` steps, evenly on the logarithmic scale, from the one that
    the optimizer was built with to one of ratio ``width``. Its centre is the posterior mean of the copies'
    log-rates, averaged over time. Every feature keeps its place in the interval:

    .. math:: \log\eta_i(t) = c(t) + \left(u_i - \tfrac12\right) w(t)

    with the place :math:`u_i \in [0, 1]` that was drawn for it, the centre :math:`c` and the width :math:`w`;
    so does every copy, with a width that ends at the ratio ``copies``. The interval never leaves the one that
    it began as. Once narrow it stays, unless the posterior mean is more than 0.4 of its width away from its
    centre: then it moves there.

    A lower rate does not bring back the weights of a feature whose rate was far too high. So, with
    ``rewind``, a feature's distance from its start shrinks with its rate, as if it had had the lower one from
    the start: exactly so where a step is the rate times a direction that does not depend on it. This needs a
    copy of the weights until the interval is narrow.

    Call it after each ``optimizer.step()``, like torch's schedulers. They change the factor
    ``param_groups[…]["lr"]``, which Zoom leaves alone, so both combine, in any order. To resume, load its
    state. The recommended settings are those of the example: Adam's steps, the sum of log-likelihoods as
    evidence, and a cosine schedule. On SGD's steps, without normalisation layers, it does not help.

    Args:
        optimizer: an optimizer of alrao whose copies have an interval.
        steps: steps of the optimizer during which the interval shrinks, for example 15 % of the training.
        width: ratio of the highest to the lowest rate of features at the end.
        copies: the same for the copies of the head. Theirs is larger, so that an early error of the posterior
            can be corrected.
        memory: steps over which the centre is averaged; by default half of ``steps``.
        follow: the centre, the posterior's ``"mean"`` of the log-rates or its ``"mode"``.
        rewind: shrink what features have moved together with their rates.
        every: steps from one move of the rates to the next.

    Example:
        >>> import torch, alrao.contrib.zoom
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.Adam(model, lr=(1e-6, 0.1), evidence="sum")
        >>> zoom = alrao.contrib.zoom.Zoom(optimizer, steps=15)
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
        copies: float = 300.0,
        memory: float | None = None,
        follow: str = "mean",
        rewind: bool = True,
        every: int = 10,
    ) -> None:
        if not isinstance(optimizer, AlraoOptimizer):
            raise TypeError(
                f"Zoom needs an optimizer of alrao, got {type(optimizer).__name__}: use alrao.SGD, "
                "alrao.Adam, alrao.AdamW or alrao.PerFeature"
            )
        for name, count in {"steps": steps, "every": every}.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(
                    f"{name} must be a whole number of at least 1, got {count!r}: round a part of the "
                    "training, int(0.15 * total)"
                )
        memory = max(1.0, steps / 2) if memory is None else memory
        for name, value in {"width": width, "copies": copies, "memory": memory}.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
            if not number or (value == inf and name != "copies"):
                raise ValueError(f"{name} must be {MEANING[name]}, a number of at least 1, got {value!r}")
        if follow not in ("mean", "mode"):
            raise ValueError(f"follow must be 'mean' or 'mode' of the posterior, got {follow!r}")
        _check(optimizer)
        self.steps, self.width, self.copies, self.memory, self.every = steps, width, copies, memory, every
        self.follow = follow
        low, high = _initial(optimizer, optimizer.group_of_head) or (1.0, 1.0)
        self._centre: Any = (log(low) + log(high)) / 2  # of the interval, at the next move
        self._placed: Any = self._centre  # the centre at the last move
        self._moved = 0  # the step of it
        self._start: list[list[Tensor]] = []  # the weights of each group, until the interval is narrow
        # The start is the first step, not now: until then weights may be loaded or broadcast.
        self._first = optimizer.register_step_pre_hook(self._remember) if rewind else None
        super().__init__(optimizer)

    @torch.no_grad()
    def _remember(self, *_: Any) -> None:
        """Keep the weights as they are before the first step."""
        if not self._start:
            self._start = [
                [p.detach().clone() for p in group["params"]] if _initial(self.optimizer, i) else []
                for i, group in enumerate(self.optimizer.param_groups)
            ]

    def _end_of_start(self) -> None:
        if self._first is not None:
            self._first.remove()
            self._first = None

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
        self._end_of_start()
        head = self.optimizer.group_of_head
        low, high = self._ends(head, self.copies)
        pull = low + self._posterior_centre() * (high - low) - self._centre
        low, high = self._ends(head, self.width)
        follows = True if self._moved < self.steps else abs(pull) > EDGE * (high - low)
        self._centre = self._centre + pull * follows / self.memory
        if self.last_epoch % self.every == 0 or self.last_epoch == self.steps:
            self._placed, self._moved = self._centre, self.last_epoch
            self._move()

    def _posterior_centre(self) -> float:
        """Return where the posterior's centre is among the copies: 0 is the lowest rate, 1 the highest."""
        weights = self.optimizer.model.head.averaging.weights.tolist()
        mean = sum(j * weight for j, weight in enumerate(weights))
        return (mean if self.follow == "mean" else weights.index(max(weights))) / (len(weights) - 1)

    def _ends(self, group: int, ratio: float) -> tuple[Any, Any]:
        """Return the ends, on the logarithmic scale, of a group's interval that shrinks to this ratio.

        A group with another interval than the copies has its centre at the same relative place.
        """
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
        optimizer = self.optimizer
        for i, group in enumerate(optimizer.param_groups):
            if _initial(optimizer, i) is None:
                continue
            ends = [self._ends(i, ratio) for ratio in (self.width, self.copies)]
            body, copies = ((exp(low), exp(high)) for low, high in ends)
            if (body, copies) == (optimizer.interval(i), optimizer.interval(i, copies=True)):
                continue
            start = self._start[i] if i < len(self._start) else []
            moving = group["params"] if start else []
            before = [optimizer.rates(p) for p in moving]
            optimizer.set_interval(i, body=body, copies=copies)
            pairs = zip(moving, before, strict=True)
            rewind_(moving, start, [optimizer.rates(p) / rate for p, rate in pairs])
        if self._moved >= self.steps:
            self._start = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": self._first is not None}  # a copy of the optimizer has no hooks

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._first = self.optimizer.register_step_pre_hook(self._remember) if state["_first"] else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as in torch; the rates are in the optimizer's."""
        return {key: value for key, value in super().state_dict().items() if key != "_first"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as in torch."""
        super().load_state_dict(state_dict)
        if self.last_epoch > 0:  # the weights at the start are those of the state
            self._end_of_start()


def _check(optimizer: AlraoOptimizer) -> None:
    """Raise a ValueError for an optimizer whose rates cannot be moved."""
    copies, groups = optimizer.model.head.copies, optimizer.param_groups
    redrawn = next((group["distribution"]["kind"] for group in groups if group["redraws"] is not None), None)
    problem = ""
    if redrawn is not None:
        problem = f"moves rates that are drawn once, got {redrawn}: pass an interval as lr"
    elif not copies:
        problem = (
            "follows the posterior over the copies of the head, and a plain network has none: build the "
            "optimizer for alrao.Alrao(net), or use alrao.Auto(net)"
        )
    elif optimizer.sleeps:
        problem = (
            "follows the posterior over all copies and moves their rates, so none may sleep: pass sleep=False"
        )
    elif _initial(optimizer, optimizer.group_of_head) is None:
        problem = (
            "follows the rates of the copies of the head, which must have an interval, got "
            f"{groups[optimizer.group_of_head]['distribution']}: pass one as lr=(low, high)"
        )
    elif copies < 2:
        problem = (
            "follows the posterior over the copies of the head, and there is only one: build the model with "
            "several, Alrao(net, copies=10)"
        )
    if problem:
        raise ValueError(f"Zoom {problem}")


def _initial(optimizer: AlraoOptimizer, group: int) -> Interval | None:
    """Return the interval that a group began with, if it has one that can shrink."""
    interval = optimizer.interval(group, initial=True)
    return interval if interval is not None and interval[0] < interval[1] else None
