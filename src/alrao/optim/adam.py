"""Adam and AdamW with an interval of learning rates."""

from __future__ import annotations

from math import sqrt
from typing import Any, Unpack

import torch
from torch import Tensor

from ..rates import Rate
from ..runtime.capturable import counter
from ..trainable import Trainable
from .base import AlraoOptimizer, Options, check_at_least_0
from .update import GroupUpdate


class Adam(AlraoOptimizer):
    r"""Adam with a learning rate for every feature (the paper's appendix E).

    The rates multiply Adam's update: :math:`\theta_i \leftarrow \theta_i - \gamma\, \eta_i\,
    \hat m_i / (\sqrt{\hat v_i} + \epsilon)`. With a number for ``lr`` and one copy this is
    :class:`torch.optim.Adam`, to the bit.

    Args:
        model: an :class:`Alrao` model, a plain network, or parameters, as in :class:`SGD`.
        lr: an interval, a distribution or a number, as in :class:`SGD`. Its default differs from SGD's
            because Adam's steps are normalised.
        betas: coefficients of the running averages, as in torch.
        eps: term added to the denominator, as in torch.
        weight_decay: L2 penalty, as in torch.
        amsgrad: use the AMSGrad variant, as in torch.
        **kwargs: as in :class:`SGD`.
    """

    _decoupled = False

    def __init__(
        self,
        model: Trainable | None = None,
        lr: Rate = (1e-6, 1.0),
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **kwargs: Unpack[Options],
    ) -> None:
        check_at_least_0(eps=eps, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas!r}")
        defaults = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(model, lr, defaults, **kwargs)

    def _update(self, group: dict[str, Any], u: GroupUpdate) -> None:
        if any(p.is_complex() for p in u.params):
            u = u.of_real_numbers()
        (beta1, beta2), grads = group["betas"], u.grads
        if group["weight_decay"] != 0:
            if self._decoupled:
                u.shrink(group["weight_decay"])
            else:
                grads = u.penalised(group["weight_decay"])
        exp_avgs = [state["exp_avg"] for state in u.states]
        exp_avg_sqs = [state["exp_avg_sq"] for state in u.states]
        if u.stopped is None:
            torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        else:
            u.scale_(exp_avgs, beta1)
            torch._foreach_add_(exp_avgs, grads, alpha=1 - beta1)
        u.scale_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
        if group["amsgrad"]:
            highest = [state["max_exp_avg_sq"] for state in u.states]
            torch._foreach_maximum_(highest, exp_avg_sqs)
            exp_avg_sqs = highest
        corrections, roots = _bias_corrections(u, beta1, beta2)
        denominators = list(torch._foreach_sqrt(exp_avg_sqs))
        torch._foreach_div_(denominators, roots)
        torch._foreach_add_(denominators, group["eps"])
        u.move_ratio(exp_avgs, denominators, corrections)

    def _hyperparams_for_skipped(self, group: dict[str, Any], steps: int) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {**group, "betas": (beta1**steps, beta2**steps)}

    def _new_state(self, param: Tensor, group: dict[str, Any]) -> None:
        state: dict[str, Tensor] = self.state[param]
        if "exp_avg" not in state:
            state["step"] = counter(param, self.on_device)
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        if group["amsgrad"] and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(param)


class AdamW(Adam):
    r"""Adam with decoupled weight decay, and a learning rate for every feature.

    The decay of a feature is proportional to its rate: each step multiplies its weights by
    :math:`\max(0, 1 - \gamma\,\eta_i\,\lambda)`. With a number for ``lr`` and one copy this is
    :class:`torch.optim.AdamW`, to the bit.

    Args:
        model: an :class:`Alrao` model, a plain network, or parameters, as in :class:`SGD`.
        lr: an interval, a distribution or a number, as in :class:`Adam`.
        betas: coefficients of the running averages, as in torch.
        eps: term added to the denominator, as in torch.
        weight_decay: the decay :math:`\lambda`, as in torch.
        amsgrad: use the AMSGrad variant, as in torch.
        **kwargs: as in :class:`SGD`.
    """

    _decoupled = True

    def __init__(
        self,
        model: Trainable | None = None,
        lr: Rate = (1e-6, 1.0),
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **kwargs: Unpack[Options],
    ) -> None:
        super().__init__(model, lr, betas, eps, weight_decay, amsgrad, **kwargs)


def _bias_corrections(u: GroupUpdate, beta1: float, beta2: float) -> Any:
    """Return what ``exp_avg`` and the root of ``exp_avg_sq`` are divided by."""
    steps = [state["step"] for state in u.states]
    if u.stopped is None:
        counts = [step.item() for step in steps]
        return [1 - beta1**count for count in counts], [sqrt(1 - beta2**count) for count in counts]
    counted = torch._foreach_clamp_min(steps, 1.0)  # 0 after none but refused ones
    powers = [list(torch._foreach_pow(beta, counted)) for beta in (beta1, beta2)]
    for each in powers:
        torch._foreach_mul_(each, -1)
        torch._foreach_add_(each, 1)
    return powers[0], torch._foreach_sqrt(powers[1])
