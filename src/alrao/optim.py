"""SGD, Adam and AdamW that take an interval of learning rates where torch's take one."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Generator, Tensor, nn

from .fused import sane
from .optimizer import AlraoOptimizer
from .rates import Rate
from .update import GroupUpdate

__all__ = ["SGD", "Adam", "AdamW"]


class SGD(AlraoOptimizer):
    r"""Stochastic gradient descent with a learning rate of its own for every feature: the paper's Alrao.

    For feature :math:`i` with the drawn rate :math:`\eta_i`, and the factor :math:`\gamma` in
    ``param_groups[…]["lr"]``, 1.0 unless a scheduler moves it,

    .. math:: \theta_i \leftarrow \theta_i - \gamma\, \eta_i\, v_i

    where :math:`v_i` is the gradient, or torch's momentum of it. Copy :math:`j` of the output layer has the
    :math:`j`-th rate of an even grid. With a number for ``lr`` and one copy this is
    :class:`torch.optim.SGD`, to the bit.

    Args:
        model: an :class:`Alrao` model, or what DDP or ``torch.compile`` made of it.
        lr: an interval ``(low, high)`` from which the rates are drawn log-uniformly, a law such as
            :class:`LogUniform`, or one number for all.
        momentum: as in torch, as are the next three.
        dampening: dampening of the momentum.
        weight_decay: L2 penalty.
        nesterov: Nesterov's momentum.
        params: parameters or parameter groups, as torch's optimizers take them; a group may have an ``lr``
            (interval, law or number) and a ``weight_decay`` of its own. By default all of the model.
        generator: where the rates are drawn from; by default torch's own.
        maximize: maximize the objective instead of minimizing it.
        foreach: update all parameters of a group at once: faster on some devices, with more memory.
        process_group: the processes that train this model together, for the posterior; by default all.

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
        model: nn.Module,
        lr: Rate = (1e-5, 10.0),
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        params: Iterable[Any] | None = None,
        generator: Generator | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        process_group: Any = None,
    ) -> None:
        _check_at_least_0(momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"Nesterov momentum needs a momentum and no dampening, got momentum={momentum}, "
                f"dampening={dampening}"
            )
        _refuse(capturable=capturable, differentiable=differentiable, fused=fused)
        defaults = {
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(
            model, lr, defaults,
            params=params, generator=generator, maximize=maximize, foreach=foreach,
            process_group=process_group,
        )  # fmt: skip

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        grads = u.grads
        if group["weight_decay"] != 0:
            grads = u.decayed(group["weight_decay"])
        if group["momentum"] != 0:
            grads = self._momentum(group, u.params, grads)
        u.move(grads)

    def _sets_nothing_aside(self, group: dict[str, Any]) -> bool:
        return self._takes_sparse(group) and not group["maximize"]

    def _momentum(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        buffers, moved = [], []
        for p, grad in zip(params, grads, strict=True):
            state = self.state[p]
            if "momentum_buffer" in state:
                buffers.append(state["momentum_buffer"])
                moved.append(grad)
            else:
                state["momentum_buffer"] = grad.clone()
        if buffers:
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, moved, alpha=1 - group["dampening"])
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        if group["nesterov"]:
            return list(torch._foreach_add(grads, buffers, alpha=group["momentum"]))
        return buffers

    def _takes_sparse(self, group: dict[str, Any]) -> bool:
        return group["weight_decay"] == 0 and group["momentum"] == 0

    def _update_sparse(
        self, group: dict[str, Any], param: Tensor, grad: Tensor, rate: Tensor | float
    ) -> None:
        grad = grad.coalesce()
        (rows,), values = grad.indices(), grad.values()
        values = torch.where(sane(values), values, 0)
        values = values * (rate if isinstance(rate, float) else rate.expand_as(param)[rows])
        param.index_add_(0, rows, values.to(param.dtype), alpha=-group["lr"])


class Adam(AlraoOptimizer):
    r"""Adam with a learning rate of its own for every feature (the paper's appendix E).

    The drawn rates multiply Adam's update: :math:`\theta_i \leftarrow \theta_i - \gamma\, \eta_i\,
    \hat m_i / (\sqrt{\hat v_i} + \epsilon)`. With a number for ``lr`` and one copy this is
    :class:`torch.optim.Adam`, to the bit.

    Args:
        model: an :class:`Alrao` model.
        lr: an interval, a law or a number, as in :class:`SGD`. Adam's steps are normalised, so that its
            interval is another one.
        betas: as in torch, as are the next three.
        eps: term added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: use the AMSGrad variant.
        params: parameters or parameter groups, as in :class:`SGD`.
        generator: where the rates are drawn from.
        maximize: maximize the objective instead of minimizing it.
        foreach: update all parameters of a group at once.
        process_group: the processes that train this model together, for the posterior.
    """

    _decoupled = False

    def __init__(
        self,
        model: nn.Module,
        lr: Rate = (1e-6, 1.0),
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        params: Iterable[Any] | None = None,
        generator: Generator | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        process_group: Any = None,
    ) -> None:
        _check_at_least_0(eps=eps, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas!r}")
        _refuse(capturable=capturable, differentiable=differentiable, fused=fused)
        defaults = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(
            model, lr, defaults,
            params=params, generator=generator, maximize=maximize, foreach=foreach,
            process_group=process_group,
        )  # fmt: skip

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        (beta1, beta2), params, grads = group["betas"], u.params, u.grads
        if group["weight_decay"] != 0:
            if self._decoupled:
                u.shrink(group["weight_decay"])
            else:
                grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        states = [self._moments(p, group["amsgrad"]) for p in params]
        for state in states:
            state["step"] += 1
        averages = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(averages, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        if group["amsgrad"]:
            highest = [state["max_exp_avg_sq"] for state in states]
            torch._foreach_maximum_(highest, squares)
            squares = highest
        steps = [state["step"].item() for state in states]
        denominators = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(denominators, [sqrt(1 - beta2**step) for step in steps])
        torch._foreach_add_(denominators, group["eps"])
        u.move_ratio(averages, denominators, [1 - beta1**step for step in steps])

    def _moments(self, param: Tensor, amsgrad: bool) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[param]
        if "exp_avg" not in state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(param)
        return state


class AdamW(Adam):
    r"""Adam with decoupled weight decay, and a learning rate of its own for every feature.

    The decay of a feature goes with its rate: its weights shrink by the factor
    :math:`\max(0, 1 - \gamma\,\eta_i\,\lambda)` at each step. With a number for ``lr`` and one copy this is
    :class:`torch.optim.AdamW`, to the bit.

    Args:
        model: an :class:`Alrao` model.
        lr: an interval, a law or a number, as in :class:`Adam`.
        betas: as in torch, as are the next three.
        eps: term added to the denominator.
        weight_decay: the decay :math:`\lambda`.
        amsgrad: use the AMSGrad variant.
        **kwargs: as in :class:`Adam`.
    """

    _decoupled = True

    def __init__(
        self,
        model: nn.Module,
        lr: Rate = (1e-6, 1.0),
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, lr, betas, eps, weight_decay, amsgrad, **kwargs)


def _check_at_least_0(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value!r}")


def _refuse(**flags: bool | None) -> None:
    reasons = {
        "capturable": "each step looks at the evidence on the host, which a CUDA graph cannot",
        "differentiable": "the posterior's update has no derivative",
        "fused": "no fused kernel knows of a rate for each feature",
    }
    for name, flag in flags.items():
        if flag:
            raise ValueError(f"{name}=True is not supported: {reasons[name]}. Leave it out")
