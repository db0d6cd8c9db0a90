"""``Auto``: one optimizer with no learning rate, no schedule and no number of steps to choose.

``search`` finds the rate; ``step`` moves and averages the weights, hidden matrices by ``matrices``; ``swap``
puts training or averaged weights into the parameters.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Generator, Tensor

from ..finite import is_finite, zero_nonfinite
from ..optim import AlraoOptimizer, checkpoint
from ..optim.base import check_at_least_0
from ..optim.groups import HIGHEST, LOW, GroupRates, check_factor
from ..optim.update import GroupUpdate
from ..rates import Constant, Interval, LogUniform, RateDistribution
from ..runtime.capturable import COUNTS, separate_counts, share_counts, widest
from ..runtime.sharding import is_shard, local, over_shards
from ..statistics import AveragedStatistics, batch_norms
from ..trainable import Trainable
from ..warn import warn
from .matrices import PERIOD, matrices_of
from .search import RateSearch
from .step import Kept, Weight, Weights, rate_left, round_to_, take_step, widened
from .swap import Averages, training_weights, wide_dtype

__all__ = ["Auto", "AutoScheduleFree"]

COPIES = (0.01, 1.0)
"""Rates of the slowest and of the fastest copy of the head after the search, in units of the body's."""

LEAST_DECAY = 5e-3
"""With less, 1,000 steps at a usual rate of 0.005 take less than 3 % of a weight."""

PATIENCE = 10
"""Steps in evaluation mode before a warning: some programs make a few on purpose."""

LARGEST_FACTOR = 1e6
"""Up to this ``lr`` a step cannot overflow: rates are at most 0.1, and directions of about unit size."""

WIDE = frozenset({"x", "z", "exp_avg_sq", "exp_avg"})
"""State of a parameter that is kept at least in float32."""

logger = logging.getLogger("alrao")


class Auto(AlraoOptimizer):
    r"""Train without choosing a learning rate, a schedule or a number of steps.

    .. code-block:: python

        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)    # before, with a scheduler
        optimizer = alrao.Auto(net)                                 # after, without one

        model = alrao.Alrao(net)                                    # or, with copies, for a likelihood
        optimizer = alrao.Auto(model)

    ``model.eval()`` shows the averaged weights, ``model.train()`` the training weights: there is nothing else
    to call, and the training can end at any step. There are two phases:

    1. **Search**, 50 steps or some more, up to 500 while nothing is learned. Steps are Adam's without its
       first moment, :math:`g / (\sqrt{v / (1 - \beta_2^t)} + \epsilon)` times a rate that begins at 6e-6,
       and grows while gradients agree with the direction in which the weights have moved. The factor
       ``param_groups[…]["lr"]`` has no effect yet.
    2. **Averaging**, at the rate found for 1,000 steps, and then at :math:`\sqrt{1000 / k}` of it in step
       :math:`k`; :math:`\delta` is the step times the rate and the factor:
       :math:`z \leftarrow z - \delta`, :math:`x \leftarrow x + c_k (z - x)` with
       :math:`c_k = k^2 / \sum_{i \le k} i^2`, and gradients at :math:`y = (1 - \beta_1) z + \beta_1 x`.
       Hidden matrices (of linear, convolutional, attention and recurrent layers) take orthogonal steps as in
       Muon, at every fifth step. The copies of the head get rates of their own, from 0.01 to 1 times that.

    The parameters hold :math:`y` in training mode and the averaged weights :math:`x` in evaluation mode;
    during the search, :math:`y` is the newest weights. An untrained model gets copies of the head that are
    all like the first one, so that only their rates differ.

    Args:
        model: an :class:`Alrao` model, possibly wrapped by DDP or ``torch.compile``; or, for any
            loss, a plain network, a list of them, or parameters or parameter groups as in :class:`SGD`.
            Without a network its mode is not seen: call :meth:`eval` and :meth:`train`.
        lr: factor on the rate that the search finds, from which a scheduler starts. It is not a learning
            rate: one below 0.1 causes a warning.
        betas: :math:`\beta_1`, the share of the average in the training weights, fixed when a group is
            added, and :math:`\beta_2`, of the running average of squared gradients.
        eps: term added to the denominator, as in Adam.
        weight_decay: decoupled decay of matrices after the search, of :math:`y` and in proportion to the
            rate, as in :class:`AdamW`. Embeddings, biases and other vectors do not decay. Rates differ from
            network to network, so that a value copied from Adam's L2 penalty has no effect.
        steps: number of steps of the training, if it is known: the search then takes at most 30 % of it. A
            longer run is fine.
        params: parameters or parameter groups, as in :class:`SGD`. A group whose own ``lr`` is an interval, a
            distribution or a number up to 0.1 keeps these rates. The others follow the search; there a number
            above 0.1 is the factor of the group, as trainers write it for rate-free optimizers, and an
            ``lr_scale`` (timm's layer decay) multiplies the rates.
        generator: random generator for the places of features in a group's own interval.
        maximize, foreach, process_group: as in :class:`SGD`.
        swap: put the averaged weights into the parameters in evaluation mode. With False they hold the
            training weights in both modes, for a network that acts while it learns.
        recalibrate: in evaluation mode and in checkpoints, compute BatchNorm's running statistics at the
            averaged weights, from the last batches of the training (1,024 rows, or 64 MB). With False they
            are those that training has gathered, as with ``capturable``, shards, ``swap=False`` and compiled
            networks.
        sleep: after the search, leave out copies of the head while their posterior weight is negligible, as
            in :class:`SGD`. None: where it pays, for a classifier on the CPU whose copies have a million
            weights together; False: never.
        capturable: after the search, read nothing on the host, as in :class:`SGD`, so that the step can be
            captured. The search reads a few numbers at each step, on every device. Inside compiled code the
            step runs as it is, between two graphs. Experimental.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.Auto(model, steps=100)
        >>> for _ in range(100):
        ...     x = torch.randn(8, 4)
        ...     loss = torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> optimizer.search.over
        True

    Reference: Defazio et al., "The Road Less Scheduled", 2024, for the averaging; Jordan et al., "Muon",
    2024, for steps of matrices; Mishchenko and Defazio, "Prodigy", 2024, for the search.
    """

    _wide = AlraoOptimizer._wide | WIDE
    _after_refusal = "That step was taken without gradients"
    _small = 2**20  # sets aside too little to matter
    makes_state_early = False

    def __init__(
        self,
        model: Trainable | None = None,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.5, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.3,
        *,
        steps: int | None = None,
        params: Iterable[Any] | None = None,
        generator: Generator | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        process_group: Any = None,
        swap: bool = True,
        recalibrate: bool = True,
        sleep: bool | None = None,
        capturable: bool = False,
    ) -> None:
        check_at_least_0(weight_decay=weight_decay)
        self._weak_decay = _warn_of_decay(weight_decay)
        if not all(0.0 < beta < 1.0 for beta in betas):
            raise ValueError(f"betas must lie strictly between 0 and 1, got {betas!r}")
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps!r}")
        usual = check_factor(lr)
        self.search, lowest = RateSearch.of(steps), RateSearch(over=True).rate
        self._seen: list[Tensor] = []  # what this step has shown of the way from the start
        self._turns: dict[Tensor, int] = {}  # of hidden matrices
        self._matrices: set[Tensor] = set()  # the other matrices
        self._of_copies: dict[Tensor, Tensor] = {}  # rates in units of the body's
        self._in_evaluation, self._told_of_schedule = 0, False
        super().__init__(
            model, (COPIES[0] * lowest, COPIES[1] * lowest),
            {"lr": float(lr), "betas": betas, "eps": eps, "weight_decay": weight_decay},
            params=params, generator=generator, maximize=maximize, foreach=foreach,
            evidence="sum", process_group=process_group, sleep=sleep, capturable=capturable,
        )  # fmt: skip
        self._factors = self._factors if usual else None  # of which it has warned now
        self.search.over = not any(group["follows"] for group in self.param_groups)
        self.averages = Averages(self, swap)
        net = self.model.net
        if recalibrate and swap and not capturable and not self.sharded_modules and batch_norms(net):
            self.averages.statistics = AveragedStatistics(net, self.averages, self.model.finite_statistics)
        self.averages.take_over(self.model)
        self.model.head.start_alike()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("state", "param_groups"):
            self._kept: dict[int, Kept] = {}  # what steps of each group need
        if name in ("state", "param_groups") and hasattr(self, "averages"):
            # The first step replaces the state, and a program to clear it, as fastai's freeze().
            self.averages.follow(self)

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
        if (
            lr is not None and hasattr(lr, "__float__") and float(lr) > LOW
        ):  # as trainers write it for rate-free optimizers
            lr = float(group.pop("lr"))
        follows = "lr" not in group
        if follows and self.param_groups and self.search.over and not self.search.steps:
            if any("step" in state for state in self.state.values()):
                raise ValueError(
                    "this group has no lr of its own, and there is no search that it could follow: all "
                    "groups that were trained so far have their own rates. Give it one too, or build one "
                    "Auto of all groups"
                )
            self.search.over = False
        self._weak_decay = self._weak_decay or _warn_of_decay(group.get("weight_decay", 0.0))
        scale = group.get("lr_scale", 1.0)
        beta, _ = group.get("betas", self.defaults["betas"])  # schedulers may write betas
        super().add_param_group({**group, "follows": follows, "scale": scale, "beta": beta})
        self._turns, self._matrices = matrices_of(self.model.net, self.head_parameters)
        group = self.param_groups[-1]
        if follows and lr is not None:
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr

    def _begin_group(self, group: dict[str, Any], distribution: RateDistribution) -> GroupRates:
        for p in group["params"]:
            if p.is_complex():
                raise ValueError(
                    f"Auto trains real parameters, got one of type {p.dtype} and shape {tuple(p.shape)}: "
                    "keep its real and imaginary parts in a real one (torch.view_as_real), or use alrao.AdamW"
                )
        _refuse_same_memory([p for each in self.param_groups for p in each["params"]])
        return super()._begin_group(group, distribution)

    def _draw_places(self, rates: GroupRates, group: dict[str, Any]) -> None:
        if not group["follows"]:  # the others have one rate for all features
            super()._draw_places(rates, group)

    def _compute(self, rates: GroupRates, group: dict[str, Any]) -> None:
        self._kept.clear()
        if group["follows"]:
            rate = self.search.rate * group["scale"]
            rates.body = Constant(rate)
            rates.copies = LogUniform(*(rate * part for part in COPIES))
            self._show_rate(group)
        group["highest"] = float(rates.body.grid(2)[-1])
        super()._compute(rates, group)

    def set_interval(
        self, group: int = 0, *, body: Interval | None = None, copies: Interval | None = None
    ) -> None:
        """Move the interval of a group that has its own rates; those of the others follow the search."""
        if self.param_groups[group]["follows"]:
            raise ValueError(
                f"the rates of group {group} follow Auto's search, and have no interval to move: change "
                f"param_groups[{group}]['lr'], a factor on them, or give the group its own lr"
            )
        super().set_interval(group, body=body, copies=copies)

    # The modes.

    def train(self) -> None:
        """Put the training weights into the parameters; after :meth:`eval`, before the training continues."""
        self.model.hold(True)
        self.averages.place(True)

    def eval(self) -> None:
        """Put the averaged weights into the parameters. The model's ``eval()`` does this by itself.

        An optimizer that was given parameters without their network sees no mode: call this before an
        evaluation, and before ``net.state_dict()`` is saved for inference.
        """
        self.model.hold(False)
        self.averages.place(False)

    def transform(self, change: Callable[[], None]) -> None:
        """Apply an affine change of the weights to everything that is kept of them."""
        self.averages.transform(change)

    # The step.

    def _begin_step(self, on_device: bool) -> None:
        averages = self.averages
        if not self.state:  # a program has cleared it
            for rates, group in zip(self.rates_of_groups, self.param_groups, strict=True):
                self._draw_places(rates, group)
        if averages.retired:
            raise RuntimeError(
                "another Auto has been built for parameters of this one, and only one optimizer can average "
                "them: step the newer one, or build one Auto for all parameters"
            )
        averages.recognise(stepping=True)
        self._notice_mode(averages.evaluating and averages.differ)
        self._notice_factor()
        averages.leave()
        averages.notice_changes(reads=not on_device)

    def _notice_mode(self, evaluating: bool) -> None:
        """Warn once of a training that goes on in evaluation mode, or of gradients of the other mode."""
        self.model.check_gradients(evaluating)
        if evaluating or self._in_evaluation:
            self._in_evaluation = self._in_evaluation + 1 if evaluating else 0
        if self._in_evaluation == PATIENCE:
            warn(
                f"{PATIENCE} steps in a row were made in evaluation mode, with gradients at the averaged "
                "weights, which learns more slowly: call model.train() before the training. To freeze "
                "dropout or BatchNorm, call eval() of those layers only"
            )

    def _notice_factor(self) -> None:
        """Warn once of a schedule that has lowered the factor so far that the weights hardly move."""
        if self._told_of_schedule or not self.search.over:
            return
        following = [group for group in self.param_groups if group["follows"]]
        factors = [group["lr"] for group in following]
        if not following or any(isinstance(factor, Tensor) for factor in factors) or 1.0 in factors:
            return
        factor = max(factors)
        if 0 < factor < LOW < max(group.get(HIGHEST, 0.0) for group in following):
            self._told_of_schedule = True
            warn(
                f"param_groups[…]['lr'] has fallen to {factor:.3g}, a factor on the rate that Auto has "
                "found, so that the weights hardly move. Auto averages the weights and needs no schedule: "
                "leave the scheduler out"
            )

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        searching, kept = not self.search.over, self._kept.get(id(group))
        kept = kept if kept and kept.states is u.states else None
        y, g = list(u.params), list(u.grads)
        narrow = [] if kept else [i for i, state in enumerate(u.states) if "rest" in state]
        rounded, rests = [y[i] for i in narrow], [u.states[i]["rest"] for i in narrow]
        if narrow:
            wide = widened(rounded)
            torch._foreach_add_(wide, widened(rests))
            for i, of_weight, of_gradient in zip(narrow, wide, widened([g[i] for i in narrow]), strict=True):
                y[i], g[i] = of_weight, of_gradient
        pairs = zip(g, y, strict=True)
        g = [grad if grad.dtype == each.dtype else grad.to(each.dtype) for grad, each in pairs]
        weight_decay, longest = group["weight_decay"], PERIOD * group["highest"]
        if weight_decay * longest > 1:  # at most all of a weight decays
            weight_decay = 1 / longest
        lr = _usable(u.factor, 1 / (weight_decay * longest) if weight_decay * longest > 0 else LARGEST_FACTOR)
        rates: list[Any] = u.rates
        if searching and group["follows"]:
            self._observe_way(u.whole, u.states, y, g, group["betas"][1])
            # Copies are alike until the rate is known. A schedule starts from that.
            rates = [self.search.rate * group["scale"]] * len(y)
            lr = 1.0 if u.factor != 0 else 0.0
        if kept is None:
            kept = self._gathered(u, y, rates)
            if not (searching or narrow) and u.whole is u.params:
                self._kept[id(group)] = kept
        for weights in kept.ages:
            take_step(
                weights, [g[i] for i in weights.at], kept.rate, lr=lr, beta=group["beta"],
                beta2=group["betas"][1], eps=group["eps"], weight_decay=0.0 if searching else weight_decay,
                falls=group["follows"] and not searching, newest=group.get("stands_for", 1),
            )  # fmt: skip
        if narrow:
            round_to_(rounded, rests, [y[i] for i in narrow])
        if group["follows"]:
            self._show_rate(group)

    def _show_rate(self, group: dict[str, Any]) -> None:
        """Write the present learning rate into a group; the rate found, where counters are on a device."""
        k = next((self.state[p]["k"] for p in group["params"] if "k" in self.state.get(p, {})), 0)
        group["d"] = self.search.rate * group["scale"] * (1.0 if isinstance(k, Tensor) else rate_left(k))

    def _gathered(self, u: GroupUpdate, y: list[Tensor], rates: list[Any]) -> Kept:
        """Return what steps of some parameters need, until something of it changes."""
        rate = next((each for each in rates if not isinstance(each, Tensor)), 1.0)
        ages: dict[Any, list[int]] = {}  # by the steps behind them
        for i, state in enumerate(u.states):
            ages.setdefault((state["step"], state["k"]), []).append(i)
        weights = [
            Weight(
                y[i], state,
                rates=self._in_units_of(rate, rates[i], p) if isinstance(rates[i], Tensor) else None,
                turn=self._turns[whole] if "exp_avg" in state else None,
                decays=whole in self._matrices,
                whole=None if whole is p else whole,
            )
            for i, (p, whole, state) in enumerate(zip(u.params, u.whole, u.states, strict=True))
        ]  # fmt: skip
        of_ages = [Weights([weights[i] for i in at], at) for at in ages.values()]
        return Kept(u.params, u.states, len(self.state), of_ages, rate)

    def _end_step(self, on_device: bool) -> None:
        if self._seen:
            self._follow_search()
        averages, head = self.averages, self.model.head
        head.training_weights = False  # of an earlier run: this one continues from them
        averages.note(reads=not on_device)
        averages.on_device = self.on_device
        if averages.statistics is not None:
            averages.statistics.stepped()
        if averages.swap and not self.model.training:
            averages.enter()

    def _in_units_of(self, rate: float, own: Tensor, p: Tensor) -> Tensor:
        """Return rates of a parameter in units of another; those of copies, which never change, are kept."""
        if rate == 1.0:
            return own
        found = self._of_copies.get(p)
        if found is None or found.device != own.device:
            found = own / rate
            if p in self.head_parameters:
                self._of_copies[p] = found
        return found

    def _states_of(self, params: list[Tensor], group: dict[str, Any]) -> list[dict[str, Any]]:
        searching, kept = not self.search.over, self._kept.get(id(group))
        if kept and kept.fits(params, len(self.state)):
            return kept.states
        self._kept.pop(id(group), None)
        states: list[dict[str, Any]] = [self.state[p] for p in params]
        new = [p for p in params if "step" not in self.state[p]]
        if new and group["follows"]:
            self._notice_late(new)
        for p in new:
            self.state[p] |= {"step": 0, "k": 0}
            if not searching:
                self._begin_average(p, self.state[p])
                continue
            self.state[p]["exp_avg_sq"] = torch.zeros_like(p, dtype=wide_dtype(p))
            if group["follows"]:
                self.state[p]["start"] = p.detach().clone()
        if new:
            self._share_counts(new, group)
        for p, state in zip(params, states, strict=True):
            if p.dtype.itemsize < 4 and "rest" not in state:  # new, or cast since the last step
                state["rest"] = torch.zeros_like(p)  # what rounding has taken from it
            for key in WIDE & state.keys():
                if state[key].dtype != p.dtype and state[key].dtype != wide_dtype(p):
                    state[key] = state[key].to(wide_dtype(p))
        return states

    def _count(self, update: GroupUpdate, group: dict[str, Any]) -> None:
        params, states = update.params, update.states
        if self.search.over and group["capturable"]:
            if len(params) < len(group["params"]):
                others = set(group["params"]) - set(params)
                separate_counts(states, [self.state[p] for p in others if p in self.state])
            torch._foreach_add_(list({id(s[key]): s[key] for s in states for key in COUNTS}.values()), 1)
            return
        for p, state in zip(params, states, strict=True):
            state["step"] += 1
            if self.search.over:
                state["k"] += 1
            elif state["step"] > 1 and "x" not in state:  # after one step, x is y
                state["x"] = training_weights(p, state).to(wide_dtype(p), copy=True)

    def _share_counts(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Put the counters of parameters where captured steps count: in tensors that a group shares."""
        if self.search.over and group["capturable"]:
            counted = [p for p in params if "step" in self.state.get(p, {})]
            share_counts(counted, [self.state[p] for p in counted])

    def _notice_late(self, params: list[Tensor]) -> None:
        """Search again for parameters that outweigh the earlier ones, as an unfrozen body does, or warn."""
        late, copies = set(params), max(1, self.model.head.copies)
        steps = {p: state["step"] for p, state in self.state.items() if "step" in state}
        earlier = {p for p, step in steps.items() if isinstance(step, Tensor) or step > 1} - late
        new, old = (
            sum(p.numel() / (copies if p in self.head_parameters else 1) for p in each)
            for each in (late, earlier)
        )
        if not 0 < old < new:
            return
        if not self.search.over:
            self.search, self._seen = RateSearch(self.search.longest), []
            for p in earlier:
                self.state[p].get("start", p.detach()).copy_(p)
        elif self.search.steps:
            warn(
                f"{len(late)} parameters, most of the weights, are trained for the first time after the "
                f"search has ended with the others, at the rate {self.search.rate:.3g}, which may be wrong "
                "for them: build a new alrao.Auto when you unfreeze them, so that it searches again"
            )

    def _begin_average(self, p: Tensor, state: dict[str, Any]) -> None:
        """Make what a parameter needs once the search is over."""
        state.pop("start", None)
        average = state.pop("x", None)  # of the search, which is calmer than its last weights
        if average is not None and p.grad is not None:  # a step leaves frozen ones as they are
            p.copy_(average)
            if "rest" in state:  # foreach functions do not take shards
                round_to_([local(p)], [local(state["rest"])], [local(average).clone()])
        state["z"] = training_weights(p, state).to(wide_dtype(p), copy=True)
        if p in self._turns:
            state.pop("exp_avg_sq", None)
            state["exp_avg"] = torch.zeros_like(state["z"])
        elif "exp_avg_sq" not in state:
            state["exp_avg_sq"] = torch.zeros_like(state["z"])

    def _can_be_cut(self, state: dict[str, Any]) -> bool:
        return "z" in state and "exp_avg" not in state  # a matrix moves as a whole

    def _may_sleep(self) -> bool:
        return self.search.over

    def _hyperparams_for_skipped(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {**group, "betas": (beta1, beta2**steps), "stands_for": steps}

    # The search.

    def _observe_way(
        self, params: list[Tensor], states: list[Any], y: list[Tensor], g: list[Tensor], beta2: float
    ) -> None:
        """Note how far parameters have come from their start, and what that has gained, before they move."""
        way = torch._foreach_sub([state["start"].to(wide) for state, wide in zip(states, y, strict=True)], y)
        gained = [each.sum() for each in torch._foreach_mul(way, g)]
        biases = [1 - beta2 ** max(1, state["step"] - 1) for state in states]
        roots = torch._foreach_div([state["exp_avg_sq"] for state in states], biases)
        torch._foreach_sqrt_(roots)
        torch._foreach_abs_(way)
        torch._foreach_mul_(way, roots)
        wide = widest(y[0].device)
        both = torch.stack([each.to(wide) for each in (*gained, *torch._foreach_norm(way, 1))]).view(2, -1)
        for i, p in enumerate(params):
            if is_shard(p):
                both[:, i] = over_shards(both[:, i], p)
        of_copies = 1 / max(1, self.model.head.copies)  # which are alike, and count as one
        shares = [of_copies if p in self.head_parameters else 1.0 for p in params]
        self._seen.append(both @ both.new_tensor(shares))

    def _follow_search(self) -> None:
        gained, size = torch.stack(self._seen).sum(0).tolist()
        self._seen = []
        self.search.observe(gained, size)
        if self.search.over:
            self._end_search()
        self.compute_rates()

    def _end_search(self) -> None:
        """Begin to average: make all that the averaging needs, and report what the search has found."""
        for p, state in self.state.items():
            if "step" in state:
                self._begin_average(p, state)
        for group in self.param_groups:
            self._share_counts(group["params"], group)
        following = [group for group in self.param_groups if group["follows"]]
        factor = min((float(group["lr"]) for group in following), default=1.0)
        leading = ""
        if self.model.head.copies:
            weights = self.model.head.averaging.weights
            leading = f", copy {int(weights.argmax()) + 1} of {len(weights)} leads with {weights.max():.2g}"
        steps, rate = self.search.steps, self.search.rate
        logger.info("the search has ended at step %d: learning rate %.3g%s", steps, rate, leading)
        highest = max((group[HIGHEST] for group in following), default=1.0)
        if factor < 0.5 and highest > LOW:  # lower ones may be learning rates, which have their own warning
            self._told_of_schedule = True
            warn(
                f"param_groups[…]['lr'] is {factor:.3g} at the end of Auto's search, and multiplies the rate "
                "that it has found from now on. Auto needs no schedule: leave the scheduler out, and the "
                "factor at 1.0"
            )

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with that of the search, and a fingerprint of the weights that it belongs to.

        It has the same tensors at every moment, so that what is to be loaded is known: the start of the
        search is under ``z``, and the momentum of a hidden matrix under ``exp_avg_sq``.
        """
        with torch.no_grad():
            self.averages.notice_changes()
        packed = super().state_dict()
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in enumerate(params):
            state = packed["state"].get(i, {})
            if "step" in state:
                kept = {key: value for key, value in state.items() if key not in ("start", "exp_avg")}
                if "exp_avg" in state:
                    kept["exp_avg_sq"] = state["exp_avg"]
                if "z" not in kept:
                    kept["z"] = state.get("start", p.detach()).to(wide_dtype(p), copy=True)
                counts = {key: int(state[key]) for key in COUNTS}
                flags = {"edited": state.get("edited", False), "orthogonal": "exp_avg" in state}
                state = {**kept, **counts, **flags}
            if "step" in state or "y" in state:
                packed["state"][i] = {**state, "fingerprint": self.averages.fingerprint(p)}
        whole = {"search": dataclasses.asdict(self.search), "evaluating": self.averages.evaluating}
        if self.averages.statistics is not None:
            whole["statistics"] = self.averages.statistics.state_dict()
        packed["param_groups"][0]["auto"] = whole
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, before or after the weights of the model."""
        checkpoint.check_version(state_dict)
        groups = [dict(group) for group in state_dict["param_groups"]]
        whole, *_ = [group.pop("auto", None) for group in groups]
        if whole is None:
            raise ValueError(
                "this is the state of another optimizer than Auto: build the one that it was saved from"
            )
        super().load_state_dict({**state_dict, "param_groups": groups})
        self.search = RateSearch(**whole["search"])
        self._seen, self._of_copies = [], {}
        for group in self.param_groups:
            for p in group["params"]:
                self._settle_state(p, self.state.get(p, {}), group["follows"])
            self._share_counts(group["params"], group)
        self.compute_rates()
        self.averages.follow(self)
        self.averages.on_device = self.on_device
        if self.averages.statistics is not None:
            self.averages.statistics.load_state_dict(whole.get("statistics"))
        marks = {p: state.pop("fingerprint") for p, state in self.state.items() if "fingerprint" in state}
        self.averages.expect(marks, whole["evaluating"])
        if not self.averages.expecting:
            self.averages.place(self.model.training)

    def _settle_state(self, p: Tensor, state: dict[str, Any], follows: bool) -> None:
        """Put what a checkpoint has of a parameter where the present phase needs it."""
        if not state.get("edited", True):
            del state["edited"]
        if "step" in state:
            state |= {key: int(state.get(key, 0)) for key in COUNTS}
        if "z" in state and not self.search.over:
            start = state.pop("z")
            if follows:
                state["start"] = start.to(p.dtype)
        if state.pop("orthogonal", False):
            state["exp_avg"] = state.pop("exp_avg_sq")

    def _move_counters(self, p: Tensor) -> None:
        """Leave the counters: captured steps make tensors of them."""

    def _replace_parameters(self, new: dict[Tensor, Tensor]) -> None:
        super()._replace_parameters(new)
        self._turns = {new.get(p, p): turn for p, turn in self._turns.items()}
        self._matrices = {new.get(p, p) for p in self._matrices}
        self.averages.follow(self)

    def __getstate__(self) -> dict[str, Any]:
        with torch.no_grad():
            self.averages.notice_changes()
        return {**super().__getstate__(), "_kept": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model" in state:  # a copy or a pickle, not a loaded state
            self.averages.follow(self)
            self.averages.note(reads=not self.on_device)
            self.averages.take_over(self.model)
            if self.averages.statistics is not None:
                self.averages.statistics.watch()


class AutoScheduleFree(Auto):
    """:class:`Auto` under a name by which trainers know to call ``eval()`` and ``train()`` around a save.

    Scripts such as kohya's call them for classes whose names end in ``ScheduleFree``, and for no others.
    """


def _refuse_same_memory(params: list[Tensor]) -> None:
    """Raise for different parameters over the same memory: each would have an average of its own steps.

    Frozen ones, as of ``Embedding.from_pretrained``, follow what is trained.
    """
    found: dict[int, Tensor] = {}
    for p in params:
        plain = type(p) in (torch.nn.Parameter, Tensor) and p.requires_grad and p.numel() > 0
        at = p.data_ptr() if plain else 0  # 0 on meta
        if at and found.get(at, p) is not p:
            raise ValueError(
                f"two parameters of shapes {tuple(found[at].shape)} and {tuple(p.shape)} have the same "
                "memory, which Auto would average twice: use one parameter in both places, as in "
                "F.linear(x, encoder.weight.T), or alrao.AdamW"
            )
        found[at] = p


def _warn_of_decay(weight_decay: Any) -> bool:
    """Warn of a decay that is too weak to matter; return whether it is."""
    weak = isinstance(weight_decay, float) and 0 < weight_decay < LEAST_DECAY
    if weak:
        warn(
            f"weight_decay={weight_decay:g} has no effect in Auto, whose decay is decoupled and "
            "multiplied by the rate: it may be copied from an L2 penalty of Adam or SGD. Leave it out "
            "for the default, 0.3, or pass 0.0 for no decay"
        )
    return weak


def _usable(factor: Any, most: float) -> Any:
    """Return a factor on all rates with which no step can overflow; 0 for one that is no number."""
    most = min(most, LARGEST_FACTOR)
    if isinstance(factor, Tensor):
        return zero_nonfinite(factor).clamp(max=most)
    return min(factor, most) if is_finite(factor) else 0.0
