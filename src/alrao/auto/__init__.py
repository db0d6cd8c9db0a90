"""``Auto``: one optimizer with no learning rate, no schedule and no number of steps to choose.

``search`` finds the rates; ``step`` moves and averages the weights, with gradients taken where ``point`` has
them; ``swap`` puts training or averaged weights into the parameters.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from math import log, sqrt
from typing import Any

import torch
from torch import Generator, Tensor

from ..finite import is_finite, zero_nonfinite
from ..optim import AlraoOptimizer, checkpoint
from ..optim.checks import check_at_least_0, check_steps
from ..optim.factor import HIGHEST, LOW, check_factor
from ..optim.groups import GroupRates, rate_dtype
from ..optim.update import GroupUpdate, rewind_
from ..rates import RateDistribution
from ..runtime.capturable import counter
from ..runtime.sharding import Shards
from ..trainable import Trainable
from ..warn import warn
from .point import GradientPoint
from .search import COPIES, FeatureGains, RateSearch, of_former_state
from .step import Moving, round_to_, take_step
from .swap import Averages, training_weights, wide_dtype

__all__ = ["Auto", "AutoScheduleFree"]

SMALL = 2**20
"""Weights of a group that are updated all at once by default: that sets aside too little to matter."""

LARGEST_FACTOR = 1e6
"""Up to this ``lr`` a step cannot overflow: rates are at most 0.1, and directions of about unit size."""

MEANS = ("gain_mean", "gain_mean_size")
"""Keys of the EMAs of a parameter's mean gain, with its sign and without."""

logger = logging.getLogger("alrao")


class Auto(AlraoOptimizer):
    r"""Train without choosing a learning rate, a schedule or a number of steps.

    .. code-block:: python

        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)    # before, with a scheduler
        optimizer = alrao.Auto(net)                                 # after, without one

        model = alrao.Alrao(net)                                    # or, for a classifier or a regression
        optimizer = alrao.Auto(model)

    ``model.eval()`` shows the averaged weights, ``model.train()`` the training weights: there is nothing else
    to call, and the training can end at any step.

    A step is Adam's without its first moment: with the gradient :math:`g` at the training weights :math:`y`,

    .. math:: v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        \delta = \gamma\,\eta\, \frac{g}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    where :math:`\gamma` is the factor ``param_groups[…]["lr"]``, 1.0 unless a scheduler changes it. There are
    two phases:

    1. **Search**, about 50 steps, or up to 500 while nothing is learned: :math:`y \leftarrow y - \delta`.
       Every feature has its own rate :math:`\eta`, between 3e-4 and 3e-3 at the start, and the copies of
       the head have rates from 1e-6 to 0.1. The interval narrows around the rates at which copies gain
       most, or around higher ones at which features gain more. Where a feature's rate falls, its distance
       from its start shrinks with it. The factor :math:`\gamma` has no effect yet.
    2. **Averaging**: :math:`z \leftarrow z - \delta`, :math:`x \leftarrow x + c_k (z - x)` with
       :math:`c_k = k^2 / \sum_{i \le k} i^2`, and :math:`y = (1 - \beta) z + \beta x`, at one rate for all
       features. :math:`\beta` is :math:`\beta_1`, or more where steps swing from side to side.

    The parameters hold :math:`y` while the model is in training mode, and the averaged weights :math:`x`
    while it is in evaluation mode. During the search both are the same. A model that has not been trained
    yet gets copies of the head that are all like the first one, so that only their rates differ.

    Args:
        model: an :class:`Alrao` model, possibly wrapped by DDP or ``torch.compile``; or, for any
            loss, a plain network, a list of them, or parameters or parameter groups as in :class:`SGD`.
            Without copies the search follows the features. Without a network its mode is not seen: call
            :meth:`eval` and :meth:`train`.
        lr: factor :math:`\gamma` on the rates that the search finds, from which a scheduler starts. It is not
            a learning rate: one below 0.1 causes a warning.
        betas: :math:`\beta_1`, the usual share of the average in the training weights, fixed when a group is
            added, and :math:`\beta_2`, of the running average of squared gradients.
        eps: term added to the denominator, as in Adam.
        weight_decay: decoupled decay, of :math:`y` and in proportion to the rate, as in :class:`AdamW`.
        steps: number of steps of the training, if it is known: the search then takes at most 30 % of it. A
            longer run is fine.
        params: parameters or parameter groups, as in :class:`SGD`. A group whose own ``lr`` is an interval, a
            distribution or a number up to 0.1 keeps these rates. The others follow the search; there a number
            above 0.1 is the factor of the group, as trainers write it for rate-free optimizers, and an
            ``lr_scale`` (timm's layer decay) multiplies the rates.
        generator: random generator for the places of the features in the interval.
        maximize: maximize the objective instead of minimizing it.
        foreach: update all parameters of a group at once.
        process_group: the processes that train this model together.
        swap: put the averaged weights into the parameters in evaluation mode. With False they hold the
            training weights in both modes, for a network that acts while it learns.
        sleep: after the search, leave out copies of the head while their posterior weight is negligible, as
            in :class:`SGD`. None: where it pays, for a classifier on the CPU whose copies have a million
            weights together; False: never.
        capturable: after the search, read nothing on the host, as in :class:`SGD`, so that the step can be
            captured. The search reads a few numbers at each step, on every device. Inside compiled code the
            step runs as it is, between two graphs.

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
        >>> optimizer.search.over
        True

    Reference: Defazio et al., "The Road Less Scheduled", 2024, for the averaging.
    """

    _wide = AlraoOptimizer._wide | {"z", "exp_avg_sq", "gain", *MEANS, "last"}
    _starts_as_weights = frozenset({"z"})
    _after_refusal = "That step was taken without gradients"
    makes_state_early = False

    def __init__(
        self,
        model: Trainable | None = None,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.7, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        steps: int | None = None,
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
        usual = check_factor(lr)
        self.search = RateSearch.of(check_steps(steps))
        self.point = GradientPoint()
        self._seen: list[FeatureGains] = []  # what this step has shown of the body
        super().__init__(
            model, COPIES, {"lr": float(lr), "betas": betas, "eps": eps, "weight_decay": weight_decay},
            params=params, generator=generator, maximize=maximize, foreach=foreach,
            evidence="sum", process_group=process_group, sleep=sleep, capturable=capturable,
        )  # fmt: skip
        self._factors = self._factors if usual else None  # of which it has warned now
        self.averages = Averages(self, swap)
        self.model.averaged_by(self.averages)
        self.model.head.start_alike()

    @property
    def on_device(self) -> bool:
        """Whether a step leaves all numbers where they are: after the search, except on the CPU."""
        return self.search.over and super().on_device

    def _can_be_compiled(self) -> bool:
        """Return False: what is kept between steps of single parameters is no part of a graph."""
        return False

    # Groups.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch; without rates of their own they follow the search.

        An ``lr`` of the group is its rates, or, as a number above 0.1, its factor on the search's.
        """
        group, lr = dict(param_group), param_group.get("lr")
        if isinstance(lr, int | float) and lr > LOW:  # as trainers write it for rate-free optimizers
            del group["lr"]
        follows = "lr" not in group
        scale = group.get("lr_scale", 1.0)
        beta, _ = group.get("betas", self.defaults["betas"])  # schedulers may write betas
        super().add_param_group({**group, "follows": follows, "scale": scale, "beta": beta})
        group = self.param_groups[-1]
        if follows and lr is not None:
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr
        self._place_interval(len(self.param_groups) - 1)

    def _draw_places(self, rates: GroupRates, group: dict[str, Any]) -> None:
        super()._draw_places(rates, group)
        for p in group["params"]:
            if p.is_complex():
                raise ValueError(
                    f"Auto trains real parameters, got one of type {p.dtype} and shape {tuple(p.shape)}: "
                    "keep its real and imaginary parts in a real one (torch.view_as_real), or use alrao.AdamW"
                )
            state = self.state[p]
            if p not in self.head_parameters or self.model.head.likelihood != "categorical":
                state.setdefault(
                    "beta", group["beta"]
                )  # copies of a classifier keep the group's: some may sleep
            if group["follows"] and "u" in state and "gain" not in state:
                state["gain"] = torch.zeros_like(state["u"])
                if state["u"].numel() < p.numel():  # features of one weight would add next to nothing
                    state["last"] = torch.zeros_like(state["u"])
                if self.model.head.copies < 2:
                    for key in MEANS:
                        state[key] = torch.zeros((), dtype=torch.float64, device="cpu")

    def _place_interval(self, i: int) -> None:
        """Put the interval of a group that follows the search where that is; one rate once it is over."""
        group = self.param_groups[i]
        if group["follows"]:
            low, high = (end * group["scale"] for end in self.search.interval())
            if self.search.over:
                self.set_rate(i, sqrt(low * high))
            else:
                self.set_interval(i, body=(low, high))

    # The modes.

    def train(self) -> None:
        """Put the training weights into the parameters. The model's ``train()`` does this by itself.

        An optimizer that was given parameters without their network sees no mode: call this before the
        training continues. A step without it warns.
        """
        self.model.hold(True)
        self.averages.place(True)

    def eval(self) -> None:
        """Put the averaged weights into the parameters. The model's ``eval()`` does this by itself.

        An optimizer that was given parameters without their network sees no mode: call this before an
        evaluation, and before ``net.state_dict()`` is saved for inference. Otherwise it has the training
        weights.
        """
        self.model.hold(False)
        self.averages.place(False)

    def transform(self, change: Callable[[], None]) -> None:
        """Apply an affine change of the weights to everything that is kept of them."""
        self.averages.transform(change)

    # The step.

    def _begin_step(self) -> None:
        averages = self.averages
        if not self.state:  # a program has cleared it, as fastai does when it freezes layers
            for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
                self._draw_places(rates, group)
        averages.follow(self)  # torch and the first step replace the state
        if averages.retired:
            raise RuntimeError(
                "another Auto has been built for parameters of this one, and only one optimizer can average "
                "them: step the newer one, or build one Auto for all parameters"
            )
        averages.recognise(stepping=True)
        self.model.check_gradients(averages.evaluating and averages.differ)
        averages.leave()
        averages.notice_changes(reads=not self.on_device)

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        searching = not self.search.over
        states = self._states_of(u.params, group)
        y = [training_weights(p, state) for p, state in zip(u.params, states, strict=True)]
        pairs = zip(u.grads, y, strict=True)
        g = [grad if grad.dtype == each.dtype else grad.to(each.dtype) for grad, each in pairs]
        if searching and group["follows"]:
            self._observe_features(group, states, y, g)
        # The search compares rates as they are; a schedule starts from what it has found.
        lr = 1.0 if searching and group["follows"] and u.factor != 0 else _usable(u.factor)
        comparing = not searching and self.point.compares and not group["capturable"]
        for (_, beta, new_beta), at in self._of_one_age(states, group):
            rates: list[Any] = [u.rates[i] for i in at]
            moving = Moving(
                y=[y[i] for i in at],
                z=[] if searching else [states[i]["z"] for i in at],
                g=[g[i] for i in at],
                exp_avg_sq=[states[i]["exp_avg_sq"] for i in at],
                rate=next((rate for rate in rates if isinstance(rate, float)), 1.0),
                own_rates={i: rate for i, rate in enumerate(rates) if isinstance(rate, Tensor)},
                step=states[at[0]]["step"],
                k=states[at[0]].get("k"),
            )
            steps = take_step(
                moving, lr=lr, beta=beta, new_beta=new_beta, beta2=group["betas"][1], eps=group["eps"],
                weight_decay=group["weight_decay"], newest=group.get("stands_for", 1),
            )  # fmt: skip
            for i in at if new_beta != beta else ():
                states[i]["beta"] = new_beta
            if comparing and (known := [j for j, i in enumerate(at) if "last" in states[i]]):
                self.point.note([steps[j] for j in known], [states[at[j]]["last"] for j in known])
        for p, state, wide in zip(u.params, states, y, strict=True):
            if "rest" in state:
                round_to_(p, state["rest"], wide)

    def _end_step(self, evidence: Any, gate: Any) -> None:
        stepped = any(p.grad is not None for group in self.param_groups for p in group["params"])
        if stepped and self.search.over:
            self.point.follow(self._shards("last"))
        elif stepped:
            self._follow_search(evidence)
        averages, head = self.averages, self.model.head
        head.training_weights = False  # of an earlier run: this one continues from them
        averages.note(reads=not self.on_device)
        if averages.swap and not self.model.training:
            averages.enter()

    def _states_of(self, params: list[Tensor], group: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the states of parameters that are updated now, counted."""
        searching = not self.search.over
        states: list[dict[str, Any]] = [self.state[p] for p in params]
        new = [(p, state) for p, state in zip(params, states, strict=True) if "exp_avg_sq" not in state]
        counts = self._counts(params[0]) if new else {}
        for p, state in new:
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=wide_dtype(p))
            if wide_dtype(p) != p.dtype:
                state["rest"] = torch.zeros_like(p)  # what rounding has taken from it
            state |= counts
            if searching and group["follows"] and "u" in state:
                state["start"] = p.detach().clone()
        for p, state in zip(params, states, strict=True):
            if not searching and "z" not in state:
                state["z"] = training_weights(p, state).to(wide_dtype(p), copy=True)
        keys = ("step",) if searching else ("step", "k")
        if group["capturable"] and not searching:
            if len(params) < len(group["params"]):
                self._part_counts(params, group)
            shared = {id(state[key]): state[key] for state in states for key in keys}
            torch._foreach_add_(list(shared.values()), 1)
        else:
            for state in states:
                for key in keys:
                    state[key] += 1
        return states

    def _of_one_age(
        self, states: list[dict[str, Any]], group: dict[str, Any]
    ) -> Iterable[tuple[tuple[Any, float, float], list[int]]]:
        """Return the places of parameters with the same steps behind them, their beta and its new value."""
        places: dict[Any, list[int]] = {}
        moved = self.point.beta(group["beta"]) if self.search.over else group["beta"]
        for i, state in enumerate(states):
            step, beta = state["step"], state.get("beta", group["beta"])
            age = (id(step), id(state["k"])) if isinstance(step, Tensor) else (step, state["k"])
            places.setdefault((age, beta, moved if "beta" in state else beta), []).append(i)
        return places.items()

    def _counts(self, p: Tensor) -> dict[str, Any]:
        """Return counters of 0; tensors are shared by all parameters that begin together."""
        capturable = self.search.over and self.defaults["capturable"]
        return {key: counter(p, on_device=True) if capturable else 0 for key in ("step", "k")}

    def _part_counts(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Give parameters that step counters of their own, where others that do not step share theirs."""
        stepping = set(params)
        others = [p for p in group["params"] if p not in stepping and p in self.state]
        absent = {id(self.state[p].get("step")) for p in others}
        new: dict[Any, dict[str, Any]] = {}
        for p in params:
            state = self.state[p]
            if id(state["step"]) in absent:
                counts = {key: state[key].clone() for key in ("step", "k")}
                state |= new.setdefault((id(state["step"]), id(state["k"])), counts)

    def _has_state(self, state: dict[str, Any], group: dict[str, Any]) -> bool:
        return "z" in state

    def _foreach_is_cheap(self, group: dict[str, Any]) -> bool:
        return sum(p.numel() for p in group["params"]) <= SMALL

    def _may_sleep(self) -> bool:
        return self.search.over

    def _hyperparams_for_skipped(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {**group, "betas": (beta1, beta2**steps), "stands_for": steps}

    def _shards(self, key: str) -> Shards:
        sharded = [entry.param for rates in self.rates_of_groups if rates.sharded for entry in rates.entries]
        return Shards(self.state, sharded, key)

    # The search.

    def _observe_features(
        self, group: dict[str, Any], states: list[dict[str, Any]], y: list[Tensor], g: list[Tensor]
    ) -> None:
        """Note what the distance of each feature from its start has gained, before it moves."""
        at = [i for i, state in enumerate(states) if "start" in state]
        if not at:
            return
        groups = zip(self.rates_of_groups, self.param_groups, strict=True)
        (body,) = (rates.body for rates, each in groups if each is group)
        low, high = body.interval or (1.0, 1.0)
        gained = torch._foreach_sub([states[i]["start"] for i in at], [y[i] for i in at])
        torch._foreach_mul_(gained, [g[i] for i in at])
        log_rates = torch._foreach_sub([states[i]["u"] for i in at], 0.5)
        torch._foreach_mul_(log_rates, log(high / low))
        for i, each, log_rate in zip(at, gained, log_rates, strict=True):
            gain, means = states[i]["gain"], [states[i][key] for key in MEANS if key in states[i]]
            now = each.sum_to_size(gain.shape).to(gain.dtype)
            self._seen.append(FeatureGains(now, gain, log_rate, means))

    def _follow_search(self, evidence: Any) -> None:
        seen, self._seen = self._seen, []
        self.search.observe_body(seen, self._shards("gain"))
        self.search.count()
        if evidence is not None and evidence.finite:
            self.search.observe_copies(evidence.log_likelihood("mean"), self.copy_rates().log().tolist())
        if self.search.due:
            self._move_interval()
        if self.search.over:
            self._end_search()

    def _move_interval(self) -> None:
        """Move the body's interval, and take back what features with a lower rate have moved too far."""
        for i, group in enumerate(self.param_groups):
            if not group["follows"]:
                continue
            moving = [p for p in group["params"] if "start" in self.state.get(p, {})]
            before = self._rates_of(i, moving)
            self._place_interval(i)
            after = self._rates_of(i, moving)
            if moving:
                parts = torch._foreach_div(after, before)
                rewind_(moving, [self.state[p]["start"] for p in moving], list(parts))

    def _rates_of(self, i: int, params: list[Tensor]) -> list[Tensor]:
        """Return the rates of parameters of a group; of sharded ones, this process's part."""
        known = {entry.param: entry.rate for entry in self.rates_of_groups[i].entries}
        return [
            rate if isinstance(rate, Tensor) else torch.full((), rate, dtype=rate_dtype(p), device=p.device)
            for p, rate in ((p, known[p]) for p in params)
        ]

    def _end_search(self) -> None:
        """Begin to average: make all that the averaging needs, and report what the search has found."""
        for p, state in self.state.items():
            state.pop("start", None)
            if "exp_avg_sq" in state:
                state["z"] = training_weights(p, state).to(wide_dtype(p), copy=True)
        self._place_counts()
        following = [group for group in self.param_groups if group["follows"]]
        factor = min((float(group["lr"]) for group in following), default=1.0)
        rate, steps = sqrt(self.search.interval()[0] * self.search.interval()[1]), self.search.steps
        logger.info("the search has ended after %d steps at the learning rate %.3g", steps, rate)
        highest = max((group[HIGHEST] for group in following), default=1.0)
        if factor < 0.5 and highest > LOW:  # lower ones may be learning rates, which have their own warning
            warn(
                f"param_groups[…]['lr'] is {factor:.3g} at the end of Auto's search, and multiplies the rate "
                "that it has found from now on. Auto needs no schedule: leave the scheduler out, and the "
                "factor at 1.0"
            )

    def _place_counts(self) -> None:
        """Put the counters where steps count: in numbers; captured steps in tensors that a group shares."""
        shared: dict[Any, dict[str, Any]] = {}
        capturable = self.search.over and self.defaults["capturable"]
        for i, p in ((i, p) for i, group in enumerate(self.param_groups) for p in group["params"]):
            state = self.state.get(p, {})
            if "exp_avg_sq" not in state:
                continue
            numbers = int(state["step"]), int(state.get("k", 0))
            if not capturable:
                state["step"], state["k"] = numbers
                continue
            key = (i, numbers, p.device)  # every group counts its own
            if key not in shared:
                shared[key] = {
                    name: counter(p, on_device=True).fill_(number)
                    for name, number in zip(("step", "k"), numbers, strict=True)
                }
            state |= shared[key]

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with that of the search, and a fingerprint of the weights that it belongs to."""
        with torch.no_grad():
            self.averages.notice_changes()
        packed = super().state_dict()
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in enumerate(params):
            state = packed["state"].get(i, {})
            if "exp_avg_sq" in state:
                kept = {key: value for key, value in state.items() if key != "start"}
                if "z" not in kept:  # the same tensors at every moment: what is to be loaded is known then
                    kept["z"] = state.get("start", p.detach()).to(wide_dtype(p), copy=True)
                state = {**kept, "step": int(state["step"]), "k": int(state["k"])}
            if "exp_avg_sq" in state or "y" in state:
                packed["state"][i] = {**state, "fingerprint": self.averages.fingerprint(p)}
        whole = {
            "search": dataclasses.asdict(self.search),
            "point": self.point.read(),
            "evaluating": self.averages.evaluating,
        }
        packed["param_groups"][0]["auto"] = whole
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, before or after the weights of the model."""
        checkpoint.check_version(state_dict)
        groups = [dict(group) for group in state_dict["param_groups"]]
        whole = _whole_state(groups)
        states = {i: _renamed(state) for i, state in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": states, "param_groups": groups})
        self.search, self.point = RateSearch(**whole["search"]), GradientPoint(whole["point"])
        self._seen = []
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "z" in state and not self.search.over:  # saved during the search, it is the start
                    start = state.pop("z")
                    if group["follows"] and "u" in state:
                        state["start"] = start.to(p.dtype)
        self._place_counts()
        for i in range(len(self.param_groups) if self.search.over else 0):
            self._place_interval(i)
        self.averages.follow(self)
        marks = {p: state.pop("fingerprint") for p, state in self.state.items() if "fingerprint" in state}
        self.averages.expect(marks, whole["evaluating"])
        if not self.averages.expecting:
            self.averages.place(self.model.training)

    def _place_counters(self, p: Tensor) -> None:
        """Leave the counters to :meth:`_place_counts`, which knows all of them."""

    def _replace_parameters(self, new: dict[Tensor, Tensor]) -> None:
        super()._replace_parameters(new)
        self.averages.follow(self)

    def __getstate__(self) -> dict[str, Any]:
        with torch.no_grad():
            self.averages.notice_changes()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model" in state:  # a copy or a pickle, not a loaded state
            self.averages.follow(self)
            self.averages.note(reads=not self.on_device)
            self.model.averaged_by(self.averages)


class AutoScheduleFree(Auto):
    """:class:`Auto` under a name by which trainers know to call ``eval()`` and ``train()`` around a save.

    Scripts such as kohya's call them for classes whose names end in ``ScheduleFree``, and for no others.
    """


def _usable(factor: Any) -> Any:
    """Return a factor on all rates with which no step can overflow; 0 for one that is no number."""
    if isinstance(factor, Tensor):
        return zero_nonfinite(factor).clamp(max=LARGEST_FACTOR)
    return min(factor, LARGEST_FACTOR) if is_finite(factor) else 0.0


def _whole_state(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the state of the whole optimizer out of the groups, in the present format or in that before."""
    for group in groups:
        group.setdefault("beta", group["betas"][0])
    found = [group.pop("auto", None) for group in groups]
    if found[0] is not None:
        return dict(found[0])
    searches, points, modes = (
        [group.pop(key, None) for group in groups] for key in ("search", "point", "evaluating")
    )
    if searches[0] is None:
        raise ValueError(
            "this is the state of another optimizer than Auto: build the one that it was saved from"
        )
    search = dataclasses.asdict(of_former_state(searches[0]))
    return {"search": search, "point": list(points[0] or (0, 1.0, 0.0, 0))[:4], "evaluating": modes[0]}


def _renamed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a parameter under the present names, from those of the format before."""
    if "v" not in state and "worth" not in state:
        return state
    names = {"v": "exp_avg_sq", "worth": "gain"}
    names |= {"total": "gain_mean", "total_size": "gain_mean_size"}
    # Fingerprints are computed in another way now.
    kept = {names.get(key, key): value for key, value in state.items() if key != "fingerprint"}
    return kept | {key: kept[key].cpu().double() for key in MEANS if key in kept}
