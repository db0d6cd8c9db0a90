"""The rates of an optimizer, to look at and to move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..rates import Interval
from .feature_rates import GroupRates

__all__ = ["RatedOptimizer"]


class RatedOptimizer(Optimizer):
    """An optimizer in which every feature of a model has its own learning rate."""

    model: Any
    rates_of_groups: list[GroupRates]
    """The rates of each parameter group."""

    def rates(self, parameter: Tensor) -> Tensor:
        """Return the rates of a parameter, without the factor ``lr``; they broadcast to the parameter."""
        for rates in self.rates_of_groups:
            for entry in rates.entries:
                if entry.param is parameter:
                    return rates.of_entry(entry, self.state)
        raise KeyError("rates() takes a parameter that this optimizer trains, one of its param_groups")

    def copy_rates(self, *, initial: bool = False) -> Tensor:
        """Return the rates of the copies of the head, lowest first, without the factor ``lr``.

        Args:
            initial: those at the start, wherever the interval has moved since.
        """
        if not self.model.head.copies:
            raise ValueError(
                "a plain network has no copies, so there are no copy_rates(): interval() has the ends of its "
                "features' rates, rates(parameter) each of them"
            )
        rates = self.rates_of_groups[self.group_of_head]
        return (rates.drawn if initial else rates.copies).grid(self.model.head.copies)

    @property
    def group_of_head(self) -> int:
        """The index of the first parameter group with parameters of the head."""
        groups, of_head = enumerate(self.param_groups), set(self.model.head.parameters())
        return next(i for i, group in groups if not of_head.isdisjoint(group["params"]))

    def interval(self, group: int = 0, *, copies: bool = False, initial: bool = False) -> Interval | None:
        """Return the interval of a group's rates, or None if its distribution has none.

        Args:
            group: index into ``param_groups``.
            copies: the interval of the copies of the head instead of the body's features.
            initial: the interval at the start, wherever it has moved since.
        """
        rates = self.rates_of_groups[group]
        return (rates.drawn if initial else rates.copies if copies else rates.body).interval

    @torch.no_grad()
    def move_interval(
        self,
        group: int,
        *,
        body: Tensor | None = None,
        copies: Tensor | None = None,
        where: Tensor | None = None,
    ) -> None:
        """Move the interval of a group's rates to tensors, without a read on the host.

        Args:
            group: index into ``param_groups``.
            body: the logarithms of the ends of the body's interval; None leaves it as it is.
            copies: those of the interval of the copies.
            where: whether to move at all, a single Boolean.
        """
        rates = self.rates_of_groups[group]
        rates.move_on_device(body, copies, where, self.state, self.model.head.copies)
