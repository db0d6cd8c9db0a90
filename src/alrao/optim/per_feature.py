"""``PerFeature``: any optimizer of torch with a learning rate for every feature."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ..finite import in_range, keep_finite_
from ..rates import Rate, RateDistribution
from ..runtime.capturable import Kept, one_unless
from ..runtime.sharding import local, local_gradient, whole_state
from ..shortcuts import capturable_anywhere, step_inside
from ..trainable import Trainable
from ..warn import warn
from .base import AlraoOptimizer
from .groups import Entry, GroupRates
from .update import GroupUpdate

ELEMENTWISE = {
    torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW,
    torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop,
    torch.optim.SGD,
}  # fmt: skip
"""Optimizers that update every weight by itself; others are given the copies of the head one by one."""

SPAN = 1e3
"""The default interval of rates: from this factor below to this factor above the optimizer's default."""

COUNTS_NOTHING = {torch.optim.SGD, getattr(torch.optim, "Muon", torch.optim.SGD)}
"""Optimizers that need no option to be capturable, for they have no counter to read."""

NOT_PROPORTIONAL = {"ASGD", "Adafactor", "Rprop"}
"""Optimizers whose update is not proportional to the learning rate: they step at their default rate."""


@dataclass
class _InnerGroup(GroupRates):
    """The rates of a group, and the torch optimizer that steps for it."""

    inner: Optimizer = field(init=False)
    views: list[list[nn.Parameter]] = field(init=False)
    """What the optimizer is given of each entry: a view of it or, one by one, of its copies."""
    apart: bool = False  # whether it is given the copies of the head one by one

    def make_views(self, kind: type[Optimizer]) -> list[nn.Parameter]:
        """Make the views that an optimizer can step on, and return all of them."""
        self.apart = kind not in ELEMENTWISE
        if self.apart and self.sharded:
            raise ValueError(
                f"{kind.__name__} does not update every weight by itself, so it cannot step on shards of "
                "parameters: use one that does, such as alrao.PerFeature(torch.optim.NAdam, model), or train "
                "without shards, with DDP"
            )
        self.views = [
            [nn.Parameter(each, entry.param.requires_grad) for each in self._split(entry, entry.param)]
            for entry in self.entries
        ]
        return [q for view in self.views for q in view]

    def _split(self, entry: Entry, x: Any) -> Any:
        return local(x).detach() if self.apart and entry.of_copies else [local(x).detach()]

    def point_views(self, grads: dict[Tensor, Tensor]) -> None:
        """Point what the optimizer is given at the parameters and their gradients, where they have one."""
        for entry, view in zip(self.entries, self.views, strict=True):
            grad = grads.get(entry.param)
            of_views = [None] * len(view) if grad is None else self._split(entry, grad)
            for q, data, each in zip(view, self._split(entry, entry.param), of_views, strict=True):
                q.data, q.grad = data, each


class PerFeature(AlraoOptimizer):
    r"""Any optimizer of torch, with a learning rate for every feature.

    The optimizer steps at a base rate :math:`b`; its displacement :math:`\Delta_i` of feature :math:`i` is
    then scaled to the feature's rate :math:`\eta_i` (and the factor :math:`\gamma` in
    ``param_groups[…]["lr"]``, 1.0 unless a scheduler changes it):

    .. math:: \theta_i \leftarrow \theta_i + \gamma\, \frac{\eta_i}{b}\, \Delta_i

    For an optimizer whose update is proportional to its learning rate, as most are, weight decay included,
    this is that optimizer at the rate :math:`\eta_i`, whatever :math:`b`. With a number for ``lr`` and one
    copy it is the plain optimizer, to the bit. It needs a copy of the weights during the step.

    Args:
        optimizer: a class such as :class:`torch.optim.NAdam`. Optimizers that call the model themselves
            (LBFGS) or take sparse gradients (SparseAdam) are not supported.
        model: an :class:`Alrao` model, a plain network, or parameters, as in :class:`SGD`.
        lr: an interval ``(low, high)``, a distribution or a number, as in :class:`SGD`. By default from a
            thousandth to a thousand times the optimizer's default.
        params: parameters or parameter groups, as in :class:`SGD`; a group may have its own ``"optimizer"``,
            for example Muon for the matrices.
        base_lr: the base rate :math:`b`. By default the highest rate, which magnifies no rounding errors;
            for ASGD, Adafactor and Rprop, whose updates are not proportional to it, their default.
        generator: random generator for the rates; by default torch's global one.
        evidence: ``"mean"`` or ``"sum"`` of a batch's log-likelihoods, as in :class:`SGD`.
        process_group: the processes that train this model together; by default all.
        capturable: never read anything on the host, as in :class:`SGD`; the optimizer must be able to.
        **options: options of the optimizer: ``betas``, ``momentum``, ``weight_decay``, …

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.PerFeature(torch.optim.NAdam, model, lr=(1e-5, 1e-1), betas=(0.9, 0.99))
        >>> optimizer.rates(net[0].weight).shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        optimizer: type[Optimizer],
        model: Trainable | None = None,
        lr: Rate | None = None,
        *,
        params: Iterable[Any] | None = None,
        base_lr: float | None = None,
        generator: Generator | None = None,
        evidence: str = "mean",
        process_group: Any = None,
        capturable: bool = False,
        **options: Any,
    ) -> None:
        defaults = _options_of(optimizer, options)
        self._kind, self._options, self._given_lr, self._base_lr = optimizer, options, lr, base_lr
        super().__init__(
            model, _default_interval(optimizer) if lr is None else lr, defaults,
            params=params, generator=generator, maximize=options.get("maximize", False),
            foreach=options.get("foreach"), evidence=evidence, process_group=process_group,
            capturable=capturable,
        )  # fmt: skip

    makes_state_early = False

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch; the group may have an ``"optimizer"`` class."""
        kind = param_group.get("optimizer", self._kind)
        base_lr = param_group.get("base_lr", self._base_lr)
        if base_lr is not None and not 0 < base_lr < torch.inf:
            raise ValueError(f"base_lr must be a positive, finite learning rate, got {base_lr!r}")
        options = _options_of(kind, self._options if kind is self._kind else {})
        group = {**options, "optimizer": kind, "base_lr": base_lr, **param_group}
        group["capturable"] = group.get("capturable", False) or self.defaults["capturable"]
        if group["capturable"] and "capturable" not in _signature_of(kind) and kind not in COUNTS_NOTHING:
            raise ValueError(
                f"capturable=True is not supported: torch's {kind.__name__} has no such option, it reads its "
                "own counter on the host. Leave it out, or use another optimizer, such as torch.optim.NAdam"
            )
        if kind is not self._kind and self._given_lr is None:
            group.setdefault("lr", _default_interval(kind))
        super().add_param_group(group)

    def _begin_group(self, group: dict[str, Any], distribution: RateDistribution) -> GroupRates:
        plain, kind, base_lr = super()._begin_group(group, distribution), group["optimizer"], group["base_lr"]
        rates = _InnerGroup(distribution, entries=plain.entries, sharded=plain.sharded)
        highest = self._highest(rates)
        if base_lr is None:
            base_lr = _default_lr(kind) if kind.__name__ in NOT_PROPORTIONAL else highest
        group["optimizer"], group["base_lr"] = kind.__name__, float(base_lr)
        options = {**(self._options if kind is self._kind else {}), "lr": group["base_lr"]}
        if self.on_device and "capturable" in _signature_of(kind):
            options["capturable"] = True
        try:
            with capturable_anywhere(kind):
                rates.inner = kind([{"params": rates.make_views(kind)}], **options)
        except ValueError as error:
            if kind.__name__ != "Muon":
                raise
            raise ValueError(
                f"{error}. Give it the matrices, and another optimizer the rest: "
                'alrao.PerFeature(torch.optim.AdamW, model, params=[{"params": matrices, "optimizer": '
                'torch.optim.Muon}, {"params": rest}])'
            ) from None
        decay = float(group.get("weight_decay") or 0)
        if rates.constant is None and decay * highest > 1:
            warn(
                f"weight_decay={decay:g} at the highest rate, {highest:g}, overshoots zero: lower one of "
                "them, so that their product is at most 1"
            )
        return rates

    def _highest(self, rates: GroupRates) -> float:
        if rates.constant is not None:
            return rates.constant
        ends = rates.body.quantile(torch.ones(1, dtype=torch.float64, device="cpu"))
        return float(max(*ends, *rates.copies.grid(self.model.head.copies or 1))) or 1.0  # all frozen: any

    # The step.

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        raise AssertionError("the torch optimizer updates the parameters")

    def _step_group(self, rates: GroupRates, group: dict[str, Any], refused: Tensor | None) -> None:
        assert isinstance(rates, _InnerGroup)
        whole = [entry.param for entry in rates.entries if entry.param.grad is not None]
        usable, stopped = self.masked_gradients([local_gradient(p) for p in whole], refused)
        if not usable:
            return
        entries = [e._replace(param=local(e.param)) for e in rates.entries if e.param.grad is not None]
        live = None if stopped is None else one_unless(*stopped)
        constant, on_device, inner = rates.constant, live is not None, rates.inner
        scales = constant is None or on_device
        (settings,) = inner.param_groups
        own = [key for key in settings if key not in ("params", "lr", "param_names", "capturable")]
        settings.update({key: group[key] for key in own})
        if "capturable" in settings:
            settings["capturable"] = on_device
        settings["lr"] = group["base_lr"] if constant is None else constant
        if not scales:
            settings["lr"] *= float(group["lr"])
        before = [entry.param.clone() for entry in entries] if scales else []
        averages = self._averages(rates) if scales else []
        kept = Kept(inner) if on_device else None
        rates.point_views(dict(zip(whole, usable, strict=True)))
        with capturable_anywhere(type(inner)) if on_device else nullcontext():
            step_inside(inner)
        group.update({key: settings[key] for key in own})
        if live is not None:
            factor = group["lr"] * live / (group["base_lr"] if constant is None else constant)
            _scale(entries, before, factor, accepted=live > 0)
        elif scales:
            _scale(entries, before, float(group["lr"]) / group["base_lr"])
        for p, state, average, mu in averages:
            state["ax"].copy_(average + (p - average) * mu)
        if kept is not None and live is not None:
            kept.restore_unless(live > 0)
        self._collect(rates)

    def _averages(self, rates: _InnerGroup) -> list[tuple[Tensor, dict[str, Any], Tensor, Any]]:
        """Return ASGD's averages of the weights, which must be of the weights after the scaling."""
        found: list[tuple[Tensor, dict[str, Any], Tensor, Any]] = []
        if isinstance(rates.inner, torch.optim.ASGD):
            for (p, *_), (view, *_) in zip(rates.entries, rates.views, strict=True):
                if p.grad is not None:
                    state = rates.inner.state[view]
                    average = state["ax"].clone() if state else torch.zeros_like(view)
                    mu = state.get("mu", 1.0)
                    reads = not (self.on_device and isinstance(mu, Tensor))
                    found.append((local(p), state, average, float(mu) if reads else mu.clone()))
        return found

    # The torch optimizer's state is ours: saved and loaded with it.

    def _collect(self, rates: _InnerGroup) -> None:
        inner = rates.inner
        for (p, _, of_copies), view in zip(rates.entries, rates.views, strict=True):
            if any(q in inner.state for q in view):
                states = [whole_state(inner.state[q], p) for q in view]
                self.state[p]["inner"] = states if rates.apart and of_copies else states[0]
        rates.point_views({})

    def _spread(self) -> None:
        for rates in self.rates_of_groups:
            assert isinstance(rates, _InnerGroup)
            rates.inner.state.clear()
            for (p, _, of_copies), view in zip(rates.entries, rates.views, strict=True):
                state = self.state[p].get("inner") if p in self.state else None
                if state is not None:
                    states = state if rates.apart and of_copies else [local(state)]
                    rates.inner.state.update(zip(view, states, strict=True))

    def _replace_parameters(self, new: dict[Tensor, Tensor]) -> None:
        super()._replace_parameters(new)
        for rates in self.rates_of_groups:
            assert isinstance(rates, _InnerGroup)
            rates.inner.param_groups[0]["params"] = rates.make_views(type(rates.inner))
        self._spread()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`; one that does not fit raises an error and changes nothing."""
        groups = state_dict.get("param_groups", ())
        for group, saved in zip(self.param_groups, groups, strict=False):
            if "alrao" in state_dict and saved.get("optimizer") != group["optimizer"]:
                raise ValueError(
                    f"the state is of {saved.get('optimizer', 'another optimizer')}, this optimizer steps "
                    f"with {group['optimizer']}: build it with the same one"
                )
        super().load_state_dict(state_dict)
        self._spread()

    def _move_counters(self, p: Tensor) -> None:
        inner = self.state.get(p, {}).get("inner", {})
        for state in inner if isinstance(inner, list) else [inner]:
            for key in {"step", "mu_product"}.intersection(state):  # torch keeps them there
                if isinstance(state[key], Tensor):
                    state[key] = state[key].to(p.device if self.on_device else "cpu")


def _scale(entries: list[Entry], before: list[Tensor], factor: Any, accepted: Tensor | None = None) -> None:
    """Scale displacements to each feature's rate; weights of the body that are not finite stay."""
    for entry, was in zip(entries, before, strict=True):
        moved = (entry.param - was) * (entry.rate * factor) + was
        entry.param.copy_(moved if accepted is None else torch.where(accepted, moved, was))
    body = [(e.param, was) for e, was in zip(entries, before, strict=True) if not e.of_copies]
    if accepted is not None or not in_range([p for p, _ in body]):
        for p, was in body:
            keep_finite_(p, was)


def _signature_of(kind: type[Optimizer]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind.__init__).parameters)


def _default_lr(kind: type[Optimizer]) -> float:
    default = _signature_of(kind)["lr"].default
    if isinstance(default, int | float) and default > 0:
        return float(default)
    raise ValueError(f"{kind.__name__} has no default learning rate: pass an interval such as lr=(1e-5, 0.1)")


def _default_interval(kind: type[Optimizer]) -> tuple[float, float]:
    return _default_lr(kind) / SPAN, _default_lr(kind) * SPAN


def _options_of(kind: type[Optimizer], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an optimizer, given and default; raise for one that is not supported."""
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise TypeError(
            "PerFeature takes the class of an optimizer first, then the model: "
            f"alrao.PerFeature(torch.optim.NAdam, model), got {kind!r}"
        )
    name, problem = kind.__name__, ""
    closure = inspect.signature(kind.step).parameters.get("closure")
    if issubclass(kind, AlraoOptimizer):
        raise TypeError(f"{name} already has a rate for every feature: use alrao.{name}(model)")
    if closure is not None and closure.default is inspect.Parameter.empty:
        problem = (
            "it searches along one line for all weights, so its update has no rate for each feature. Use an "
            "optimizer whose step needs no closure"
        )
    elif issubclass(kind, torch.optim.SparseAdam):
        problem = "it takes only sparse gradients. Use alrao.SGD for those"
    if problem:
        raise TypeError(f"{name} is not supported: {problem}")
    if options.get("differentiable"):
        raise ValueError("differentiable=True is not supported by alrao's step: leave it out")
    probe = kind([nn.Parameter(torch.zeros(2, 2, device="cpu"))], **{**options, "lr": 1.0})
    return {key: value for key, value in probe.defaults.items() if key != "lr"}
