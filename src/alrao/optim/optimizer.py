"""What the optimizers share beside their rates: the step, the posterior's update, checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

import torch
from torch import Generator, Tensor

from .. import evidence as reports
from ..rates import Rate, as_distribution
from ..runtime.blocks import Part
from ..runtime.capturable import Refusals, counter, one_unless, widest
from ..runtime.sharding import is_shard, shard_state
from ..runtime.sleeping import Sleep
from ..shortcuts import mark_only_if_watched, profiler_is_on
from ..trainable import Trainable, trained
from . import checkpoint, processes
from .checks import check_head, no_likelihood, refuse_sparse, warn_without_evidence
from .factor import FactorWatch
from .groups import GroupRates, RatedOptimizer
from .torch_optimizers import params_first
from .update import GroupUpdate, missed_steps

__all__ = ["AlraoOptimizer"]


class AlraoOptimizer(RatedOptimizer):
    """Base class of the optimizers: every feature of the model has its own learning rate.

    ``param_groups[…]["lr"]`` is a factor on all rates of a group, 1.0 at the start, for schedulers to change.
    The rates follow from the distribution that the group was built with, its intervals (:meth:`interval`,
    :meth:`set_interval`), and the place of each feature in them, which is drawn once and saved in the state.
    """

    _wide = frozenset({"u"})
    """State that keeps its type when it is loaded, whatever the type of the parameter."""

    _after_refusal = "That step changed nothing"
    """What has become of a step whose loss was refused on a device."""

    _starts_as_weights: frozenset[str] = frozenset()
    """State that begins as a copy of the weights, and not at zero."""

    makes_state_early = True
    """Whether ``capturable`` makes all state with the optimizer, so that a compiled step is one graph."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            vars(cls)["__init__"].__signature__ = params_first(cls.__init__)

    def __init__(
        self,
        model: Trainable | None,
        lr: Rate,
        defaults: dict[str, Any],
        *,
        params: Iterable[Any] | None,
        generator: Generator | None,
        maximize: bool,
        foreach: bool | None,
        evidence: str,
        process_group: Any,
        capturable: bool = False,
        sleep: bool | None = False,
    ) -> None:
        if evidence not in reports.CHOICES:
            raise ValueError(f"evidence must be 'mean' or 'sum', got {evidence!r}")
        self.model, params = trained(model, params)
        distribution = as_distribution(lr)  # before anything changes
        self.look_for_shards()
        self.process_group = process_group
        # Not known yet: other processes may train another model.
        self._alike = capturable and processes.count(process_group) < 2
        head = self.model.head
        self._factors: FactorWatch | None = None if capturable else FactorWatch()
        self._sleep = Sleep(head, sleep, on_host=head.evidence.is_cpu and not capturable)
        defaults = {"lr": 1.0, **defaults, "maximize": maximize, "foreach": foreach, "evidence": evidence}
        defaults["capturable"] = capturable
        seed = processes.common_seed(generator, process_group)
        processes.check_copies(process_group, head.copies, self.model.parameters())
        if capturable:
            reports.stay_on_device(head.evidence)
            self.model.notice_step()  # now: a compiled step would be compiled again
        super().__init__(distribution, defaults, params=params, seed=seed)
        self._refusals = Refusals(self._device)
        if not (capturable and self.makes_state_early):
            self.state = checkpoint.Unstepped(dict, self.state)
        check_head(self.param_groups, self.head_parameters)
        self.model.notice_optimizer()

    @property
    def sleeps(self) -> bool:
        """Whether copies of the head may fall asleep."""
        return self._sleep.wanted

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

    @torch.compiler.disable
    def _step_uncompiled(self) -> None:
        """Step outside of compiled code, which would keep numbers that are read on the host as constants."""
        self._step_without_grad()

    def _step_without_grad(self) -> None:
        records = torch.is_grad_enabled()
        torch.set_grad_enabled(False)  # no_grad() takes 4 µs longer, at each step
        try:
            self._step()
        finally:
            torch.set_grad_enabled(records)

    def _step(self) -> None:
        head = self.model.head
        if head.evidence.device != self._device:
            self._move_to_device()
        on_device = self.on_device
        if on_device:
            self._raise_refused()
        if not self._alike:
            self.adopt_shards()
            processes.check_alike(self.process_group, self._seed, head.copies, self.param_groups)
            self._alike = True
        gradient = None
        if head.copies:  # not a plain network
            gradient = processes.add_up(head.evidence.grad, head.evidence, self.process_group)
            if gradient is None:
                warn_without_evidence(self.param_groups, self.head_parameters)
        evidence, gate = self._read_evidence(gradient, on_device)
        for group in self.param_groups:
            if not self._takes_sparse(group):
                refuse_sparse(group["params"])
        if type(self.state) is checkpoint.Unstepped:
            self.state = defaultdict(dict, self.state)
        if isinstance(gate, Tensor):
            self._refusals.note(gate)
        if self._factors is not None and not self._factors.look(self.param_groups):
            self._factors = None
        if head.part is not None and evidence is not None:
            self._sleep.notice(evidence.scores)
        complete = head.awake is None
        self._begin_step()
        for i, group in enumerate(self.param_groups):
            rates = self.rates_of_groups[i]
            if group["redraws"] is not None:
                self.redraw(i)
            if rates.sharded:
                with rates.of_this_process(self.state):
                    self._step_group(rates, group, gate)
            else:
                self._step_group(rates, group, gate)
        if evidence is not None:
            self._update_posterior(evidence, gate)
        self._end_step(evidence if complete else None, gate)
        head.evidence.grad = None
        self.model.finite_statistics.restore(reads=not on_device)
        self.model.notice_step()

    def _read_evidence(self, gradient: Tensor | None, on_device: bool) -> tuple[Any, bool | Tensor]:
        """Return the evidence, None if there is none, and the gate of the step.

        The gate is, on the host, whether the loss was finite, and otherwise a tensor: whether it was refused.
        """
        head, maximize = self.model.head, self.param_groups[0]["maximize"]
        if on_device:
            if gradient is None:
                return None, torch.zeros((), dtype=torch.bool, device=self._device)
            on_its_way = reports.read_on_device(gradient, head.copies, widest(self._device))
            return on_its_way, on_its_way.refused(maximize=maximize)
        if gradient is None:
            return None, True
        evidence = reports.read(gradient, head.copies)
        if not evidence.is_likelihood(maximize=maximize):
            raise RuntimeError(f"the loss is {no_likelihood(head)}. Nothing has been changed")
        return (None, True) if evidence.empty else (evidence, evidence.finite)

    def _update_posterior(self, evidence: Any, gate: bool | Tensor) -> None:
        head = self.model.head
        log_likelihood = evidence.log_likelihood(self.param_groups[0]["evidence"])
        if isinstance(gate, Tensor):
            log_likelihood = head.posterior_evidence_on_device(log_likelihood)
            head.averaging.update_on_device(log_likelihood.masked_fill(gate, -inf))
        elif self._sleep.wanted:
            self._sleep.observe(log_likelihood, self.copy_rates, allowed=self._may_sleep())
            entries = (entry for rates in self.rates_of_groups for entry in rates.entries)
            self._sleep.prepare_looks(self.state, entries)
        else:
            head.averaging.update(head.posterior_evidence(log_likelihood))

    def _may_sleep(self) -> bool:
        """Return whether copies may sleep now, in an optimizer that does not allow it always."""
        return True

    def _raise_refused(self) -> None:
        """Raise if the news has arrived that the loss of an earlier step was refused."""
        if not torch.compiler.is_compiling() and self._refusals.arrived():
            raise RuntimeError(
                f"the loss of an earlier step was {no_likelihood(self.model.head)}. {self._after_refusal}"
            )

    def _move_to_device(self) -> None:
        """Move the rates and the state to the device that the model has been moved to."""
        self._device = self.model.head.evidence.device
        self._refusals = Refusals(self._device)
        self.load_state_dict(self.state_dict())

    def _begin_step(self) -> None:
        """Prepare the parameters for an update, in a subclass that needs to; nothing can refuse it now."""

    def _end_step(self, evidence: Any, gate: bool | Tensor) -> None:
        """Use the evidence of a finished step, in a subclass that needs it beside the posterior."""

    def _step_group(self, rates: GroupRates, group: dict[str, Any], gate: bool | Tensor) -> None:
        head, parts = self.model.head, []
        params, grads, of_features = [], [], []
        for p, rate, of_copies in rates.entries:
            grad = p.grad
            if grad is None:
                continue
            if grad.is_sparse:
                grad = grad * one_unless(gate) if isinstance(gate, Tensor) else grad
                self._update_sparse(group, p, -grad if group["maximize"] else grad, rate)
                continue
            if of_copies and head.awake is not None:
                parts.append(part := Part(self.state, p, (head.awake,)))  # it stands for the parameter
                p, grad, rate = part.param, part.of(grad), part.of(rate)
            params.append(p)
            grads.append(grad)
            of_features.append(rate)
        update = GroupUpdate.of(params, grads, of_features, rates.constant, group["lr"], gate)
        if update is None:
            return
        for part in parts:
            part.begin()
        for each in self._divided(update, group, rates):
            self._apply(group, each)
        for part in parts:
            part.end(self._starts_as_weights)
        if parts and head.part != head.awake:
            missed = missed_steps(self._sleep, self.state, rates, update.factor)
            for stands_for, part, each in missed:
                part.begin(stands_for)
                self._apply(self._hyperparams_for_skipped(group, stands_for), each)
                part.end(None)

    def _divided(
        self, update: GroupUpdate, group: dict[str, Any], rates: GroupRates
    ) -> Iterable[GroupUpdate]:
        """Return an update in the parts in which it is applied: one, unless that needs much memory."""
        on_device, at_once = update.stopped is not None, group["foreach"]
        if at_once is None:
            at_once = on_device or self._foreach_is_cheap(group)  # as in torch: fewer launches
        if at_once:
            return [update]
        in_blocks = update.params[0].is_cpu and not on_device and not rates.sharded
        return self._one_by_one(update, group) if in_blocks else update.one_by_one()

    def _one_by_one(self, update: GroupUpdate, group: dict[str, Any]) -> Iterator[GroupUpdate]:
        """Return an update for each parameter, or for blocks of it that stay in the cache."""
        for of_one in update.one_by_one():
            if self._has_state(self.state[of_one.params[0]], group):
                yield from of_one.in_blocks(self.state)
            else:
                yield of_one

    def _has_state(self, state: dict[str, Any], group: dict[str, Any]) -> bool:
        """Return whether a parameter has all of its state, so that parts of it can be updated separately."""
        return False

    def _apply(self, group: dict[str, Any], update: GroupUpdate) -> None:
        if group["maximize"]:
            update.negate()
        self._update(group, update)

    def _hyperparams_for_skipped(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        """Return the settings with which one step stands for several: averages forget as much."""
        return group

    def _foreach_is_cheap(self, group: dict[str, Any]) -> bool:
        """Return whether an update of all parameters at once needs too little memory to matter."""
        return False

    @abstractmethod
    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        """Apply one update to some of the group's parameters."""

    def _takes_sparse(self, group: dict[str, Any]) -> bool:
        return False

    def _update_sparse(self, group: dict[str, Any], param: Tensor, grad: Tensor, rate: Any) -> None:
        raise AssertionError("only for optimizers that take sparse gradients")

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state as in torch, with the places of the features and the intervals."""
        self.adopt_shards()
        packed = {**super().state_dict(), checkpoint.KEY: checkpoint.VERSION}
        for i, group in enumerate(packed["param_groups"]):
            group["interval"], group["copies_interval"] = self.interval(i), self.interval(i, copies=True)
        if type(self.state) is not checkpoint.Unstepped:
            checkpoint.mark_empty(packed)
        return self._sleep.packed_into(packed)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`; one that does not fit raises an error and changes nothing."""
        checkpoint.check_version(state_dict)
        self.adopt_shards()
        params = [p for group in self.param_groups for p in group["params"]]
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        if len(saved) == len(params):
            self._check_shapes(dict(zip(saved, params, strict=True)), state_dict["state"])
        distributions = checkpoint.distributions(
            [rates.drawn for rates in self.rates_of_groups], state_dict["param_groups"]
        )
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        checkpoint.settle(self.param_groups, before)
        for p, i in zip(params, saved, strict=True):
            of_param = state_dict["state"].get(i, {})
            for key in self._wide.intersection(of_param):  # torch has rounded it to the parameter's type
                self.state[p][key] = of_param[key].to(p.device, copy=True)
            self._place_counters(p)
            self.state[p].pop(checkpoint.KEY, None)
            if is_shard(p):
                self.state[p] = shard_state(self.state[p], p)
        for i, (group, drawn) in enumerate(zip(self.param_groups, distributions, strict=True)):
            self.rates_of_groups[i].draw_from(drawn)
            self.rates_of_groups[i].move(group["interval"], group["copies_interval"])
            self.compute_rates(i)
        self._seed, self._alike = self.param_groups[0]["seed"], False
        self._factors = None if self.param_groups[0]["capturable"] else FactorWatch()
        self._sleep.unpack(self.param_groups)

    def _place_counters(self, p: Tensor) -> None:
        """Move the count of a parameter's steps to where this optimizer counts."""
        step = self.state.get(p, {}).get("step")
        if isinstance(step, Tensor):
            self.state[p]["step"] = counter(p, self.on_device).copy_(step)

    def _check_shapes(self, params: dict[int, Tensor], state: dict[int, dict[str, Any]]) -> None:
        checkpoint.check_shapes(params, state)

    def __getstate__(self) -> dict[str, Any]:
        # Schedulers put a wrapped step, bound to this very object, into it; hooks stay behind, as in torch.
        left = {"process_group", "step", "_refusals"} | {
            key for key in self.__dict__ if key.endswith("_hooks")
        }
        return {key: value for key, value in self.__dict__.items() if key not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)
        if "_device" in state:  # a copy or a pickle, not a loaded state
            self._refusals = Refusals(self._device)
