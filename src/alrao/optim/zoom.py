"""``Zoom``: the interval of learning rates narrows around those that the posterior believes in."""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..rates import Law, LogUniform, PerWeight, Redrawn, as_law
from .optimizer import AlraoOptimizer

__all__ = ["Zoom"]


WHAT = {
    "width": "the ratio of the highest to the lowest rate of features",
    "copies": "the ratio of the highest to the lowest rate of copies",
    "memory": "steps over which the centre is averaged",
}

EDGE = 0.4
"""A posterior mean so far from the middle, in widths of the features', moves an interval that is narrow."""


class Zoom(LRScheduler):
    r"""Narrow the interval of learning rates around the rate that the posterior believes in.

    The paper's Alrao keeps the whole interval to the end, so that many features are too slow or too fast all
    the time. Here the interval shrinks, evenly on the logarithmic scale, during the first ``steps`` steps:
    from the one that the optimizer was built with to one of ratio ``width``. Its centre is the posterior's
    mean of the copies' log-rates, averaged over time. Every feature keeps its relative place:

    .. math:: \log\eta_i(t) = c(t) + \left(u_i - \tfrac12\right) w(t)

    with the place :math:`u_i \in [0, 1]` that was drawn for it, the centre :math:`c` and the width :math:`w`;
    so does every copy, with a width that ends at the ratio ``copies``. The interval never leaves the one that
    it began as. Once narrow it stays, unless the posterior's mean is more than 0.4 of its width away from its
    centre: then it moves there.

    A feature that began at a rate far too high has by then been thrown about, and a lower rate does not bring
    it back. So, with ``rewind``, the way that it has come from its start shrinks with its rate, as if it had
    had the lower one all along: exactly so where a step is the rate times a direction that does not depend on
    it. This needs a copy of the weights, until the interval is narrow.

    It is called after each ``optimizer.step()``, as torch's schedulers are. They move the factor
    ``param_groups[…]["lr"]``, which Zoom leaves alone: both go together, in any order. To resume, load its
    state. It was found to work on Adam's steps, with the sum of log-likelihoods as evidence and a cosine, as
    below; on SGD's it is no better than none where the network has no normalisation layers.

    Args:
        optimizer: an optimizer of alrao whose copies have an interval.
        steps: steps of the optimizer during which the interval shrinks: 15 % of the training, say.
        width: ratio of the highest to the lowest rate of features in the end.
        copies: the same for the copies of the output layer. They look further than the features go, so that
            a posterior that was wrong early does not decide for good.
        memory: steps over which the centre is averaged; by default half of ``steps``.
        follow: what the centre follows, the posterior's ``"mean"`` of the log-rates or its ``"mode"``.
        rewind: take back what features have moved too far while their rates shrink.
        every: steps from one move of the rates to the next.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net, averaging=alrao.Switch(10, evidence="sum"))
        >>> optimizer = alrao.Adam(model, lr=(1e-6, 0.1))
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
        copies: float = 300.0,
        memory: float | None = None,
        follow: str = "mean",
        rewind: bool = True,
        every: int = 10,
    ) -> None:
        if not isinstance(optimizer, AlraoOptimizer):
            raise TypeError(
                f"Zoom moves the rates of an optimizer of alrao, got {type(optimizer).__name__}: use "
                "alrao.SGD, alrao.Adam, alrao.AdamW or alrao.Rated"
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
                raise ValueError(f"{name} must be {WHAT[name]}, a number of at least 1, got {value!r}")
        if follow not in ("mean", "mode"):
            raise ValueError(f"follow must be 'mean' or 'mode' of the posterior, got {follow!r}")
        self.steps, self.width, self.copies, self.memory, self.every = steps, width, copies, memory, every
        self.follow = follow
        law = self._check(optimizer)
        self._centre = (log(law.lo) + log(law.hi)) / 2  # of the interval, at the next move
        self._placed, self._moved = self._centre, 0  # the centre at the last move, and the step of it
        self._start: list[list[Tensor]] = []  # the weights of each group, until the interval is narrow
        self._places: list[list[Tensor]] = []  # of each group; empty for one without an interval
        self._seeds: list[int] = []  # that they were drawn with
        # Not yet: until the first step, weights may be loaded, or sent to all processes.
        self._first = optimizer.register_step_pre_hook(self._remember) if rewind else None
        super().__init__(optimizer)

    @torch.no_grad()
    def _remember(self, *_: Any) -> None:
        """Keep the weights as they are before the first step."""
        if not self._start:
            groups = zip(self.optimizer._laws, self.optimizer.param_groups, strict=True)
            self._start = [
                [p.detach().clone() for p in group["params"]] if _interval(law) else []
                for law, group in groups
            ]

    def _know_start(self) -> None:
        """The first step is over."""
        if self._first is not None:
            self._first.remove()
            self._first = None

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
        """The lowest and the highest rate that a feature can have now."""
        law = self._law_of_copies
        low, high = self._ends(law, law, self.width)
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
        self._know_start()
        law = self._law_of_copies
        low, high = self._ends(law, law, self.copies)
        pull = low + self._believed() * (high - low) - self._centre
        low, high = self._ends(law, law, self.width)
        if self._moved < self.steps or abs(pull) > EDGE * (high - low):
            self._centre += pull / self.memory
        if self.last_epoch % self.every == 0 or self.last_epoch == self.steps:
            seeds = [group["seed"] for group in self.optimizer.param_groups]
            known = self._seeds == seeds  # no new group, nor the state of another optimizer
            if self._moved < self.steps or self._centre != self._placed or not known:
                self._placed, self._moved = self._centre, self.last_epoch
                if not known:
                    self._places, self._seeds = self._find_places(), seeds
                self._move(law)

    def _believed(self) -> float:
        """The place among the copies' that the posterior points at: 0 is the lowest rate, 1 the highest."""
        weights = self.optimizer.model.posterior.tolist()
        mean = sum(j * weight for j, weight in enumerate(weights))
        mode = weights.index(max(weights))
        return (mean if self.follow == "mean" else mode) / (len(weights) - 1)

    def _ends(self, law: LogUniform, of_copies: LogUniform, ratio: float) -> tuple[float, float]:
        """What an interval has become that ends with this ratio, on the logarithmic scale.

        A group with another interval than the copies has its centre at the same relative place.
        """
        low, high = log(law.lo), log(law.hi)
        last = min(high - low, log(ratio))
        width = high - low + (last - (high - low)) * min(1.0, self._moved / self.steps)
        place = (self._placed - log(of_copies.lo)) / log(of_copies.hi / of_copies.lo)
        centre = low + place * (high - low)
        centre = min(max(centre, low + width / 2), high - width / 2)
        return centre - width / 2, centre + width / 2

    def _move(self, of_copies: LogUniform) -> None:
        """Give every feature and every copy the rate of its place."""
        optimizer = self.optimizer
        groups = zip(optimizer.param_groups, optimizer._laws, self._places, strict=True)
        for i, (group, law, places) in enumerate(groups):
            interval = _interval(law)
            if interval is None:
                continue
            body, copies = (self._ends(interval, of_copies, ratio) for ratio in (self.width, self.copies))
            ends = [copies if p in optimizer._of_copies else body for p in group["params"]]
            moved = torch._foreach_mul(places, [high - low for low, high in ends])
            torch._foreach_add_(moved, [low for low, _ in ends])
            torch._foreach_exp_(moved)
            rates = [optimizer.state[p]["rate"] for p in group["params"]]
            if i < len(self._start):
                for p, start, rate, new in zip(group["params"], self._start[i], rates, moved, strict=True):
                    _rewind(p, start, new / rate)
            torch._foreach_copy_(rates, moved)
        if self._moved >= self.steps:
            self._start = []
        optimizer._show_rates()

    def _find_places(self) -> list[list[Tensor]]:
        """Where in its interval every rate of a group was drawn, from 0 to 1."""
        optimizer, found = self.optimizer, list[list[Tensor]]()
        for law, group in zip(optimizer._laws, optimizer.param_groups, strict=True):
            found.append([])
            if (interval := _interval(law)) is not None:
                span = log(interval.hi / interval.lo)
                for p, rate in zip(
                    group["params"], optimizer._drawn(law, group, group["params"]), strict=True
                ):
                    found[-1].append(((rate / interval.lo).log() / span).to(optimizer.state[p]["rate"]))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": self._first is not None}  # a copy of the optimizer has no hooks

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._first = self.optimizer.register_step_pre_hook(self._remember) if state["_first"] else None

    def state_dict(self) -> dict[str, Any]:
        """The state, as in torch; the rates are in the optimizer's."""
        of_this_object = ("_places", "_seeds", "_first")
        return {key: value for key, value in super().state_dict().items() if key not in of_this_object}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, as in torch."""
        super().load_state_dict(state_dict)
        if self.last_epoch > 0:  # the weights at the start are those of the state
            self._know_start()


def _group_of_copies(optimizer: AlraoOptimizer) -> int:
    groups = optimizer.param_groups
    return next(i for i, g in enumerate(groups) if not optimizer._of_copies.isdisjoint(g["params"]))


def _rewind(p: Tensor, start: Tensor, part: Tensor) -> None:
    """Leave that part of the way from its start, where it is less than the whole or not finite."""
    if p.requires_grad:
        start = start.to(p)
        way = (p - start) * part
        back = start + torch.where(way.isfinite(), way, 0)
        p.copy_(torch.where((part < 1) | ~p.isfinite(), back.to(p), p))


def _interval(law: Law) -> LogUniform | None:
    """The interval that a law draws from, if it has one that can shrink."""
    law = as_law(law.law) if isinstance(law, PerWeight) else law
    return law if isinstance(law, LogUniform) and law.lo < law.hi else None
