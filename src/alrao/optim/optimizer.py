"""What the optimizers share: rates drawn for features, the step, the posterior's move, checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from ..features import features_of
from ..heads.mixture import sane
from ..model import unwrap
from ..rates import Constant, Law, LogUniform, PerWeight, Rate, Redrawn, as_law
from ..warn import warn
from .hooks import only_if_watched, profiler_is_on
from .update import GroupUpdate, in_range

__all__ = ["AlraoOptimizer"]

VERSION = 1
"""Of the format of ``state_dict()``."""

DISTRIBUTED = dist.is_available()

NOT_NLL = 1e-5
"""The largest part of a loss's weight on log-probabilities that may be positive: rounding."""


class AlraoOptimizer(Optimizer):
    """An optimizer in which every feature of the model has a learning rate of its own.

    ``param_groups[…]["lr"]`` is a factor on all rates, 1.0 at the start, for schedulers to move. The drawn
    rates are in the state, and saved with it.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: Rate,
        defaults: dict[str, Any],
        *,
        params: Iterable[Any] | None,
        generator: Generator | None,
        maximize: bool,
        foreach: bool | None,
        process_group: Any,
    ) -> None:
        self.model = unwrap(model)
        self.process_group = process_group
        self._law = as_law(lr)
        self._laws: list[Law] = []  # one for each group
        self._plans: dict[int, list[tuple[Tensor, Any, bool]]] = {}
        self._seed = self._common_seed(generator)
        self._of_copies = set(self.model.head.parameters())
        self._features: dict[Tensor, Tensor] = {}
        self._feature_count = 0
        for module, numbers in features_of(self.model, say=True):
            own = dict(module.named_parameters(recurse=False))
            count = 0
            for name, number in numbers.items():
                self._features[own[name]] = number + self._feature_count
                count = max(count, int(number.max()) + 1 if number.numel() else 0)
            self._feature_count += count
        defaults = {"lr": 1.0, **defaults, "maximize": maximize, "foreach": foreach}
        super().__init__(self.model.parameters() if params is None else params, defaults)
        trained = {p for group in self.param_groups for p in group["params"]}
        if trained.isdisjoint(self._of_copies):
            raise ValueError(
                "params has none of the copies of the output layer: add model.head.parameters() to a group"
            )

    # The rates.

    def _common_seed(self, generator: Generator | None) -> int:
        """A seed for the rates: the same in all processes that train the model together."""
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
        """Add parameters of the model, as in torch; ``lr`` is an interval, a law or a number."""
        group = dict(param_group)
        law = as_law(group.pop("lr")) if "lr" in group else self._law
        law.draw(0), law.grid(self.model.head.copies)  # a law of the user's that fails does so here
        super().add_param_group(group)
        group = self.param_groups[-1]
        strangers = [p for p in group["params"] if p not in self._features]
        if strangers:
            self.param_groups.pop()
            raise ValueError(
                f"{len(strangers)} of the parameters, the first of shape {tuple(strangers[0].shape)}, are "
                "not the model's: group parameters of the model that the optimizer was given"
            )
        group["law"] = repr(law)
        group["constant"] = law.lr if isinstance(law, Constant) else None
        group["seed"] = self._seed
        group["redraws"] = 0 if isinstance(law, Redrawn) else None
        self._warn_of_copies(law, group["params"])
        self._laws.append(law)
        self._plans.clear()
        if group["constant"] is None:
            self._draw(law, group, group["params"])
        self._show_rates()

    def _draw(self, law: Law, group: dict[str, Any], params: Iterable[Tensor]) -> None:
        """Draw the rates of ``params``: always the same for the same feature and seed, however grouped."""
        self._plans.clear()
        params = list(params)
        for p, rate in zip(params, self._drawn(law, group, params), strict=True):
            dtype = torch.promote_types(p.dtype, torch.float32)
            self.state[p]["rate"] = rate.to(p.device, dtype if not dtype.is_complex else torch.float64)

    def _drawn(self, law: Law, group: dict[str, Any], params: Iterable[Tensor]) -> list[Tensor]:
        """The rates that the group's seed gives to ``params``, in double precision, on the CPU."""
        seed = group["seed"] + (group["redraws"] or 0)
        rates, drawn = [], None
        for p in params:
            if p in self._of_copies:
                rates.append(law.grid(self.model.head.copies).view([-1] + [1] * (p.ndim - 1)))
            elif isinstance(law, PerWeight):
                order = next(i for i, q in enumerate(self._features) if q is p)
                rates.append(law.draw(p.numel(), Generator().manual_seed(seed + order)).view(p.shape))
            else:
                if drawn is None:
                    drawn = law.draw(self._feature_count, Generator().manual_seed(seed))
                rates.append(drawn[self._features[p]])
        return rates

    def _warn_of_copies(self, law: Law, params: list[Tensor]) -> None:
        copies = self.model.head.copies
        if self._of_copies.isdisjoint(params):
            return
        if isinstance(law, Constant) and copies > 1:
            warn(
                f"lr={law.lr:g} gives all {copies} copies of the output layer the same rate, so that there "
                "is nothing for the posterior to choose from: pass an interval such as lr=(1e-5, 10), or use "
                "one copy"
            )
        if isinstance(law, LogUniform) and copies == 1 and law.lo < law.hi:
            warn(
                f"with one copy, the output layer gets the middle of the interval, {law.grid(1).item():.3g}: "
                "several copies cover it"
            )

    def _show_rates(self) -> None:
        """Tell the head the rates of its copies, for display."""
        for group in self.param_groups:
            for p in self._of_copies.intersection(group["params"]):
                rates = self.rates(p).flatten()
                self.model.head.rates = rates.expand(self.model.head.copies).clone()

    def rates(self, parameter: Tensor) -> Tensor:
        """The drawn rates of a parameter, without the schedule's factor; they broadcast to it."""
        for group in self.param_groups:
            if any(parameter is p for p in group["params"]):
                if group["constant"] is not None:
                    dtype = torch.promote_types(parameter.dtype, torch.float32)
                    return torch.full(
                        [1] * parameter.ndim, group["constant"], dtype=dtype, device=parameter.device
                    )
                rate: Tensor = self.state[parameter]["rate"]
                return rate.clone()
        raise KeyError("not a parameter that this optimizer trains: ask for one of its param_groups")

    # The step.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the evidence gathered with them."""
        if set_to_none and not profiler_is_on():  # a mark for the profiler takes longer than all the rest
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
        else:
            super().zero_grad(set_to_none)
        self.model.head.evidence.grad = None

    profile_hook_step = staticmethod(only_if_watched)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, then the posterior, with the evidence of the outputs before the update.

        Raises:
            RuntimeError: if the loss was not linear in the log-probabilities; nothing has changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        head = self.model.head
        log_likelihood, sound = self._log_likelihood()
        for group in self.param_groups:
            if not self._takes_sparse(group) and any(
                p.grad is not None and p.grad.is_sparse for p in group["params"]
            ):
                self._refuse_sparse()
        for i, group in enumerate(self.param_groups):
            if group["redraws"] is not None:
                group["redraws"] += 1
                self._draw(self._laws[i], group, [p for p in group["params"] if p not in self._of_copies])
            self._step_group(i, group, sound)
        if log_likelihood is not None:
            averaging: Any = head._modules["averaging"]  # faster than the attribute
            averaging.update(log_likelihood)
        head.evidence.grad = None
        self.model._statistics.mend()
        return loss

    def _log_likelihood(self) -> tuple[list[float] | None, bool]:
        """What the backward passes since the last step said of each copy, over all processes.

        Also whether the loss was finite: then the gradients of the copies are too, by construction.
        """
        head = self.model.head
        evidence = head.evidence.grad
        if self._processes() > 1:
            evidence = torch.zeros_like(head.evidence) if evidence is None else evidence.clone()
            dist.all_reduce(evidence, group=self.process_group)
        if evidence is None:
            self._warn_without_evidence()
            return None, True
        numbers = evidence.tolist()
        scores, (total, positive, *rows) = numbers[: head.copies], numbers[head.copies :]
        wrong = positive - total if self.param_groups[0]["maximize"] else positive
        if wrong > NOT_NLL * abs(2 * positive - total):
            raise RuntimeError(
                "the loss is not a negative log-likelihood, linear in the model's output, so the copies "
                f"cannot be trained with it: {head.remedy}. Nothing has been changed"
            )
        if total == 0:  # nothing was observed: an empty batch, or all of it ignored
            return None, True
        factor = (rows[0] if rows else 1.0) / total
        return head.verdict([score * factor for score in scores]), isfinite(total)

    def _warn_without_evidence(self) -> None:
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        of_copies = [p.grad for p in trained if p in self._of_copies]
        if any(grad is not None and bool(grad.any()) for grad in of_copies):
            warn(
                "the copies of the output layer have gradients, but nothing says how well each of them did, "
                "so that the posterior stays as it is. Compute the gradients with loss.backward(), for all "
                "leaves, before each step"
            )
        elif trained and not of_copies and any(p.requires_grad for p in self._of_copies):
            warn(
                "the network has gradients, the copies of its output layer have none: was another layer "
                "meant by Alrao(net, output=…), or the loss computed without them?"
            )

    def _planned(self, index: int, group: dict[str, Any]) -> list[tuple[Tensor, Any, bool]]:
        """A group's parameters with their rates, and whether they are the body's; looked up once."""
        if index not in self._plans:
            constant = group["constant"]
            self._plans[index] = [
                (p, self.state[p]["rate"] if constant is None else constant, p not in self._of_copies)
                for p in group["params"]
            ]
        return self._plans[index]

    def _step_group(self, index: int, group: dict[str, Any], sound: bool) -> None:
        constant, factor = group["constant"], float(group["lr"])
        params, grads, rates, of_body = [], [], [], []
        for p, rate, in_body in self._planned(index, group):
            grad = p.grad
            if grad is None:
                continue
            if grad.is_sparse:
                self._update_sparse(group, p, -grad if group["maximize"] else grad, rate)
                continue
            params.append(p)
            grads.append(grad)
            rates.append(rate)
            if in_body:
                of_body.append(grad)
        if not sound or (of_body and not in_range(of_body)):
            grads = [torch.where(sane(grad), grad, 0) for grad in grads]
        if group["foreach"] or (group["foreach"] is None and self._sets_nothing_aside(group)):
            if params:
                grads = list(torch._foreach_neg(grads)) if group["maximize"] else grads
                self._update(group, GroupUpdate(params, grads, rates, constant, factor))
            return
        for p, grad, rate in zip(params, grads, rates, strict=True):
            grads = [-grad if group["maximize"] else grad]
            self._update(group, GroupUpdate([p], grads, [rate], constant, factor))

    def _sets_nothing_aside(self, group: dict[str, Any]) -> bool:
        """Whether an update of all parameters at once needs no more memory than one by one."""
        return False

    @abstractmethod
    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        """Apply one update to some of the group's parameters."""

    def _takes_sparse(self, group: dict[str, Any]) -> bool:
        return False

    def _refuse_sparse(self) -> None:
        raise RuntimeError(
            "sparse gradients go with alrao.SGD without momentum and weight decay, which would make them "
            "dense: use that, or make the embedding with sparse=False"
        )

    def _update_sparse(
        self, group: dict[str, Any], param: Tensor, grad: Tensor, rate: Tensor | float
    ) -> None:
        self._refuse_sparse()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """The state, rates included, as in torch; ``"alrao"`` is the version of the format."""
        return {**super().state_dict(), "alrao": VERSION}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that :meth:`state_dict` gave. Refused, with nothing changed, if it does not fit."""
        # torch.distributed.checkpoint drops the version, and keeps what is in the groups.
        groups = state_dict.get("param_groups", [])
        version = state_dict.get("alrao", VERSION if groups and all("law" in g for g in groups) else None)
        if version is None:
            raise ValueError(
                f"this is not the state of an alrao optimizer (it has {sorted(state_dict)}): load what its "
                "own state_dict() gave"
            )
        if version > VERSION:
            raise ValueError(
                f"the state has format {version}, this version of alrao reads up to {VERSION}: upgrade"
            )
        params = [p for group in self.param_groups for p in group["params"]]
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        if len(saved) == len(params):
            self._check_shapes(dict(zip(saved, params, strict=True)), state_dict["state"])
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=False):
            if saved_group["redraws"] is not None and saved_group["law"] != group["law"]:
                raise ValueError(
                    f"the state redraws its rates from {saved_group['law']}, this optimizer was built with "
                    f"{group['law']}: build it with the same lr"
                )
        super().load_state_dict(state_dict)
        self._plans.clear()
        # torch rounds floating-point state to the parameter's type: not the rates.
        for p, i in zip(params, saved, strict=True):
            rate = state_dict["state"].get(i, {}).get("rate")
            if rate is not None:
                self.state[p]["rate"] = rate.to(p.device, copy=True)
        self._seed = self.param_groups[0]["seed"]
        self._show_rates()

    def _check_shapes(self, params: dict[int, Tensor], state: dict[int, dict[str, Any]]) -> None:
        for i, p in params.items():
            for key, value in state.get(i, {}).items():
                if not isinstance(value, Tensor) or key == "step":
                    continue
                shape = value.shape
                if key == "rate":  # one for each feature: it must broadcast
                    fits = len(shape) == p.ndim and all(
                        n in (1, m) for n, m in zip(shape, p.shape, strict=True)
                    )
                else:
                    fits = shape == p.shape
                if not fits:
                    raise ValueError(
                        f"{key!r} of shape {tuple(shape)} does not fit a parameter of shape "
                        f"{tuple(p.shape)}: the state belongs to another model"
                    )

    def __getstate__(self) -> dict[str, Any]:
        # Schedulers put a wrapped step, bound to this very object, into it; hooks stay behind, as in torch.
        left = {"process_group", "step"} | {key for key in self.__dict__ if key.endswith("_hooks")}
        return {key: value for key, value in self.__dict__.items() if key not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("process_group", None)
