"""``Auto``: one optimizer with no learning rate, no schedule and no number of steps to choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import torch
from torch import Generator, Tensor

from .optim import checkpoint
from .optim.averaged import AveragedOptimizer, wide_dtype
from .optim.averaging_step import averaging_step, on_host
from .optim.body import BodyStep, Shards
from .optim.checks import check_at_least_0, check_steps
from .optim.climb import ClimbingSearch
from .optim.climb_on_device import ClimbOnDevice
from .optim.feature_rates import GroupRates
from .optim.gradient_point import START, GradientPoint, PointOnDevice
from .optim.moving import MovingInterval
from .optim.on_device import DeviceUpdate, Gate, counter, widest
from .optim.search import COPIES
from .optim.unit_step import round_to, step_on_host
from .optim.update import GroupUpdate, rewind_, rewind_if_
from .rates import Interval, RateDistribution
from .trainable import Trainable

__all__ = ["Auto"]

SMALL = 2**20
"""Weights of a group that are updated all at once by default: that sets aside too little to matter."""


class Auto(AveragedOptimizer):
    r"""Train without choosing a learning rate, a schedule or a number of steps. Experimental.

    A step is Adam's without its first moment: with the gradient :math:`g` at the training weights :math:`y`,

    .. math:: v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        \delta = \gamma\,\eta_i\, \frac{g}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    where :math:`\eta_i` is the rate of feature :math:`i` and :math:`\gamma` the factor
    ``param_groups[…]["lr"]``, 1.0 unless a scheduler changes it. There are two phases:

    1. **Search**, about 50 steps, or up to 500 while nothing is learned: :math:`y \leftarrow y - \delta`. The
       copies of the head learn at rates from 1e-6 to 0.1. The body's interval starts as (3e-4, 3e-3), and
       narrows to a ratio of 1.5 around the rates at which copies gain most, or around higher ones at which
       the body's own way is worth more: see :class:`ClimbingSearch`. Where a feature's rate falls, its
       distance from its start shrinks with it.
    2. **Averaging**: :math:`z \leftarrow z - \delta`, :math:`x \leftarrow x + c_k (z - x)` with
       :math:`c_k = k^2 / \sum_{i \le k} i^2`, and :math:`y = (1 - \beta) z + \beta x`. :math:`\beta` is
       :math:`\beta_1`, higher where steps swing from side to side, and on a network without copies lower
       while :math:`x` lags behind: see :class:`GradientPoint`.

    The parameters hold :math:`y` while the model is in training mode, and the averaged weights :math:`x`
    while it is in evaluation mode: ``model.train()`` and ``model.eval()`` are all that it takes. During the
    search both are the same.

    A model that has not been trained yet gets copies of the head that are all like the first one, so that
    only their rates differ. Log :meth:`interval` as the learning rate.

    Args:
        model: an :class:`Alrao` model, possibly wrapped by DDP or ``torch.compile``; or, for any
            loss, a plain network, a list of them, or pairs of a name and a parameter. Without copies the
            search follows the body alone.
        steps: number of steps of the training, if it is known: the search then takes at most 30 % of it. A
            longer run is fine.
        weight_decay: decoupled decay, of :math:`y` and in proportion to the rate, as in :class:`AdamW`.
        betas: :math:`\beta_1`, the usual part of the average in the training weights, fixed when a group is
            added, and :math:`\beta_2`, of the running average of squared gradients.
        eps: term added to the denominator, as in Adam.
        params: parameters or parameter groups, as in :class:`SGD`. A group with its own ``lr`` (interval,
            distribution or number) keeps these rates; the others follow the search.
        generator: random generator for the places of the features in the interval.
        maximize: maximize the objective instead of minimizing it.
        foreach: update all parameters of a group at once.
        process_group: the processes that train this model together.
        swap: put the averaged weights into the parameters in evaluation mode. With False they hold the
            training weights in both modes, for a network that acts while it learns.
        sleep: after the search, leave out copies of the head while their posterior weight is negligible, as
            in :class:`SGD`. None: where it pays, for a classifier on the CPU whose copies have a million
            weights together; False: never.
        capturable: never read anything on the host, as in :class:`SGD`.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.Auto(model)
        >>> for _ in range(60):
        ...     x = torch.randn(8, 4)
        ...     loss = torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> low, high = optimizer.interval()
        >>> round(high / low, 3)
        1.5

    Reference: Defazio et al., "The Road Less Scheduled", 2024, for the averaging.
    """

    def __init__(
        self,
        model: Trainable,
        *,
        steps: int | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.7, 0.99),
        eps: float = 1e-8,
        params: Iterable[Any] | None = None,
        generator: Generator | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        process_group: Any = None,
        swap: bool = True,
        sleep: bool | None = None,
        capturable: bool = False,
    ) -> None:
        check_at_least_0(weight_decay=weight_decay)
        if not all(0.0 < beta < 1.0 for beta in betas):
            raise ValueError(f"betas must lie strictly between 0 and 1, got {betas!r}")
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps!r}")
        self.search: ClimbingSearch | ClimbOnDevice = ClimbingSearch.of(check_steps(steps))
        defaults = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            model, COPIES, defaults,
            params=params, generator=generator, maximize=maximize, foreach=foreach,
            evidence="sum", process_group=process_group, swap=swap, sleep=sleep,
            capturable=capturable,
        )  # fmt: skip
        self.point: GradientPoint | PointOnDevice = self._point()
        self._place_search()
        self.model.head.start_alike()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch; without an ``lr`` of their own they follow the search."""
        follows = "lr" not in param_group
        scale = param_group.get("lr_scale", 1.0)
        beta, _ = param_group.get("betas", self.defaults["betas"])  # schedulers may write betas
        super().add_param_group({**param_group, "follows": follows, "scale": scale, "beta": beta})
        if follows:
            self.set_interval(len(self.param_groups) - 1, body=self._interval_of(self.param_groups[-1]))

    def _begin_group(self, group: dict[str, Any], distribution: RateDistribution) -> GroupRates:
        for p in group["params"]:
            if p not in self.head_parameters or self.model.head.likelihood != "categorical":
                self.state[p]["beta"] = group["beta"]
        rates = super()._begin_group(group, distribution)
        for p in group["params"]:
            if group["follows"] and "u" in self.state[p]:
                self.state[p]["worth"] = worth = torch.zeros_like(self.state[p]["u"])
                if worth.numel() < p.numel():  # features of one weight would add next to nothing
                    self.state[p]["last"] = torch.zeros_like(worth)
                if self.model.head.copies < 2:
                    for key in ("total", "total_size"):
                        self.state[p][key] = torch.zeros((), dtype=worth.dtype, device=p.device)
        return rates

    def _interval_of(self, group: dict[str, Any]) -> Interval:
        """Return where the search has put the interval of a group that follows it."""
        low, high = self.search.interval()
        scale = group.get("scale", 1.0)
        return low * scale, high * scale

    def _point(self, numbers: Sequence[float] = START) -> GradientPoint:
        return GradientPoint(slopes=not self.model.head.copies, numbers=numbers)

    def _place_search(self) -> None:
        """Continue the search where this optimizer computes: in tensors, or in numbers."""
        if not self.on_device:
            return
        search = self.search.read() if isinstance(self.search, ClimbOnDevice) else self.search
        rates = self.copy_rates() if self.model.head.copies else torch.ones(0)
        device = self.model.head.evidence.device
        assert isinstance(self.point, GradientPoint)
        self.point = PointOnDevice(self.point, device)
        log_rates = rates.to(device, widest(device)).log()
        self.search = ClimbOnDevice(search, log_rates)
        for i, group in enumerate(self.param_groups):
            if group["follows"]:
                ends = torch.tensor(self.interval(i), dtype=torch.float64).log().to(self.search.log_rates)
                self.move_interval(i, body=ends)

    # The step.

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        if isinstance(self.search, ClimbOnDevice):
            self._update_on_device(group, u)
            return
        searching = not self.search.over
        states = [self._state_of(p, group, searching) for p in u.params]
        y = [self.training_weights(p, state) for p, state in zip(u.params, states, strict=True)]
        pairs = zip(u.grads, y, strict=True)
        g = [grad if grad.dtype == each.dtype else grad.to(each.dtype) for grad, each in pairs]
        if searching and group["follows"]:
            self.search.observe_body(BodyStep.of(group["interval"], states, y, g))
        assert isinstance(self.point, GradientPoint)
        step_on_host(u, states, y, g, group, searching, self.point)
        for p, state, wide in zip(u.params, states, y, strict=True):
            if "rest" in state:
                round_to(p, state["rest"], wide)

    def _has_state(self, state: dict[str, Any], group: dict[str, Any]) -> bool:
        return "z" in state

    def _sets_nothing_aside(self, group: dict[str, Any]) -> bool:
        return sum(p.numel() for p in group["params"]) <= SMALL

    def _update_on_device(self, group: dict[str, Any], u: GroupUpdate) -> None:
        assert isinstance(u, DeviceUpdate)
        assert isinstance(self.search, ClimbOnDevice)
        for p in u.params:
            self._new_state(p, group)
        states = [self.state[p] for p in u.params]
        y = [self.training_weights(p, state) for p, state in zip(u.params, states, strict=True)]
        g = [grad.to(state["v"].dtype) for grad, state in zip(u.grads, states, strict=True)]
        if group["capturable"] or self.search.may_search:
            groups = zip(self.rates_of_groups, self.param_groups, strict=True)
            body = next(rates.body for rates, each in groups if each is group)
            if isinstance(body, MovingInterval):
                self.search.observe_body(states, y, g, body.ends)
        assert isinstance(self.point, PointOnDevice)
        averaging_step(u, states, y, g, group, self.search.searching, self.point)
        for p, state, wide in zip(u.params, states, y, strict=True):
            if "rest" in state:
                round_to(p, state["rest"], wide)

    def _begin_state(self, p: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        state["v"] = torch.zeros_like(p, dtype=wide_dtype(p))
        if wide_dtype(p) != p.dtype:
            state["rest"] = torch.zeros_like(p)  # what rounding has taken from it

    def _new_state(self, p: Tensor, group: dict[str, Any]) -> None:
        if "v" not in self.state[p]:
            self._begin_state(p, group)
            self._place_counters(p)

    def _place_counters(self, p: Tensor) -> None:
        state = self.state.get(p, {})
        if "v" not in state:
            return
        if self.on_device:
            for key in ("step", "k", *({"beta"} & state.keys())):
                state[key] = counter(p, on_device=True).fill_(state.get(key, 0))
            start = state.pop("start", p.detach())  # beside z, which is not needed before it
            state["z"] = state.get("z", start).to(wide_dtype(p), copy=True)

    def _state_of(self, p: Tensor, group: dict[str, Any], searching: bool) -> dict[str, Any]:
        """Return the state of a parameter that is updated now, counted."""
        state: dict[str, Any] = self.state[p]
        if "v" not in state:
            self._begin_state(p, group)
            state["step"] = 0
            if searching and group["follows"] and "u" in state:
                state["start"] = p.detach().clone()
        state["step"] += 1
        if not searching:
            if "z" not in state:
                state["z"] = self.training_weights(p, state).to(wide_dtype(p), copy=True)
                state["k"] = 0
            state["k"] += 1
        return state

    def _may_sleep(self) -> bool:
        return self.search.over

    def _standing_for(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {**group, "betas": (beta1, beta2**steps), "stands_for": steps}

    def _end_step(self, evidence: Any, gate: Any) -> None:
        stepped = any(p.grad is not None for group in self.param_groups for p in group["params"])
        if isinstance(self.search, ClimbOnDevice):
            if stepped:
                self._search_on_device(self.search, evidence, gate)
        elif stepped and not self.search.over:
            self.search.follow_body(self._shards("worth"))
            self.search.count()
            if evidence is not None and evidence.finite:
                self.search.observe(evidence.log_likelihood("mean"), self.copy_rates().log().tolist())
            if self.search.due:
                self._move()
        elif stepped and isinstance(self.point, GradientPoint):
            self.point.follow(self._shards("z"), self._shards("last"))
        super()._end_step(evidence, gate)

    def _shards(self, key: str) -> Shards:
        sharded = [rates for rates in self.rates_of_groups if rates.sharded]
        return Shards(self.state, (entry.param for rates in sharded for entry in rates.entries), key)

    def _search_on_device(self, search: ClimbOnDevice, evidence: Any, gate: Gate) -> None:
        searching = search.searching & gate.accepted
        if isinstance(self.point, PointOnDevice):
            averaging = ~search.searching & gate.accepted
            self.point.follow(self._shards("z"), self._shards("last"), averaging)
        search.follow_body(self._shards("worth"), searching)
        search.count(searching.to(gate.live.dtype))
        if evidence is not None:
            search.observe(
                evidence.log_likelihood("mean"), searching & evidence.observed() & evidence.finite()
            )
        if not (self.param_groups[0]["capturable"] or search.may_search):
            return
        moved = searching & search.due
        for i, (rates, group) in enumerate(zip(self.rates_of_groups, self.param_groups, strict=True)):
            if not group["follows"]:
                continue
            entries = [e for e in rates.entries if not e.of_copies and "z" in self.state.get(e.param, {})]
            before = [entry.rate.clone() for entry in entries]
            self.move_interval(i, body=search.ends() + log(group.get("scale", 1.0)), where=moved)
            for entry, rate in zip(entries, before, strict=True):
                if entry.param.requires_grad:
                    rewind_if_(entry.param, self.state[entry.param]["z"], entry.rate / rate, moved)

    def _raise_refused(self) -> None:
        try:
            super()._raise_refused()
        except RuntimeError:
            if isinstance(self.search, ClimbOnDevice):
                self.search.calls = self.search.read().made  # a refused step was none
            raise

    def _move(self) -> None:
        """Move the body's interval, and take back what features with a lower rate have moved too far."""
        for i, group in enumerate(self.param_groups):
            if not group["follows"]:
                continue
            moving = [p for p in group["params"] if "start" in self.state.get(p, {})]
            before = [self.rates(p) for p in moving]
            self.set_interval(i, body=self._interval_of(group))
            for p, rate in zip(moving, before, strict=True):
                rewind_(p, self.state[p]["start"], self.rates(p) / rate)
        if self.search.over:
            for state in self.state.values():
                state.pop("start", None)

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with that of the search and the mode that the weights in the model are in."""
        packed = super().state_dict()
        search = self.search.read() if isinstance(self.search, ClimbOnDevice) else self.search
        if search is not self.search:
            params = [p for group in self.param_groups for p in group["params"]]
            for i, state in packed["state"].items():
                packed["state"][i] = on_host(state, params[i], searching=not search.over)
        kept: dict[str, Any] = {"search": dataclasses.asdict(search), "point": self.point.read()}
        packed["param_groups"] = [{**group, **kept} for group in packed["param_groups"]]
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, before or after the weights of the model."""
        checkpoint.check_version(state_dict)
        if not all("search" in group and "point" in group for group in state_dict["param_groups"]):
            raise ValueError(
                "this is the state of another optimizer than Auto: build the one that it was saved from"
            )
        groups = [{"beta": group["betas"][0], **group} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})
        for group in self.param_groups:
            self.search = ClimbingSearch(**group.pop("search"))
            self.point = self._point(group.pop("point"))
        self._place_search()
        if isinstance(self.search, ClimbingSearch) and not self.search.over:
            for group in self.param_groups:
                for p in group["params"]:
                    self._unpack_start(p, self.state[p], group["follows"])

    def _unpack_start(self, p: Tensor, state: dict[str, Any], follows: bool) -> None:
        """Take the weights that were saved during the search for those of its start."""
        start = state.pop("z", None)
        state.pop("k", None)
        if start is not None and follows and "u" in state:
            state["start"] = start.to(p.dtype)
