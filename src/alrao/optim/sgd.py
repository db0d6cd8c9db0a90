"""SGD with an interval of learning rates: the paper's method."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from ..finite import zero_unusable
from ..rates import Rate
from ..runtime.capturable import counter
from ..trainable import Trainable
from .base import AlraoOptimizer, Options, check_at_least_0
from .update import GroupUpdate


class SGD(AlraoOptimizer):
    r"""SGD with a learning rate for every feature: the paper's method.

    For feature :math:`i` with the rate :math:`\eta_i`, and the factor :math:`\gamma` in
    ``param_groups[…]["lr"]``, 1.0 unless a scheduler changes it,

    .. math:: \theta_i \leftarrow \theta_i - \gamma\, \eta_i\, v_i

    where :math:`v_i` is the gradient, or torch's momentum of it. Copy :math:`j` of the head has the
    :math:`j`-th rate of an even grid. With a number for ``lr`` and one copy this is
    :class:`torch.optim.SGD`, to the bit.

    Args:
        model: an :class:`Alrao` model, possibly wrapped by DDP or ``torch.compile``; or, for any
            loss, a plain network, a list of them, or parameters or parameter groups, as torch's optimizers
            take them. Those of an Alrao model stand for the model. Of others the layers are not known:
            axis 0 of a parameter has its features, and the entries of a vector are its features. By their
            names, as in ``net.named_parameters()``, parameters of one layer share features.
        lr: an interval ``(low, high)`` from which the rates are drawn log-uniformly, a
            :class:`RateDistribution`, or one number for all features.
        momentum: momentum factor, as in torch.
        dampening: dampening of the momentum, as in torch.
        weight_decay: L2 penalty, as in torch.
        nesterov: use Nesterov's momentum, as in torch.
        params: parameters or parameter groups, beside a model or without one; a group may have its own
            ``lr`` (interval, distribution or number) and ``weight_decay``. By default all of the model's.
        generator: random generator for the rates; by default torch's global one.
        maximize: maximize the objective instead of minimizing it.
        foreach: update all parameters of a group at once: faster on some devices, with more memory.
        capturable: never read anything on the host, not even on the CPU, so that a step can be compiled
            or captured; ``param_groups[…]["lr"]`` is then a tensor. Devices other than the CPU are never
            read, with or without it.
        evidence: what a batch counts for in the posterior: the ``"mean"`` log-likelihood of its observations,
            as in the paper, or their ``"sum"`` (experimental).
        process_group: the processes that train this model together; by default all.
        sleep: leave out copies of the head while their posterior weight is negligible. It saves most of the
            time of a large output layer, on the CPU. Off by default: the paper's method trains all copies.
            Experimental.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.SGD(model, lr=(1e-4, 1.0), momentum=0.9)
        >>> optimizer.rates(net[0].weight).shape
        torch.Size([8, 1])

    Reference: Blier, Wolinski, Ollivier, "Learning with Random Learning Rates", 2019, algorithm 1.
    """

    def __init__(
        self,
        model: Trainable | None = None,
        lr: Rate = (1e-5, 10.0),
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **kwargs: Unpack[Options],
    ) -> None:
        check_at_least_0(momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"nesterov=True needs a positive momentum and no dampening, got momentum={momentum}, "
                f"dampening={dampening}"
            )
        defaults = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(model, lr, {**defaults, "nesterov": nesterov}, **kwargs)

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        grads = u.grads
        if group["weight_decay"] != 0:
            grads = u.decayed(group["weight_decay"])
        if group["momentum"] != 0:
            grads = self._momentum(group, u, grads)
        u.move(grads)

    def _hyperparams_for_skipped(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        momentum = group["momentum"]
        kept = momentum**steps
        fresh = (1 - group["dampening"]) * (1 - kept) / (1 - momentum) if momentum != 1 else steps
        return {**group, "momentum": kept, "dampening": 1 - fresh}

    def _foreach_is_cheap(self, group: dict[str, Any]) -> bool:
        return self._takes_sparse(group) and not group["maximize"]

    def _momentum(self, group: dict[str, Any], u: GroupUpdate, grads: list[Tensor]) -> list[Tensor]:
        dampening, on_device = group["dampening"], u.stopped is not None
        buffers, dampened = [state["momentum_buffer"] for state in u.states], grads
        if on_device and dampening != 0:
            shares = list(torch._foreach_sub([state["step"] for state in u.states], 1.0))
            torch._foreach_clamp_min_(shares, 0.0)
            torch._foreach_clamp_max_(shares, 1.0)  # the first gradient is not dampened
            torch._foreach_mul_(shares, -dampening)
            torch._foreach_add_(shares, 1.0)
            dampened = list(torch._foreach_mul(grads, shares))
        u.scale_(buffers, group["momentum"])
        torch._foreach_add_(buffers, dampened, alpha=1 if on_device else 1 - dampening)
        for i, state in enumerate(u.states if dampening != 0 and not on_device else ()):
            if state.get("step") == 1:
                buffers[i].copy_(grads[i])
        if group["nesterov"]:
            return list(torch._foreach_add(grads, buffers, alpha=group["momentum"]))
        return buffers

    def _new_state(self, p: Tensor, group: dict[str, Any]) -> None:
        if group["momentum"] != 0:
            state = self.state[p]
            if group["dampening"] != 0 and "step" not in state:  # a state that does not count has made a step
                state["step"] = counter(p, self.on_device) + ("momentum_buffer" in state)
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)

    def _takes_sparse(self, group: dict[str, Any]) -> bool:
        return group["weight_decay"] == 0 and group["momentum"] == 0

    def _update_sparse(self, group: dict[str, Any], param: Tensor, grad: Tensor, rate: Any) -> None:
        grad = grad.coalesce()
        (rows,), values = grad.indices(), zero_unusable(grad.values())
        values = values * (rate if isinstance(rate, float) else rate.expand_as(param)[rows])
        if isinstance(group["lr"], Tensor):
            param.index_add_(0, rows, (values * group["lr"]).to(param.dtype), alpha=-1)
        else:
            param.index_add_(0, rows, values.to(param.dtype), alpha=-group["lr"])
