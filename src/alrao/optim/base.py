"""The base of the optimizers: parameter groups and their rates, the step, checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from math import inf
from typing import Any, TypedDict

import torch
from torch import Generator, Tensor
from torch import distributed as dist
from torch.optim import Optimizer

from .. import evidence as reports
from ..finite import mask_gradients, mask_on_device, zero_unusable
from ..rates import Interval, Rate, RateDistribution, as_distribution, describe, rebuild, scaled
from ..runtime import sharding
from ..runtime.capturable import Refusals, counter, one_unless, widest
from ..runtime.sharding import is_shard, local
from ..runtime.sleeping import Sleep
from ..shortcuts import mark_only_if_watched, profiler_is_on
from ..trainable import Trainable, joined, trained
from ..warn import places_lost, warn
from . import checkpoint, processes
from .groups import HIGHEST, FactorWatch, FeaturePlaces, GroupRates, warn_of_copies
from .update import GroupUpdate, rows_of

CPU = torch.device("cpu")
"""To compare with: the type of a device is a string, which torch makes at each look."""


class Options(TypedDict, total=False):
    """The keyword arguments that all optimizers have; :class:`alrao.SGD` describes them."""

    params: Iterable[Any] | None
    generator: Generator | None
    maximize: bool
    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None
    evidence: str
    process_group: Any
    sleep: bool


class AlraoOptimizer(Optimizer):
    """Base class of the optimizers: every feature of the model has its own learning rate.

    ``param_groups[…]["lr"]`` is a factor on all rates of a group, 1.0 at the start, for schedulers to change.
    The rates follow from the distribution that the group was built with, its intervals (:meth:`interval`,
    :meth:`set_interval`), and the place of each feature in them, which is drawn once and saved in the state.
    """

    model: Any
    """What is trained: an :class:`Alrao` model, or a view of plain networks."""

    rates_of_groups: list[GroupRates]
    """The rates of each parameter group."""

    _wide = frozenset({"u"})
    """State that keeps its type when it is loaded, whatever the type of the parameter."""

    _after_refusal = "That step changed nothing"
    """What has become of a step whose loss was refused on a device."""

    _small = 0
    """Most weights of a group that are updated all at once by default."""

    makes_state_early = True
    """Whether ``capturable`` makes all state with the optimizer, so that a compiled step is one graph."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Tools read torch's signature, with ``params`` first; LightningCLI passes all others by name.
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            init = signature(cls.__init__)
            own = {name: each for name, each in init.parameters.items() if name != "params"}
            if own.pop("kwargs", None) is not None:
                of_all = signature(AlraoOptimizer.__init__).parameters
                own |= {name: of_all[name] for name in Options.__annotations__ if name != "params"}
            named = [each.replace(name="params") if each.name == "model" else each for each in own.values()]
            vars(cls)["__init__"].__signature__ = init.replace(parameters=named)

    def __init__(
        self,
        model: Trainable | None,
        lr: Rate,
        defaults: dict[str, Any],
        *,
        params: Iterable[Any] | None = None,
        generator: Generator | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        evidence: str = "mean",
        process_group: Any = None,
        sleep: bool | None = False,
    ) -> None:
        no_derivative = "the update of the posterior has no derivative"
        no_kernel = "there is no fused kernel with a rate for each feature"
        flags = ("differentiable", differentiable, no_derivative), ("fused", fused, no_kernel)
        for name, flag, reason in flags:
            if flag:
                raise ValueError(f"{name}=True is not supported: {reason}. Leave it out")
        if evidence not in reports.CHOICES:
            raise ValueError(f"evidence must be 'mean' or 'sum', got {evidence!r}")
        self.model, params = trained(model, params, switches=hasattr(self, "eval"))
        self._distribution = as_distribution(lr)  # before anything changes
        self._find_sharded_modules()
        self.process_group = process_group
        # Not known yet: other processes may train another model.
        self._alike = capturable and processes.count(process_group) < 2
        head = self.model.head
        self._factors: FactorWatch | None = None if capturable else FactorWatch()
        self._sleep = Sleep(head, sleep, on_host=head.evidence.is_cpu and not capturable)
        self._seed = processes.common_seed(generator, process_group)
        processes.check_copies(process_group, head.copies, self.model.parameters())
        if capturable:
            reports.stay_on_device(head.evidence)
            self.model.notice_step()  # now: a compiled step would be compiled again
        self._device = head.evidence.device
        self._refusals = Refusals(self._device)
        self._places = FeaturePlaces(self.model.net)
        self._names = sharding.names_of_parameters(self.model)
        self._parameters_seen = self._parameters_in_place()
        self.head_parameters = set(head.parameters())
        self.rates_of_groups = []
        shared = {"maximize": maximize, "foreach": foreach, "evidence": evidence, "capturable": capturable}
        super().__init__(
            self.model.parameters() if params is None else params, {"lr": 1.0, **defaults, **shared}
        )
        if not (capturable and self.makes_state_early):
            self.state = checkpoint.Unstepped(dict, self.state)
        if head.copies and all(self.head_parameters.isdisjoint(g["params"]) for g in self.param_groups):
            raise ValueError(
                "params has no parameter of the head: add model.head.parameters() to one of the groups"
            )

    @property
    def sleeps(self) -> bool:
        """Whether copies of the head may fall asleep."""
        return self._sleep.wanted

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
        later = bool(strangers) and set(self.model.parameters()).issuperset(strangers)  # new layers
        if strangers and self.model.modules and not later:
            raise ValueError(
                f"{len(strangers)} parameters, the first of shape {tuple(strangers[0].shape)}, are not "
                "the model's: convert all modules as one, Alrao(nn.ModuleList([encoder, decoder]), "
                "output=…), or pass all plain networks, [encoder, decoder]"
            )
        if strangers and not later:  # without a network, there may be more, as in torch
            more, _ = joined(strangers)
            self.model.net.extend(more)
        if strangers:
            self._names = sharding.names_of_parameters(self.model)
            self._places.add(self.model.net)
        if any(p.requires_grad for p in self.head_parameters.intersection(group["params"])):
            warn_of_copies(distribution, self.model.head.copies)
        if group["capturable"] and distribution.redrawn:
            raise ValueError("capturable=True is not supported by Redrawn, whose rates are drawn on the host")
        rates = GroupRates(distribution)
        group |= {"distribution": describe(distribution), "seed": self._seed, HIGHEST: 0.0}
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

    def _find_sharded_modules(self) -> None:
        self.sharded_modules = sharding.sharded_modules(self.model)  # by fully_shard
        for module in self.sharded_modules:
            module.reshard()  # the parameters are gathered after an evaluation
        if self.sharded_modules:
            self.model.head.expect_shards()

    def _adopt_shards(self) -> None:
        """Train the shards that have taken the place of parameters since the optimizer was built."""
        new = sharding.replaced(self.model, self._names, self.param_groups)
        if new:
            self._find_sharded_modules()
            self._replace_parameters(new)
        self._parameters_seen = self._parameters_in_place()

    def _parameters_in_place(self) -> list[tuple[dict[str, Any], str, Tensor | None]]:
        """Return the parameters with their places in the model; none if torch changes them for a pass."""
        modules = [] if self.sharded_modules else list(self.model.net.modules())
        modules = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]  # made new at each look
        return [(m._parameters, name, p) for m in modules for name, p in m._parameters.items()]

    def _has_its_parameters(self) -> bool:
        """Return whether the model's parameters are the same objects as at the last look."""
        seen = self._parameters_seen
        return torch.compiler.is_compiling() or all(own.get(name) is p for own, name, p in seen)

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

    def compute_rates(self) -> None:
        """Compute the rates of all groups again, from their distributions and the places of the features."""
        for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
            self._compute(rates, group)

    def rates(self, parameter: Tensor) -> Tensor:
        """Return the rates of a parameter, without the factor ``lr``; they broadcast to the parameter.

        Under :class:`Auto` these, :meth:`copy_rates` and :meth:`interval` are those found, before they fall.
        """
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
        self._compute(self.rates_of_groups[group], self.param_groups[group])

    # The step.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the evidence gathered with them."""
        if self.on_device:
            self._raise_refused()
        if set_to_none and not profiler_is_on():
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
        else:
            super().zero_grad(set_to_none)
        self.model.head.evidence.grad = None

    profile_hook_step = staticmethod(mark_only_if_watched)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, then the posterior, with the evidence of the outputs before the update.

        Raises:
            RuntimeError: the loss was not a negative log-likelihood; nothing has changed then. Where numbers
                are not read on the host (``capturable``, or another device than the CPU), it is raised
                later: by the next ``zero_grad`` or ``step`` that knows.
        """
        loss = None
        if closure is not None:
            self.model.place_weights()
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling() and not self._can_be_compiled():
            self._step_uncompiled()
        else:
            self._step_without_grad()
        return loss

    def _can_be_compiled(self) -> bool:
        """Return whether a step reads nothing on the host, so that it can be part of compiled code."""
        return bool(self.defaults["capturable"])  # the compiler shows True in the groups, whatever is there

    def _step_without_grad(self) -> None:
        records = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # no_grad() takes 4 µs longer, at each step
        try:
            self._step()
        finally:
            torch.set_grad_enabled(records)

    # Compiled code would keep numbers that are read on the host as constants.
    _step_uncompiled = torch.compiler.disable(_step_without_grad)

    def _step(self) -> None:
        head = self.model.head
        if head.evidence.device != self._device:  # of a model that has been moved
            self._device = head.evidence.device
            self._refusals = Refusals(self._device)
            self.load_state_dict(self.state_dict())
        on_device = self.on_device
        if on_device:
            self._raise_refused()
        if not (self._alike and self._has_its_parameters()):
            self._adopt_shards()
        if not self._alike:
            processes.check_alike(self.process_group, self._seed, head.copies, self.param_groups)
            self._alike = True
        evidence, refused = self._read_evidence(on_device)
        self._refuse_sparse()
        if type(self.state) is checkpoint.Unstepped:
            self.state = defaultdict(dict, self.state)
        if refused is not None:
            self._refusals.note(refused)
        if self._factors is not None and not self._factors.look(self.param_groups):
            self._factors = None
        if head.part is not None and evidence is not None:
            self._sleep.notice(evidence.scores)
        self._begin_step(on_device)
        for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
            if group["redraws"] is not None:
                group["redraws"] += 1
                self._draw_places(rates, group)
                self._compute(rates, group)
            self._step_group(rates, group, refused)
        if evidence is not None:
            self._update_posterior(evidence, refused)
        self._end_step(on_device)
        head.evidence.grad = None
        self.model.finite_statistics.restore(reads=not on_device)
        self.model.notice_step()

    def _begin_step(self, on_device: bool) -> None:
        """Prepare the parameters for an update, in a subclass that needs to; nothing can refuse it now."""

    def _end_step(self, on_device: bool) -> None:
        """Finish the step once parameters and posterior are updated, in a subclass that needs to."""

    # The evidence.

    def _read_evidence(self, on_device: bool) -> tuple[reports.Evidence | None, Tensor | None]:
        """Return the evidence, if there is any; and on a device whether the loss is refused, else None."""
        head = self.model.head
        gradient = head.evidence.grad
        if head.copies and dist.is_available() and dist.is_initialized():
            gradient = processes.add_up(gradient, head.evidence, self.process_group)
        if gradient is None:
            if head.copies:  # not a plain network
                self._warn_without_evidence()
            return None, torch.zeros((), dtype=torch.bool, device=self._device) if on_device else None
        evidence = reports.read(gradient, head.copies, on_device=on_device)
        refused = evidence.refused(maximize=self.param_groups[0]["maximize"])
        if on_device:
            return evidence, refused
        if refused:
            raise RuntimeError(f"the loss is {self._no_likelihood()}. Nothing has been changed")
        return evidence if evidence.weight != 0 else None, None

    def _update_posterior(self, evidence: reports.Evidence, refused: Tensor | None) -> None:
        head = self.model.head
        log_likelihood = evidence.log_likelihood(self.param_groups[0]["evidence"])
        if refused is not None:
            head.averaging.update_on_device(log_likelihood.masked_fill(refused, -inf), head.underflow)
        elif self._sleep.wanted:
            self._sleep.observe(log_likelihood, self.copy_rates, allowed=self._may_sleep())
            entries = (entry for rates in self.rates_of_groups for entry in rates.entries)
            self._sleep.prepare_looks(self.state, entries)
        else:
            head.averaging.update(log_likelihood, head.underflow)

    def _may_sleep(self) -> bool:
        """Return whether copies may sleep now, in an optimizer that does not allow it always."""
        return True

    def _raise_refused(self) -> None:
        """Raise if the news has arrived that the loss of an earlier step was refused, on a device."""
        if not torch.compiler.is_compiling() and self._refusals.arrived():
            raise RuntimeError(
                f"the loss of an earlier step was {self._no_likelihood()}. {self._after_refusal}"
            )

    def _no_likelihood(self) -> str:
        lost = places_lost()
        where = f". The output last became a plain tensor in {lost[-1]}" if lost else ""
        return (
            "not a negative log-likelihood, linear in the model's output, so the copies cannot be trained "
            f"with it: {self.model.head.remedy}; or train the plain network with any loss, alrao.Auto(net)"
            f"{where}"
        )

    def _warn_without_evidence(self) -> None:
        """Warn if there are gradients, but no evidence of where they come from."""
        with_grad = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads: list[Tensor] = [p.grad for p in with_grad if p in self.head_parameters]
        if any(bool(local(grad).any()) for grad in grads):
            warn(
                "the copies of the head have gradients but no evidence, so the posterior stays as it is: "
                "compute the gradients with loss.backward(), for all leaves, before each step"
            )
        elif with_grad and not grads and any(p.requires_grad for p in self.head_parameters):
            warn(
                "the network has gradients, but the copies of its head have none: check that "
                "Alrao(net, output=…) names the right layer, and that the loss is computed from its output"
            )

    # The update of a group.

    def _step_group(self, rates: GroupRates, group: dict[str, Any], refused: Tensor | None) -> None:
        awake = self.model.head.awake
        moving, found, rows = [], [], []
        for entry in rates.entries:
            p, rate, of_copies = entry
            grad = sharding.local_gradient(p) if rates.sharded else p.grad
            if grad is not None and grad.is_sparse:
                grad = grad if refused is None else grad * one_unless(refused)
                self._update_sparse(group, p, -grad if group["maximize"] else grad, rate)
            elif grad is not None:
                moving.append(entry)
                rows.append((awake,) if of_copies and awake is not None else ())
                found.append(rows_of(grad, rows[-1], p) if rows[-1] else grad)
        grads, stopped = self.masked_gradients(found, refused)
        if not grads:
            return
        params, of_features = [entry.param for entry in moving], [entry.rate for entry in moving]
        factor = group["lr"] if refused is not None else float(group["lr"])
        states = self._states_of(params, group)
        update = GroupUpdate(params, grads, of_features, states, params, rates.constant, factor, stopped)
        self._count(update, group)
        if rates.sharded:
            update = update.of_this_process()
        if any(rows):
            update = update.part(rows, grads)
        for each in self._divided(update, group, rates.size):
            self._apply(group, each)
        if any(rows) and self.model.head.part != awake:
            self._train_asleep(rates, group, factor)

    def _states_of(self, params: list[Tensor], group: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what is kept of parameters that are updated now, made where it is new."""
        for p in params:
            self._new_state(p, group)
        return [self.state.get(p, {}) for p in params]

    def _count(self, update: GroupUpdate, group: dict[str, Any]) -> None:
        """Count the step of parameters that are updated now."""
        update.count()

    def masked_gradients(self, grads: list[Tensor], refused: Tensor | None) -> tuple[list[Tensor], Any]:
        """Return gradients with 0 where they are unusable, or none; on a device, also masks of what is 0."""
        if refused is None or not grads:
            return mask_gradients(grads), None
        return mask_on_device(grads, refused)

    def _divided(self, update: GroupUpdate, group: dict[str, Any], weights: int) -> Iterator[GroupUpdate]:
        """Return an update in the parts in which it is applied: one, unless that needs much memory."""
        on_device, at_once = update.stopped is not None, group["foreach"]
        if at_once is None:
            cheap = weights <= self._small or self._foreach_is_cheap(group)
            at_once = on_device or cheap  # as in torch: fewer launches
        if at_once:
            yield update
            return
        for of_one in update.one_by_one():
            if not on_device and self._can_be_cut(of_one.states[0]):
                yield from of_one.in_blocks()
            else:
                yield of_one

    def _train_asleep(self, rates: GroupRates, group: dict[str, Any], factor: float) -> None:
        """Train the sleeping copies that were looked at: one step stands for all since the last look."""
        head, copies = self.model.head, range(self.model.head.copies)
        looked_at = [j for j in copies[head.part] if j not in copies[head.awake]]
        for p, rate, of_copies in rates.entries:
            for j in looked_at if of_copies and p.grad is not None else ():
                rows, stands_for = (slice(j, j + 1),), self._sleep.since[j]
                state = dict(self.state.get(p, {}))
                if "step" in state:
                    state["step"] = state["step"] / stands_for
                rate_then = rate * stands_for if isinstance(rate, Tensor) else rate
                update = GroupUpdate([p], [], [rate_then], [state], [p], rates.constant, factor)
                grads = [zero_unusable(rows_of(p.grad, rows, p))]
                self._apply(self._hyperparams_for_skipped(group, stands_for), update.part([rows], grads))

    def _apply(self, group: dict[str, Any], update: GroupUpdate) -> None:
        if group["maximize"]:
            update.grads = list(torch._foreach_neg(update.grads))
        self._update(group, update)

    @abstractmethod
    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        """Apply one update to some of the group's parameters."""

    def _can_be_cut(self, state: dict[str, Any]) -> bool:
        """Return whether parts of a parameter can be updated separately."""
        return True

    def _hyperparams_for_skipped(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        """Return the settings with which one step stands for several: averages forget as much."""
        return group

    def _foreach_is_cheap(self, group: dict[str, Any]) -> bool:
        """Return whether an update of all parameters at once needs too little memory to matter."""
        return False

    def _takes_sparse(self, group: dict[str, Any]) -> bool:
        return False

    def _update_sparse(self, group: dict[str, Any], param: Tensor, grad: Tensor, rate: Any) -> None:
        """Update a parameter with a sparse gradient, in an optimizer that takes them."""

    def _refuse_sparse(self) -> None:
        for group in self.param_groups:
            sparse = any(p.grad is not None and p.grad.is_sparse for p in group["params"])
            if sparse and not self._takes_sparse(group):
                raise RuntimeError(
                    "sparse gradients need alrao.SGD without momentum and weight decay, which would make "
                    "them dense: use that, or build the embedding with sparse=False"
                )

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state as in torch, with the places of the features and the intervals."""
        self._adopt_shards()
        packed = {**super().state_dict(), checkpoint.KEY: checkpoint.VERSION}
        for i, group in enumerate(packed["param_groups"]):
            group["interval"], group["copies_interval"] = self.interval(i), self.interval(i, copies=True)
        if type(self.state) is not checkpoint.Unstepped:
            for i in (i for group in packed["param_groups"] for i in group["params"]):
                if not packed["state"].get(i):  # torch's distributed checkpoints would miss it
                    packed["state"][i] = {checkpoint.KEY: checkpoint.VERSION}
        return self._sleep.packed_into(packed)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`; one that does not fit raises an error and changes nothing."""
        checkpoint.check_version(state_dict)
        self._adopt_shards()
        params = [p for group in self.param_groups for p in group["params"]]
        indices = [i for group in state_dict["param_groups"] for i in group["params"]]
        if len(indices) == len(params):
            checkpoint.check_shapes(dict(zip(indices, params, strict=True)), state_dict["state"])
        distributions = [  # the optimizer's own, which may be a user's, where they are equal
            own.drawn if describe(own.drawn) == saved["distribution"] else rebuild(saved["distribution"])
            for own, saved in zip(self.rates_of_groups, state_dict["param_groups"], strict=False)
        ]
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        checkpoint.settle(self.param_groups, before)
        for p, i in zip(params, indices, strict=True):
            of_param = state_dict["state"].get(i, {})
            for key in self._wide.intersection(of_param):  # torch has rounded it to the parameter's type
                self.state[p][key] = of_param[key].to(p.device, copy=True)
            self._move_counters(p)
            self.state[p].pop(checkpoint.KEY, None)
            if is_shard(p):
                self.state[p] = sharding.shard_state(self.state[p], p)
        for rates, group, drawn in zip(self.rates_of_groups, self.param_groups, distributions, strict=True):
            rates.draw_from(drawn)
            rates.move(group.pop("interval"), group.pop("copies_interval"))
        self.compute_rates()
        self._seed, self._alike = self.param_groups[0]["seed"], False
        self._factors = None if self.param_groups[0]["capturable"] else FactorWatch()
        self._sleep.unpack(self.param_groups)

    def _move_counters(self, p: Tensor) -> None:
        """Move the count of a parameter's steps to where this optimizer counts."""
        step = self.state.get(p, {}).get("step")
        if isinstance(step, Tensor):
            self.state[p]["step"] = counter(p, self.on_device).copy_(step)

    def __getstate__(self) -> dict[str, Any]:
        # Schedulers put a wrapped step, bound to this very object, into it; hooks stay behind, as in torch.
        left = {"process_group", "step", "_refusals"}
        own = self.__dict__.items()
        return {key: value for key, value in own if key not in left and not key.endswith("_hooks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)
        if "_device" in state:  # a copy or a pickle, not a loaded state
            self._refusals = Refusals(self._device)


def check_at_least_0(**values: float) -> None:
    """Raise a ValueError for a negative value."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value!r}")
