"""``Rated``: a learning rate of its own for every feature, on any optimizer of torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ..heads.mixture import sane
from ..rates import Rate
from ..warn import warn
from .optimizer import AlraoOptimizer
from .update import in_range

__all__ = ["Rated"]

SPAN = 1e3
"""The interval of rates, unless one is given: so many times below and above the optimizer's own default."""

ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in (
        "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    )
)  # fmt: skip
"""Those that move every weight by itself; the others see the copies of the output layer one by one."""

NOT_PROPORTIONAL = {"ASGD", "Adafactor", "Rprop"}
"""Those whose update is not the learning rate times something: they step at their own default rate."""


class Rated(AlraoOptimizer):
    r"""Any optimizer of torch, with a learning rate of its own for every feature.

    The optimizer steps at a base rate :math:`b`; its displacement :math:`\Delta_i` of feature :math:`i` is
    then scaled to the drawn rate :math:`\eta_i` (and the factor :math:`\gamma` in
    ``param_groups[…]["lr"]``, 1.0 unless a scheduler moves it):

    .. math:: \theta_i \leftarrow \theta_i + \gamma\, \frac{\eta_i}{b}\, \Delta_i

    For an optimizer whose update is proportional to its learning rate, as most are, weight decay included,
    this is that optimizer at the rate :math:`\eta_i`, whatever :math:`b`. With a number for ``lr`` and one
    copy it is the plain optimizer, to the bit. It costs a copy of the weights during the step.

    Args:
        optimizer: a class such as :class:`torch.optim.NAdam`. Not one that calls the model itself (LBFGS) or
            takes sparse gradients (SparseAdam).
        model: an :class:`Alrao` model, or what DDP or ``torch.compile`` made of it.
        lr: an interval ``(low, high)``, a law or a number, as in :class:`SGD`. By default from a thousandth
            to a thousand times the optimizer's own default.
        params: parameters or parameter groups, as in :class:`SGD`; a group may have an ``"optimizer"`` of its
            own (Muon for the matrices, say).
        base_lr: the base rate :math:`b`. By default the highest rate drawn, so that no rounding is magnified;
            for ASGD, Adafactor and Rprop, whose updates are not proportional to it, their own default.
        generator: where the rates are drawn from; by default torch's own.
        process_group: the processes that train this model together, for the posterior; by default all.
        **options: go to the optimizer: ``betas``, ``momentum``, ``weight_decay``, …

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.Rated(torch.optim.NAdam, model, lr=(1e-5, 1e-1), betas=(0.9, 0.99))
        >>> optimizer.rates(net[0].weight).shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        optimizer: type[Optimizer],
        model: nn.Module,
        lr: Rate | None = None,
        *,
        params: Iterable[Any] | None = None,
        base_lr: float | None = None,
        generator: Generator | None = None,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        defaults = _defaults(optimizer, options)
        self._kind, self._options, self._lr, self._base_lr = optimizer, options, lr, base_lr
        self._inner: list[Optimizer] = []  # one for each group
        self._views: list[list[tuple[Tensor, list[nn.Parameter] | None]]] = []
        super().__init__(
            model, _interval(optimizer) if lr is None else lr, defaults,
            params=params, generator=generator, maximize=options.get("maximize", False),
            foreach=options.get("foreach"), process_group=process_group,
        )  # fmt: skip

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch; the group may have an ``"optimizer"`` class."""
        group = dict(param_group)
        kind = group.pop("optimizer", self._kind)
        base_lr = group.pop("base_lr", self._base_lr)
        if base_lr is not None and not 0 < base_lr < torch.inf:
            raise ValueError(f"base_lr must be a positive, finite learning rate, got {base_lr!r}")
        options = self._options if kind is self._kind else {}
        group = {**_defaults(kind, options), **group}
        if kind is not self._kind and self._lr is None:
            group.setdefault("lr", _interval(kind))
        super().add_param_group(group)
        group = self.param_groups[-1]
        if base_lr is None:
            base_lr = _default_lr(kind) if kind.__name__ in NOT_PROPORTIONAL else None
        group["optimizer"] = kind.__name__
        group["base_lr"] = float(self._highest(group) if base_lr is None else base_lr)
        apart = kind not in ELEMENTWISE
        views = [(p, _copies(p) if apart and p in self._of_copies else None) for p in group["params"]]
        seen = [q for p, copies in views for q in copies or [p]]
        try:
            inner = kind([{"params": seen}], **{**options, "lr": group["base_lr"]})
        except ValueError as error:
            self.param_groups.pop()
            self._laws.pop()
            for p in group["params"]:
                self.state.pop(p, None)
            if kind.__name__ != "Muon":
                raise
            raise ValueError(
                f"{error}. Give it the matrices, and another optimizer the rest: "
                'alrao.Rated(torch.optim.AdamW, model, params=[{"params": matrices, "optimizer": '
                'torch.optim.Muon}, {"params": rest}])'
            ) from None
        self._inner.append(inner)
        self._views.append(views)
        decay = group.get("weight_decay") or 0
        if group["constant"] is None and float(decay) * self._highest(group) > 1:
            warn(
                f"weight_decay={float(decay):g} at the highest rate, {self._highest(group):g}, takes away "
                "more than there is: lower one of them, so that their product is at most 1"
            )

    def _highest(self, group: dict[str, Any]) -> float:
        if group["constant"] is not None:
            return float(group["constant"])
        grid = self._laws[-1].grid(self.model.head.copies)
        rates = [grid, *(self.state[p]["rate"] for p in group["params"])]
        return max(float(rate.max()) for rate in rates if rate.numel()) or 1.0  # all frozen: any will do

    # The step.

    def _step_group(self, index: int, group: dict[str, Any], sound: bool) -> None:
        plan = [(p, rate, in_body) for p, rate, in_body in self._planned(index, group) if p.grad is not None]
        if not plan:
            return
        grads: list[Tensor] = [p.grad for p, _, _ in plan if p.grad is not None]
        params = [p for p, _, _ in plan]
        of_body = [grad for grad, (_, _, in_body) in zip(grads, plan, strict=True) if in_body]
        masked = not sound or (bool(of_body) and not in_range(of_body))
        inner, (settings,) = self._inner[index], self._inner[index].param_groups
        own = [key for key in settings if key not in ("params", "lr", "param_names")]
        settings.update({key: group[key] for key in own})
        constant = group["constant"]
        settings["lr"] = group["base_lr"] if constant is None else constant * float(group["lr"])
        was = [] if constant is not None else [p.clone() for p in params]
        averages = self._averages(inner, params) if constant is None else []
        try:
            if masked:
                for p, grad in zip(params, grads, strict=True):
                    p.grad = torch.where(sane(grad), grad, 0)
            self._show_copies(index)
            inner.step()
        finally:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
        group.update({key: settings[key] for key in own})
        if constant is None:
            self._scale(plan, was, float(group["lr"]) / group["base_lr"])
            for p, average, mu in averages:
                inner.state[p]["ax"].copy_(average + (p - average) * mu)
        self._collect(index)

    def _scale(self, plan: list[tuple[Tensor, Any, bool]], was: list[Tensor], factor: float) -> None:
        """Scale what moved to each feature's rate; what is not finite any more, in the body, stays."""
        for (p, rate, _), before in zip(plan, was, strict=True):
            p.copy_((p - before) * (rate * factor) + before)
        body = [(p, before) for (p, _, in_body), before in zip(plan, was, strict=True) if in_body]
        if body and not in_range([p for p, _ in body]):
            for p, before in body:
                p.copy_(torch.where(p.isfinite(), p, before))

    def _averages(self, inner: Optimizer, params: list[Tensor]) -> list[tuple[Tensor, Tensor, float]]:
        """ASGD keeps an average of the weights, which must be of those after the scaling."""
        if not isinstance(inner, torch.optim.ASGD):
            return []
        states = [(p, inner.state.get(p) or {"ax": torch.zeros_like(p), "mu": 1.0}) for p in params]
        return [(p, state["ax"].clone(), float(state["mu"])) for p, state in states]

    def _show_copies(self, index: int) -> None:
        """Let the copies that the optimizer sees one by one be where the stacked ones are now."""
        for p, copies in self._views[index]:
            for j, copy in enumerate(copies or ()):
                copy.data = p.detach()[j]
                copy.grad = None if p.grad is None else p.grad[j]

    # The optimizer's state, which is ours: seen, saved and loaded with it.

    def _collect(self, index: int) -> None:
        inner = self._inner[index]
        for p, copies in self._views[index]:
            if copies is None:
                if p in inner.state:
                    self.state[p]["inner"] = inner.state[p]
            elif any(q in inner.state for q in copies):
                self.state[p]["inner"] = [inner.state[q] for q in copies]
            for q in copies or ():
                q.grad = None

    def _spread(self) -> None:
        for inner, views in zip(self._inner, self._views, strict=True):
            inner.state.clear()
            for p, copies in views:
                state = self.state[p].get("inner") if p in self.state else None
                if state is not None:
                    pairs = [(p, state)] if copies is None else zip(copies, state, strict=True)
                    inner.state.update(pairs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that :meth:`state_dict` gave. Refused, with nothing changed, if it does not fit."""
        groups = state_dict.get("param_groups", ())
        for group, saved in zip(self.param_groups, groups, strict=False):
            if "alrao" in state_dict and saved.get("optimizer") != group["optimizer"]:
                raise ValueError(
                    f"the state is that of {saved.get('optimizer', 'another optimizer')}, this is "
                    f"{group['optimizer']}: build it with the same optimizer"
                )
        super().load_state_dict(state_dict)
        self._spread()

    def _check_shapes(self, params: dict[int, Tensor], state: dict[int, dict[str, Any]]) -> None:
        super()._check_shapes(params, state)
        for i, p in params.items():
            inner = state.get(i, {}).get("inner", {})
            of_copies = isinstance(inner, list)
            if of_copies and len(inner) != len(p):
                raise ValueError(f"the state has {len(inner)} copies, not {len(p)}: it is another model's")
            shape = p.shape[1:] if of_copies else p.shape
            for value in (value for one in (inner if of_copies else [inner]) for value in one.values()):
                if isinstance(value, Tensor) and value.ndim and not _broadcasts(value.shape, shape):
                    raise ValueError(
                        f"a state of shape {tuple(value.shape)} does not fit a parameter of shape "
                        f"{tuple(p.shape)}: the state belongs to another model"
                    )


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    # Factored states have the length 1 along the axis that they sum over.
    return len(shape) == len(to) and all(n in (1, m) for n, m in zip(shape, to, strict=True))


def _copies(p: Tensor) -> list[nn.Parameter]:
    return [nn.Parameter(copy, p.requires_grad) for copy in p.detach()]


def _parameters(kind: type[Optimizer]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind.__init__).parameters)


def _default_lr(kind: type[Optimizer]) -> float:
    default = _parameters(kind)["lr"].default
    if isinstance(default, int | float) and default > 0:
        return float(default)
    raise ValueError(f"{kind.__name__} has no default learning rate: pass an interval such as lr=(1e-5, 0.1)")


def _interval(kind: type[Optimizer]) -> tuple[float, float]:
    return _default_lr(kind) / SPAN, _default_lr(kind) * SPAN


def _defaults(kind: type[Optimizer], options: dict[str, Any]) -> dict[str, Any]:
    """The options of an optimizer, those given and the others; what cannot be rated is refused."""
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise TypeError(
            "Rated takes the class of an optimizer first, then the model: "
            f"alrao.Rated(torch.optim.NAdam, model), got {kind!r}"
        )
    name = kind.__name__
    if issubclass(kind, AlraoOptimizer):
        raise TypeError(f"{name} has a rate for every feature already: use alrao.{name}(model)")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{name} evaluates the loss several times in a step and searches along one line for all weights: "
            "its update has no rate for each feature"
        )
    if issubclass(kind, torch.optim.SparseAdam):
        raise TypeError(f"{name} takes sparse gradients only: use alrao.SGD, which takes them")
    known = _parameters(kind)
    if "lr" not in known:
        raise TypeError(f"{name} has no learning rate, lr, that could be drawn for each feature")
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    for option in options:
        if option not in known and not open_ended:
            close = get_close_matches(option, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(list(known)[2:])}"
            raise TypeError(f"{name} has no option {option!r}: {hint}")
    for flag in ("capturable", "differentiable"):
        if options.get(flag):
            raise ValueError(f"{flag}=True is not supported: the step is more than {name}'s. Leave it out")
    probe = kind([nn.Parameter(torch.zeros(2, 2, device="cpu"))], **{**options, "lr": 1.0})
    return {key: value for key, value in probe.defaults.items() if key != "lr"}
