"""The rates of a model's features: drawn places, and the rates that follow from them.

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

from ..features import features_of
from ..rates import Constant, Interval, PerWeight, RateDistribution
from ..shards import is_shard, local, localized, part_of, sharded_as

__all__ = ["Entry", "FeaturePlaces", "GroupRates", "rate_dtype"]


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

    def follow(self, new: dict[Tensor, Tensor]) -> None:
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

    def whole_rate(self, u: Tensor | None) -> Tensor:
        """Return the rates of the whole parameter; ``u`` has the places of its features, if it has any."""
        p = self.param
        shape = torch.Size([len(p)] + [1] * (p.ndim - 1)) if u is None else u.shape
        return part_of(self.rate.clone(), shape, p) if is_shard(p) else self.rate.clone()


@dataclass
class GroupRates:
    """The rates of a parameter group, and what they follow from.

    ``body`` and ``copies`` are the distributions as they are now; both are ``drawn`` at the start.
    """

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

    @property
    def per_weight(self) -> bool:
        """Whether every weight has its own rate."""
        return isinstance(self.drawn, PerWeight)

    def move(self, body: Interval | None, copies: Interval | None) -> None:
        """Move the intervals that are given; the entries' rates are then computed again."""
        moves_body = body is not None and body != self.body.interval
        moves_copies = copies is not None and copies != self.copies.interval
        moved = [
            self.drawn.on(body) if body is not None and moves_body else self.body,
            self.drawn.on(copies) if copies is not None and moves_copies else self.copies,
        ]  # a wrong interval raises before anything changes
        self.body, self.copies = moved

    @contextmanager
    def of_this_process(self, state: MutableMapping[Tensor, Any]) -> Iterator[None]:
        """Put this process's part of each parameter into the entries, with its gradient and its state."""
        entries = self.entries
        with localized(state, (entry.param for entry in entries)) as parts:
            self.entries = [e._replace(param=part) for e, part in zip(entries, parts, strict=True)]
            try:
                yield
            finally:
                self.entries = entries

    def compute(
        self,
        params: list[Tensor],
        of_head: Container[Tensor],
        state: Mapping[Tensor, Any],
        number: int,
        *,
        in_place: bool,
    ) -> None:
        """Compute the rates of all parameters.

        Args:
            params: the parameters of the group.
            of_head: those of the head among them.
            state: of each parameter, its features' places ``"u"``.
            number: how many copies there are.
            in_place: put the rates into the memory of the former ones, which captured graphs read.
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

    def of_entry(self, entry: Entry, state: Mapping[Tensor, Any]) -> Tensor:
        """Return the rates of a parameter, sharded as it is; they broadcast to the parameter."""
        p, rate = entry.param, entry.rate
        if not isinstance(rate, Tensor):
            ones = torch.ones([1] * p.ndim, dtype=rate_dtype(p))
            return sharded_as((ones * rate).to(p.device), p)
        return entry.whole_rate(state[p].get("u")) if self.sharded else rate.clone()

    def _of_features(self, params: list[Tensor], state: Mapping[Tensor, Any]) -> list[Any]:
        """Return the rates of the features of parameters of the body; numbers where they have one rate."""
        if isinstance(self.body, Constant):
            return [self.body.lr] * len(params)
        return self.body.quantiles([local(state[p]["u"]) for p in params])

    def _of_copies(self, params: list[Tensor], copies: int) -> list[Any]:
        """Return the rates of the copies, to broadcast to each parameter of the head."""
        if self.constant is not None or not params:
            return [self.constant] * len(params)
        grid = self.copies.grid(copies)
        placed = (grid.to(p.device, rate_dtype(p)).view([-1] + [1] * (p.ndim - 1)) for p in params)
        return [local(sharded_as(rates, p)) for rates, p in zip(placed, params, strict=True)]
