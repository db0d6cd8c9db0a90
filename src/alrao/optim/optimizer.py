"""What the optimizers share: rates for features, the step, the posterior's update, checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributed as dist
from torch.optim import Optimizer

from .. import evidence as reports
from ..finite import in_range, zero_unusable
from ..rates import (
    Interval,
    Rate,
    RateDistribution,
    Redrawn,
    as_distribution,
    describe,
    scaled,
)
from ..shards import is_shard, localized, part_of, sharded_as
from ..shortcuts import child_of, mark_only_if_watched, profiler_is_on
from ..tensors import trail
from ..trainable import Trainable, trained
from ..warn import warn
from . import checkpoint
from .checks import warn_of_copies
from .factor import HIGHEST, FactorWatch
from .feature_rates import Entry, FeaturePlaces, GroupRates, rate_dtype
from .update import GroupUpdate

__all__ = ["AlraoOptimizer"]

DISTRIBUTED = dist.is_available()


class AlraoOptimizer(Optimizer):
    """Base class of the optimizers: every feature of the model has its own learning rate.

    ``param_groups[…]["lr"]`` is a factor on all rates of a group, 1.0 at the start, for schedulers to change.
    The rates follow from the distribution that the group was built with, its intervals (:meth:`interval`,
    :meth:`set_interval`), and the place of each feature in them, which is drawn once and saved in the state.
    """

    _wide = frozenset({"u"})
    """State that keeps its type when it is loaded, whatever the type of the parameter."""

    def __init__(
        self,
        model: Trainable,
        lr: Rate,
        defaults: dict[str, Any],
        *,
        params: Iterable[Any] | None,
        generator: Generator | None,
        maximize: bool,
        foreach: bool | None,
        evidence: str,
        process_group: Any,
    ) -> None:
        if evidence not in reports.CHOICES:
            raise ValueError(f"evidence must be 'mean' or 'sum', got {evidence!r}")
        self.model = trained(model)
        self.process_group = process_group
        self._lr = as_distribution(lr)
        self._seed = self._common_seed(generator)
        self._device = self.model.head.evidence.device
        self._places = FeaturePlaces(self.model.net)
        self._head_params = set(self.model.head.parameters())
        self._factors: FactorWatch | None = FactorWatch()
        self.rates_of_groups: list[GroupRates] = []
        defaults = {"lr": 1.0, **defaults, "maximize": maximize, "foreach": foreach, "evidence": evidence}
        super().__init__(self.model.parameters() if params is None else params, defaults)
        if self._head_params and all(
            self._head_params.isdisjoint(group["params"]) for group in self.param_groups
        ):
            raise ValueError(
                "params has no parameter of the head: add model.head.parameters() to one of the groups"
            )

    # Groups and their rates.

    def _common_seed(self, generator: Generator | None) -> int:
        """Return a seed for the rates, the same in all processes that train the model together."""
        seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
        if self._processes() > 1:
            seeds = [seed]
            first = 0 if self.process_group is None else dist.get_global_rank(self.process_group, 0)
            dist.broadcast_object_list(seeds, src=first, group=self.process_group)
            seed = seeds[0]
        return seed

    def _processes(self) -> int:
        return dist.get_world_size(self.process_group) if DISTRIBUTED and dist.is_initialized() else 1

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch; ``lr`` is an interval, a distribution or a number.

        A group's ``lr_scale`` (timm) multiplies its rates, and leaves it: no scheduler applies it again.
        """
        group = dict(param_group)
        distribution = as_distribution(group.pop("lr")) if "lr" in group else self._lr
        distribution = scaled(distribution, group.pop("lr_scale", 1.0))
        distribution.draw(0), distribution.grid(self.model.head.copies or 1)  # a user's own may fail: here
        super().add_param_group(group)
        group = self.param_groups[-1]
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
        if strangers:
            raise ValueError(
                f"{len(strangers)} parameters, the first of shape {tuple(strangers[0].shape)}, are not "
                "the model's: convert all modules as one, Alrao(nn.ModuleList([encoder, decoder]), "
                "output=…), or pass all plain networks, [encoder, decoder]"
            )
        if any(p.requires_grad for p in self._head_params.intersection(group["params"])):
            warn_of_copies(distribution, self.model.head.copies)
        rates = GroupRates(distribution)
        group["distribution"] = describe(distribution)
        group["interval"] = group["copies_interval"] = distribution.interval
        group["seed"] = self._seed
        group[HIGHEST] = 0.0
        group["redraws"] = 0 if isinstance(distribution, Redrawn) else None
        self._draw_places(rates, group)
        self._compute_rates(rates, group)
        return rates

    def _draw_places(self, rates: GroupRates, group: dict[str, Any]) -> None:
        if rates.constant is None:
            body = [p for p in group["params"] if p not in self._head_params]
            seed = group["seed"] + (group["redraws"] or 0)
            for p, u in zip(body, self._places.draw(body, seed, per_weight=rates.per_weight), strict=True):
                self.state[p]["u"] = u

    def _compute_rates(self, rates: GroupRates, group: dict[str, Any]) -> None:
        rates.entries = []
        rates.sharded = any(is_shard(p) for p in group["params"])
        for p in group["params"]:
            if p in self._head_params:
                rates.entries.append(Entry(p, rates.of_copies(p, self.model.head.copies), of_copies=True))
            else:
                u = self.state[p]["u"] if rates.constant is None else None
                rates.entries.append(Entry(p, rates.of_features(u), of_copies=False))

    def rates(self, parameter: Tensor) -> Tensor:
        """Return the rates of a parameter, without the factor ``lr``; they broadcast to the parameter."""
        for rates in self.rates_of_groups:
            for entry in rates.entries:
                if entry.param is parameter:
                    if isinstance(entry.rate, Tensor):
                        return entry.rate.clone() if not rates.sharded else self._sharded_rates(entry)
                    ones = torch.ones([1] * parameter.ndim, dtype=rate_dtype(parameter))
                    return sharded_as((ones * entry.rate).to(parameter.device), parameter)
        raise KeyError("rates() takes a parameter that this optimizer trains, one of its param_groups")

    def _sharded_rates(self, entry: Entry) -> Tensor:
        p = entry.param
        shape = [len(p)] + [1] * (p.ndim - 1) if entry.of_copies else self.state[p]["u"].shape
        return part_of(entry.rate.clone(), torch.Size(shape), p) if is_shard(p) else entry.rate.clone()

    def copy_rates(self, *, initial: bool = False) -> Tensor:
        """Return the rates of the copies of the head, lowest first, without the factor ``lr``.

        Args:
            initial: those at the start, wherever the interval has moved since.
        """
        if not self._head_params:
            raise ValueError(
                "a plain network has no copies, so there are no copy_rates(): interval() has the ends of its "
                "features' rates, rates(parameter) each of them"
            )
        rates = self.rates_of_groups[self.group_of_head]
        return (rates.drawn if initial else rates.copies).grid(self.model.head.copies)

    @property
    def group_of_head(self) -> int:
        """The index of the first parameter group with parameters of the head."""
        groups = enumerate(self.param_groups)
        return next(i for i, group in groups if not self._head_params.isdisjoint(group["params"]))

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
        settings["interval"], settings["copies_interval"] = rates.body.interval, rates.copies.interval
        self._compute_rates(rates, settings)

    # The step.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the evidence gathered with them."""
        if set_to_none and not profiler_is_on():
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
        else:
            super().zero_grad(set_to_none)
        self.model.head.evidence.grad = None

    profile_hook_step = staticmethod(mark_only_if_watched)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, then the posterior, with the evidence of the outputs before the update.

        Raises:
            RuntimeError: the loss was not a negative log-likelihood; nothing has changed then.
        """
        loss = None
        if closure is not None:
            self.model.place_weights()
            with torch.enable_grad():
                loss = closure()
        head = self.model.head
        evidence = self._gather_evidence()
        self._check_sparse()
        if head.evidence.device != self._device:
            self._follow_device()
        finite = evidence is None or evidence.finite
        if self._factors is not None and not self._factors.look(self.param_groups):
            self._factors = None
        self._begin_step()
        for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
            if group["redraws"] is not None:
                group["redraws"] += 1
                self._draw_places(rates, group)
                self._compute_rates(rates, group)
            if rates.sharded:
                self._step_shards(rates, group, finite)
            else:
                self._step_group(rates, group, finite)
        if evidence is not None:
            log_likelihood = evidence.log_likelihood(self.param_groups[0]["evidence"])
            child_of(head, "averaging").update(head.posterior_evidence(log_likelihood))
        self._end_step(evidence)
        head.evidence.grad = None
        self.model.finite_statistics.restore()
        self.model.notice_step()
        return loss

    def _follow_device(self) -> None:
        """Move the rates and the state to the device that the model has been moved to."""
        self._device = self.model.head.evidence.device
        self.load_state_dict(self.state_dict())

    def _begin_step(self) -> None:
        """Prepare the parameters for an update, in a subclass that needs to; nothing can refuse it now."""

    def _end_step(self, evidence: reports.Evidence | None) -> None:
        """Use the evidence of a finished step, in a subclass that needs it beside the posterior."""

    def _gather_evidence(self) -> reports.Evidence | None:
        """Return the evidence of the backward passes since the last step, over all processes."""
        head = self.model.head
        if not self._head_params:
            return None  # a plain network: no copies to observe
        gradient = head.evidence.grad
        if self._processes() > 1:
            gradient = torch.zeros_like(head.evidence) if gradient is None else gradient.clone()
            dist.all_reduce(gradient, group=self.process_group)
        if gradient is None:
            self._warn_without_evidence()
            return None
        evidence = reports.read(gradient, head.copies)
        if not evidence.is_likelihood(maximize=self.param_groups[0]["maximize"]):
            lost = trail.places()
            where = f" The output last became a plain tensor in {lost[-1]}." if lost else ""
            raise RuntimeError(
                "the loss is not a negative log-likelihood, linear in the model's output, so the copies "
                f"cannot be trained with it: {head.remedy}.{where} Nothing has been changed"
            )
        return None if evidence.empty else evidence

    def _warn_without_evidence(self) -> None:
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in trained if p in self._head_params]
        if any(grad is not None and bool(grad.any()) for grad in grads):
            warn(
                "the copies of the head have gradients but no evidence, so the posterior stays as it is: "
                "compute the gradients with loss.backward(), for all leaves, before each step"
            )
        elif trained and not grads and any(p.requires_grad for p in self._head_params):
            warn(
                "the network has gradients, but the copies of its head have none: check that "
                "Alrao(net, output=…) names the right layer, and that the loss is computed from its output"
            )

    def _check_sparse(self) -> None:
        for group in self.param_groups:
            if self._takes_sparse(group):
                continue
            if any(p.grad is not None and p.grad.is_sparse for p in group["params"]):
                raise RuntimeError(
                    "sparse gradients need alrao.SGD without momentum and weight decay, which would make "
                    "them dense: use that, or build the embedding with sparse=False"
                )

    def _step_shards(self, rates: GroupRates, group: dict[str, Any], finite: bool) -> None:
        """Update this process's part of every parameter."""
        entries = rates.entries
        try:
            with localized(self.state, (entry.param for entry in entries)) as parts:
                rates.entries = [e._replace(param=part) for e, part in zip(entries, parts, strict=True)]
                self._step_group(rates, group, finite)
        finally:
            rates.entries = entries

    def _step_group(self, rates: GroupRates, group: dict[str, Any], finite: bool) -> None:
        params, grads, of_features, of_body = [], [], [], []
        for p, rate, of_copies in rates.entries:
            grad = p.grad
            if grad is None:
                continue
            if grad.is_sparse:
                self._update_sparse(group, p, -grad if group["maximize"] else grad, rate)
                continue
            params.append(p)
            grads.append(grad)
            of_features.append(rate)
            if not of_copies:
                of_body.append(grad)
        if not params:
            return
        if not finite or (of_body and not in_range(of_body)):
            grads = [zero_unusable(grad) for grad in grads]
        update = GroupUpdate(params, grads, of_features, rates.constant, float(group["lr"]))
        at_once = group["foreach"] or (group["foreach"] is None and self._sets_nothing_aside(group))
        for part in [update] if at_once else update.one_by_one():
            if group["maximize"]:
                part.negate()
            self._update(group, part)

    def _sets_nothing_aside(self, group: dict[str, Any]) -> bool:
        """Return whether an update of all parameters at once needs no more memory than one by one."""
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
        return {**super().state_dict(), checkpoint.KEY: checkpoint.VERSION}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`; one that does not fit raises an error and changes nothing."""
        checkpoint.check_version(state_dict)
        params = [p for group in self.param_groups for p in group["params"]]
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        if len(saved) == len(params):
            self._check_shapes(dict(zip(saved, params, strict=True)), state_dict["state"])
        distributions = checkpoint.distributions(
            [rates.drawn for rates in self.rates_of_groups], state_dict["param_groups"]
        )
        super().load_state_dict(state_dict)
        for p, i in zip(params, saved, strict=True):
            of_param = state_dict["state"].get(i, {})
            for key in self._wide.intersection(of_param):  # torch has rounded it to the parameter's type
                self.state[p][key] = of_param[key].to(p.device, copy=True)
        for rates, group, drawn in zip(self.rates_of_groups, self.param_groups, distributions, strict=True):
            rates.drawn = rates.body = rates.copies = drawn
            rates.move(group["interval"], group["copies_interval"])
            self._compute_rates(rates, group)
        self._seed = self.param_groups[0]["seed"]
        self._factors = FactorWatch()

    def _check_shapes(self, params: dict[int, Tensor], state: dict[int, dict[str, Any]]) -> None:
        checkpoint.check_shapes(params, state)

    def __getstate__(self) -> dict[str, Any]:
        # Schedulers put a wrapped step, bound to this very object, into it; hooks stay behind, as in torch.
        left = {"process_group", "step"} | {key for key in self.__dict__ if key.endswith("_hooks")}
        return {key: value for key, value in self.__dict__.items() if key not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)
