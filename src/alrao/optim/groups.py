"""The rates of parameter groups: the places of features, the rates at them, and the factor on all of them.

A feature's rate is the quantile of its group's distribution at the feature's place ``u`` in [0, 1]. Places
are drawn once; whoever moves an interval changes the distribution, never the places.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from ..features import features_of
from ..rates import Constant, Interval, LogUniform, RateDistribution
from ..runtime.sharding import is_shard, local, part_of, sharded_as
from ..warn import warn


class FeaturePlaces:
    """Draws the place of every feature of a model: the same for one seed, however parameters are grouped."""

    def __init__(self, model: nn.Module) -> None:
        self._numbers: dict[Tensor, Tensor] = {}  # of the feature that each entry of a parameter belongs to
        self._count = 0
        self.add(model)

    def add(self, model: nn.Module) -> None:
        """Take the features of a model in, behind those that are known, which keep their places."""
        for module, numbers in features_of(model, say=True):
            count = 0
            for name, number in numbers.items():
                scripted = isinstance(module, torch.jit.ScriptModule)
                p: Any = getattr(module, name) if scripted else module.get_parameter(name)
                if p in self._numbers:
                    continue
                self._numbers[p] = number + self._count
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
    """A tensor that broadcasts to the parameter, or this process's part of it; a float where all are one."""
    of_copies: bool


@dataclass
class GroupRates:
    """The rates of a parameter group: ``body`` and ``copies`` are their distributions, at first ``drawn``."""

    drawn: RateDistribution
    body: RateDistribution = field(init=False)
    copies: RateDistribution = field(init=False)
    constant: float | None = field(init=False)
    entries: list[Entry] = field(default_factory=list)
    sharded: bool = False
    size: int = 0

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

    def compute(
        self, params: list[Tensor], of_head: Container[Tensor], state: Any, number: int, *, in_place: bool
    ) -> None:
        """Compute the rates of parameters; ``in_place`` in the memory that captured graphs read."""
        self.sharded, self.size = any(is_shard(p) for p in params), sum(p.numel() for p in params)
        before, self.entries, grid = {e.param: e.rate for e in self.entries}, [], None
        for p in params:
            rate: Any = self.constant
            if p in of_head and rate is None:
                grid = self.copies.grid(number) if grid is None else grid
                column = grid.to(p.device, rate_dtype(p)).view([-1] + [1] * (p.ndim - 1))
                rate = local(sharded_as(column, p))
            elif p not in of_head:
                body = self.body
                rate = body.lr if isinstance(body, Constant) else body.quantile(local(state[p]["u"]))
            old, kind = before.get(p), (getattr(rate, "shape", None), getattr(rate, "device", None))
            if in_place and isinstance(old, Tensor) and (old.shape, old.device) == kind:
                rate = old.copy_(rate)
            self.entries.append(Entry(p, rate, of_copies=p in of_head))

    def of_entry(self, entry: Entry, state: Mapping[Tensor, Any]) -> Tensor:
        """Return the rates of a parameter, sharded as it is; they broadcast to the parameter."""
        p, rate = entry.param, entry.rate
        if not isinstance(rate, Tensor):
            return sharded_as(torch.full([1] * p.ndim, rate, dtype=rate_dtype(p), device=p.device), p)
        if not is_shard(p):
            return rate.clone()
        u = state[p].get("u")
        shape = torch.Size([len(p)] + [1] * (p.ndim - 1)) if u is None else u.shape
        return part_of(rate.clone(), shape, p)


def warn_of_copies(distribution: RateDistribution, copies: int) -> None:
    """Warn of rates from which the copies of the head learn nothing about the others."""
    if isinstance(distribution, Constant) and copies > 1:
        warn(
            f"lr={distribution.lr:g} gives all {copies} copies of the head the same rate, so the "
            "posterior cannot tell them apart: pass an interval such as lr=(1e-5, 10), or use one copy"
        )
    if isinstance(distribution, LogUniform) and copies == 1 and distribution.lo < distribution.hi:
        warn(
            f"the single copy of the head gets the middle of the interval, "
            f"{distribution.grid(1).item():.3g}: use several copies to cover it"
        )


# The factor ``lr`` of a group.

HIGHEST = "highest_lr"
"""The key of a group's highest factor so far; in the group, so that a resumed run knows it."""

LOW = 0.1  # a program whose factor never exceeds this has probably written a learning rate

PATIENCE = 100
"""The fewest steps before a warning; in proportion to the highest factor from 0.01 on, 1000 for 0.1."""

WARMED_UP = 1e-3  # a warm-up of a scheduler has passed this factor after PATIENCE steps

REMEDY = (
    "It is a factor on all rates, 1.0 at the start, and not a learning rate. Write 1.0 where the program has "
    "its highest learning rate (lr=1.0, learning_rate=1.0, max_lr=1.0) and scale the others with it; "
    "lower rates come from a lower interval of alrao.SGD, Adam or AdamW"
)


def check_factor(lr: Any) -> bool:
    """Return whether a factor is a usable one, after a warning if it is probably a learning rate."""
    if isinstance(lr, bool | str) or not hasattr(lr, "__float__") or not 0 <= float(lr) < inf:
        raise ValueError(
            f"lr of Auto is a factor on the rates that it finds, a finite number of at least 0, got {lr!r}: "
            "leave it out, or use alrao.AdamW(model, lr=(1e-5, 1e-2)) for an interval"
        )
    if lr < LOW:
        warn(f"Auto was built with lr={float(lr):g}. {REMEDY}")
    return bool(lr >= LOW)


class FactorWatch:
    """Looks at the factor of each step until it is high enough, or has been too low for too long.

    A scheduler of torch that starts from 1.0 may rise in a warm-up, or hold a low factor for a whole epoch of
    it: there only steps below the maximum count, or all while the factor is tiny. A program that writes the
    factor itself has as many steps as its highest factor so far allows.
    """

    _steps = _idle = 0

    def look(self, groups: list[dict[str, Any]]) -> bool:
        """Return whether to look again at the next step, after a warning where one is due."""
        if any(isinstance(group["lr"], Tensor) or HIGHEST not in group for group in groups):
            return False  # on a device, or from a state without it
        peak, now = (max(group[key] for group in groups) for key in (HIGHEST, "lr"))
        planned = max((group.get("max_lr", 1.0) for group in groups), default=1.0)
        self._steps += 1
        relative = all(group.get("initial_lr") == 1.0 for group in groups)
        self._idle += now > 0 and (now < peak or not relative or now < WARMED_UP)
        peak = max(peak, now)
        for group in groups:
            group[HIGHEST] = peak
        told = ""
        if planned <= LOW:
            told = f"the highest value planned for param_groups[…]['lr'] is max_lr={planned:g}"
        elif peak <= LOW and self._idle >= max(PATIENCE, 1e4 * peak):
            told = f"param_groups[…]['lr'] was at most {peak:.3g} in {self._steps} steps"
        if told:
            warn(f"{told}. {REMEDY}")
            return False
        return peak <= LOW
