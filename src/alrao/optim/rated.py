"""What an optimizer trains, and at which rates: parameter groups, their distributions and intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..rates import Constant, Interval, RateDistribution, Redrawn, as_distribution, describe, scaled
from ..shards import names_of_parameters, placed, replaced, sharded_modules
from ..trainable import joined
from .checks import refuse_strangers, warn_of_copies
from .factor import HIGHEST
from .feature_rates import FeaturePlaces, GroupRates
from .on_device import widest

__all__ = ["RatedOptimizer"]

CPU = torch.device("cpu")
"""To compare with: the type of a device is a string, which torch makes at each look."""


class RatedOptimizer(Optimizer):
    """An optimizer in which every feature of a model has its own learning rate.

    Args:
        distribution: that of the rates of groups that have none of their own.
        defaults: settings of groups that do not have them.
        params: parameters or parameter groups; None: all of the model's.
        seed: the seed of the features' places in the distribution.
    """

    model: Any
    """The model that is trained; a subclass sets it first."""

    rates_of_groups: list[GroupRates]
    """The rates of each parameter group."""

    def __init__(
        self,
        distribution: RateDistribution,
        defaults: dict[str, Any],
        *,
        params: Iterable[Any] | None,
        seed: int,
    ) -> None:
        self._distribution = distribution
        self._seed = seed
        self._device = self.model.head.evidence.device
        self._places = FeaturePlaces(self.model.net)
        self._names = names_of_parameters(self.model)
        self.head_parameters = set(self.model.head.parameters())
        self.rates_of_groups = []
        super().__init__(self.model.parameters() if params is None else params, defaults)

    @property
    def on_device(self) -> bool:
        """Whether a step leaves all numbers where they are: on every device but the CPU, unless asked to."""
        # A plain Boolean also where torch.compile has one of its own in the group.
        return self._device != CPU or bool(self.param_groups[0]["capturable"])

    # Groups.

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch; ``lr`` is an interval, a distribution or a number.

        A group's ``lr_scale`` (timm) multiplies its rates, and leaves it: no scheduler applies it again.
        """
        group = dict(param_group)
        distribution = as_distribution(group.pop("lr")) if "lr" in group else self._distribution
        distribution = scaled(distribution, group.pop("lr_scale", 1.0))
        distribution.draw(0), distribution.grid(self.model.head.copies or 1)  # a user's own may fail: here
        super().add_param_group(group)
        group = self.param_groups[-1]
        if group["capturable"]:
            group["lr"] = torch.full((), group["lr"], dtype=widest(self._device), device=self._device)
        try:
            self.rates_of_groups.append(self._begin_group(group, distribution))
        except BaseException:
            self.param_groups.pop()
            for p in group["params"]:
                self.state.pop(p, None)
            raise

    def _begin_group(self, group: dict[str, Any], distribution: RateDistribution) -> GroupRates:
        """Draw the places of a new group's features; a subclass adds what else the group needs."""
        strangers = [p for p in group["params"] if p not in self._places]
        if strangers and not self.model.modules:  # without a network, there may be more, as in torch
            more, _ = joined(strangers)
            self.model.net.extend(more)
            self._names = names_of_parameters(self.model)
            self._places.add(more)
        else:
            refuse_strangers(strangers)
        if any(p.requires_grad for p in self.head_parameters.intersection(group["params"])):
            warn_of_copies(distribution, self.model.head.copies)
        if group["capturable"] and isinstance(distribution, Redrawn):
            raise ValueError("capturable=True is not supported by Redrawn, whose rates are drawn on the host")
        rates = GroupRates(distribution)
        group["distribution"] = describe(distribution)
        group["interval"] = group["copies_interval"] = distribution.interval
        group["seed"] = self._seed
        group[HIGHEST] = 0.0
        group["redraws"] = 0 if isinstance(distribution, Redrawn) else None
        self._draw_places(rates, group)
        self._compute(rates, group)
        for p in group["params"]:
            if group["capturable"] and p.requires_grad:  # before a graph is compiled or captured
                self._new_state(p, group)
        return rates

    def _new_state(self, p: Tensor, group: dict[str, Any]) -> None:
        """Prepare what is kept of a parameter, in a subclass that keeps anything, unless it is there."""

    # Parameters that take the place of others.

    def look_for_shards(self) -> None:
        """Find the modules whose parameters are sharded now."""
        self.sharded_modules = sharded_modules(self.model)  # by fully_shard
        for module in self.sharded_modules:
            module.reshard()  # the parameters are gathered after an evaluation
        if self.sharded_modules:
            self.model.head.expect_shards()

    def follow_parameters(self) -> None:
        """Train the shards that have taken the place of parameters since the optimizer was built."""
        new = replaced(self.model, self._names, self.param_groups)
        if new:
            self.look_for_shards()
            self._follow(new)

    @torch.no_grad()
    def _follow(self, new: dict[Tensor, Tensor]) -> None:
        self._places.follow(new)
        self._names = {new.get(p, p): name for p, name in self._names.items()}
        self.head_parameters = set(self.model.head.parameters())
        for p in new.keys() & self.state.keys():
            self.state[new[p]] = placed(self.state.pop(p), new[p])
        for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
            group["params"] = [new.get(entry.param, entry.param) for entry in rates.entries]
            self._compute(rates, group)

    # Rates.

    def _draw_places(self, rates: GroupRates, group: dict[str, Any]) -> None:
        if rates.constant is None:
            body = [p for p in group["params"] if p not in self.head_parameters]
            seed = group["seed"] + (group["redraws"] or 0)
            for p, u in zip(body, self._places.draw(body, seed, per_weight=rates.per_weight), strict=True):
                self.state[p]["u"] = u

    def _compute(self, rates: GroupRates, group: dict[str, Any]) -> None:
        copies = self.model.head.copies
        rates.compute(group["params"], self.head_parameters, self.state, copies, in_place=self.on_device)

    def compute_rates(self, group: int) -> None:
        """Compute the rates of a group again, from its distribution and the places of the features."""
        self._compute(self.rates_of_groups[group], self.param_groups[group])

    def redraw(self, group: int) -> None:
        """Draw the places of a group's features again."""
        rates, settings = self.rates_of_groups[group], self.param_groups[group]
        settings["redraws"] += 1
        self._draw_places(rates, settings)
        self._compute(rates, settings)

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
    def set_interval(
        self, group: int = 0, *, body: Interval | None = None, copies: Interval | None = None
    ) -> None:
        """Move the interval of a group's rates. Every feature keeps its place in it.

        Args:
            group: index into ``param_groups``.
            body: the new interval of the body's features; None leaves it as it is.
            copies: the new interval of the copies of the head; None leaves it as it is.
        """
        rates, settings = self.rates_of_groups[group], self.param_groups[group]
        rates.move(body, copies)
        if not settings["capturable"]:  # compiled steps are guarded by what is in the groups
            settings["interval"], settings["copies_interval"] = rates.body.interval, rates.copies.interval
        self._compute(rates, settings)

    @torch.no_grad()
    def set_rate(self, group: int, rate: float) -> None:
        """Give all features of the body one rate, in place of an interval; copies keep theirs.

        Args:
            group: index into ``param_groups``.
            rate: the rate.
        """
        rates, settings = self.rates_of_groups[group], self.param_groups[group]
        rates.body = Constant(rate)
        if not settings["capturable"]:
            settings["interval"] = rates.body.interval
        self._compute(rates, settings)
