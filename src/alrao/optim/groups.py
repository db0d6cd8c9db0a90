"""What an optimizer trains, and at which rates: parameter groups, the places of features, their rates.

A feature's rate is the quantile of its group's distribution at the feature's place ``u`` in [0, 1]. Places
are drawn once; whoever moves an interval changes the distribution, never the places.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ..features import features_of
from ..rates import Constant, Interval, RateDistribution, as_distribution, describe, scaled
from ..runtime import sharding
from ..runtime.capturable import widest
from ..runtime.sharding import is_shard, local, sharded_as
from ..trainable import joined
from .checks import refuse_strangers, warn_of_copies
from .factor import HIGHEST

CPU = torch.device("cpu")
"""To compare with: the type of a device is a string, which torch makes at each look."""


class FeaturePlaces:
    """Draws the place of every feature of a model: the same for one seed, however parameters are grouped."""

    def __init__(self, model: nn.Module) -> None:
        self._numbers: dict[Tensor, Tensor] = {}  # of the feature that each entry of a parameter belongs to
        self._count = 0
        self.add(model)

    def add(self, model: nn.Module) -> None:
        """Take the features of a model in, behind those that are known."""
        for module, numbers in features_of(model, say=True):
            count = 0
            for name, number in numbers.items():
                self._numbers[module.get_parameter(name)] = number + self._count
                count = max(count, int(number.max()) + 1 if number.numel() else 0)
            self._count += count

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._numbers

    def replace(self, new: dict[Tensor, Tensor]) -> None:
        """Take parameters for those whose place they have taken."""
        self._numbers = {new.get(p, p): numbers for p, numbers in self._numbers.items()}

    def draw(self, params: Iterable[Tensor], seed: int, *, per_weight: bool) -> list[Tensor]:
        """Return the places of the features of each parameter; they broadcast to it."""
        places, drawn = [], None
        for p in params:
            if per_weight:
                order = next(i for i, q in enumerate(self._numbers) if q is p)
                u = _uniform(p.numel(), seed + order).view(p.shape)
            else:
                drawn = _uniform(self._count, seed) if drawn is None else drawn
                u = drawn[self._numbers[p]]
            places.append(sharded_as(u.to(p.device, rate_dtype(p)), p))
        return places


def _uniform(count: int, seed: int) -> Tensor:
    # On the CPU in double precision, so that every device and every process draws the same.
    generator = Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")


def rate_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type of a parameter's rates: real, and at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32).to_real()


class Entry(NamedTuple):
    """One parameter of a group, with the rates of its features."""

    param: Tensor
    rate: Any
    """A tensor that broadcasts to the parameter; a float where all rates of the group are one.

    Of a sharded parameter, it is this process's part.
    """
    of_copies: bool

    def updated(self, new: Entry) -> Entry:
        """Return a new entry, with its rates in the memory of this one: captured graphs read that."""
        old = self.rate
        if self.param is not new.param or not isinstance(old, Tensor) or not isinstance(new.rate, Tensor):
            return new
        if old.shape != new.rate.shape or old.device != new.rate.device:
            return new
        old.copy_(new.rate)
        return self


@dataclass
class GroupRates:
    """The rates of a parameter group: ``body`` and ``copies`` are their distributions, at first ``drawn``."""

    drawn: RateDistribution
    body: RateDistribution = field(init=False)
    copies: RateDistribution = field(init=False)
    constant: float | None = field(init=False)
    """The single rate of the group, if it has one."""
    entries: list[Entry] = field(default_factory=list)
    sharded: bool = False
    """Whether a process holds only a part of some parameter."""

    def __post_init__(self) -> None:
        self.draw_from(self.drawn)

    def draw_from(self, distribution: RateDistribution) -> None:
        """Begin with a distribution; the entries' rates are then computed again."""
        self.drawn = self.body = self.copies = distribution
        self.constant = distribution.lr if isinstance(distribution, Constant) else None

    def move(self, body: Interval | None, copies: Interval | None) -> None:
        """Move the intervals that are given; the entries' rates are then computed again."""
        pairs = (self.body, body), (self.copies, copies)
        moved = [now if to in (None, now.interval) else self.drawn.on(to) for now, to in pairs]
        self.body, self.copies = moved  # a wrong interval has raised before anything changes

    @contextmanager
    def of_this_process(self, state: MutableMapping[Tensor, Any]) -> Iterator[None]:
        """Put this process's part of each parameter into the entries, with its gradient and its state."""
        entries = self.entries
        with sharding.localized(state, (entry.param for entry in entries)) as parts:
            self.entries = [e._replace(param=part) for e, part in zip(entries, parts, strict=True)]
            try:
                yield
            finally:
                self.entries = entries

    def compute(
        self, params: list[Tensor], of_head: Container[Tensor], state: Any, number: int, *, in_place: bool
    ) -> None:
        """Compute the rates of parameters: of the body from their places in ``state``, of ``number`` copies.

        With ``in_place`` they are put into the memory of the former ones, which captured graphs read.
        """
        self.sharded = any(is_shard(p) for p in params)
        before = self.entries
        body, head = ([p for p in params if (p in of_head) is of_copies] for of_copies in (False, True))
        rates = dict(zip(body, self._of_features(body, state), strict=True))
        rates |= zip(head, self._of_copies(head, number), strict=True)
        entries = [Entry(p, rates[p], of_copies=p in of_head) for p in params]
        if in_place and len(before) == len(entries):
            entries = [was.updated(now) for was, now in zip(before, entries, strict=True)]
        self.entries = entries

    def _of_features(self, params: list[Tensor], state: Mapping[Tensor, Any]) -> list[Any]:
        if isinstance(self.body, Constant):
            return [self.body.lr] * len(params)
        return self.body.quantiles([local(state[p]["u"]) for p in params])

    def _of_copies(self, params: list[Tensor], copies: int) -> list[Any]:
        if self.constant is not None or not params:
            return [self.constant] * len(params)
        grid = self.copies.grid(copies)
        shaped = (grid.to(p.device, rate_dtype(p)).view([-1] + [1] * (p.ndim - 1)) for p in params)
        return [local(sharded_as(rates, p)) for rates, p in zip(shaped, params, strict=True)]

    def of_entry(self, entry: Entry, state: Mapping[Tensor, Any]) -> Tensor:
        """Return the rates of a parameter, sharded as it is; they broadcast to the parameter."""
        p, rate = entry.param, entry.rate
        if not isinstance(rate, Tensor):
            return sharded_as(torch.full([1] * p.ndim, rate, dtype=rate_dtype(p), device=p.device), p)
        if not is_shard(p):
            return rate.clone()
        u = state[p].get("u")
        shape = torch.Size([len(p)] + [1] * (p.ndim - 1)) if u is None else u.shape
        return sharding.part_of(rate.clone(), shape, p)


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
        self._names = sharding.names_of_parameters(self.model)
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
            self._names = sharding.names_of_parameters(self.model)
            self._places.add(more)
        else:
            refuse_strangers(strangers)
        if any(p.requires_grad for p in self.head_parameters.intersection(group["params"])):
            warn_of_copies(distribution, self.model.head.copies)
        if group["capturable"] and distribution.redrawn:
            raise ValueError("capturable=True is not supported by Redrawn, whose rates are drawn on the host")
        rates = GroupRates(distribution)
        group["distribution"] = describe(distribution)
        group["interval"] = group["copies_interval"] = distribution.interval
        group["seed"] = self._seed
        group[HIGHEST] = 0.0
        group["redraws"] = 0 if distribution.redrawn else None
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
        self.sharded_modules = sharding.sharded_modules(self.model)  # by fully_shard
        for module in self.sharded_modules:
            module.reshard()  # the parameters are gathered after an evaluation
        if self.sharded_modules:
            self.model.head.expect_shards()

    def adopt_shards(self) -> None:
        """Train the shards that have taken the place of parameters since the optimizer was built."""
        new = sharding.replaced(self.model, self._names, self.param_groups)
        if new:
            self.look_for_shards()
            self._replace_parameters(new)

    @torch.no_grad()
    def _replace_parameters(self, new: dict[Tensor, Tensor]) -> None:
        self._places.replace(new)
        self._names = {new.get(p, p): name for p, name in self._names.items()}
        self.head_parameters = set(self.model.head.parameters())
        for p in new.keys() & self.state.keys():
            self.state[new[p]] = sharding.shard_state(self.state.pop(p), new[p])
        for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
            group["params"] = [new.get(entry.param, entry.param) for entry in rates.entries]
            self._compute(rates, group)

    # Rates.

    def _draw_places(self, rates: GroupRates, group: dict[str, Any]) -> None:
        if rates.constant is None:
            body = [p for p in group["params"] if p not in self.head_parameters]
            seed, per_weight = group["seed"] + (group["redraws"] or 0), rates.drawn.per_weight
            for p, u in zip(body, self._places.draw(body, seed, per_weight=per_weight), strict=True):
                self.state[p]["u"] = u

    def _compute(self, rates: GroupRates, group: dict[str, Any]) -> None:
        copies = self.model.head.copies
        rates.compute(group["params"], self.head_parameters, self.state, copies, in_place=self.on_device)

    def compute_rates(self, group: int) -> None:
        """Compute the rates of a group again, from its distribution and the places of the features."""
        self._compute(self.rates_of_groups[group], self.param_groups[group])

    def redraw(self, group: int) -> None:
        """Draw the places of a group's features again."""
        self.param_groups[group]["redraws"] += 1
        self._draw_places(self.rates_of_groups[group], self.param_groups[group])
        self.compute_rates(group)

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
        self.rates_of_groups[group].move(body, copies)
        self._intervals_moved(group)

    def _intervals_moved(self, group: int) -> None:
        rates, settings = self.rates_of_groups[group], self.param_groups[group]
        if not settings["capturable"]:  # compiled steps are guarded by what is in the groups
            settings["interval"], settings["copies_interval"] = rates.body.interval, rates.copies.interval
        self.compute_rates(group)
