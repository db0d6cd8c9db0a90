"""A step of Auto by tensor operations only: both of its phases at once, with masks between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..finite import zero_nonfinite
from .gradient_point import PointOnDevice
from .on_device import DeviceUpdate

__all__ = ["averaging_step", "on_host"]


def averaging_step(
    u: DeviceUpdate,
    states: list[dict[str, Any]],
    y: list[Tensor],
    g: list[Tensor],
    group: dict[str, Any],
    searching: Tensor,
    point: PointOnDevice,
) -> None:
    r"""Move the training weights :math:`y` and, once the search is over, :math:`z` and the average.

    With the step :math:`\delta` of each weight and :math:`c_k` as in :class:`Auto`,

    .. math:: y \leftarrow y + c_k (z - y) - (1 - \beta (1 - c_k))\, \delta, \qquad z \leftarrow z - \delta

    where, in the search, :math:`c_k = 0`, the factor of :math:`\delta` is 1 and :math:`z` stays: it holds the
    start meanwhile. Where :math:`\beta` changes, to :math:`\beta'`, the first :math:`c_k` is
    :math:`1 - (1 - c_k) \beta' / \beta`, and the second factor has :math:`\beta'`.

    Args:
        u: the update; its gradients are not used.
        states: of each parameter ``v``, ``z``, and the counts ``step`` and ``k``.
        y: the training weights, which change in place.
        g: the gradients, in the types of ``y``; overwritten, to set little memory aside.
        group: the settings.
        searching: whether the search goes on, a single Boolean.
        point: what changes the ``beta`` of states that have one.
    """
    beta, (_, beta2), live = group["beta"], group["betas"], u.live
    averaging = (~searching).to(live.dtype)
    v, z, k = ([state[key] for state in states] for key in ("v", "z", "k"))

    # The first step after the search starts from z = y, whatever was there.
    first = [(count == 0) & ~searching for count in k]
    torch._foreach_copy_(z, [torch.where(*each) for each in zip(first, y, z, strict=True)])
    point.observe(z, y, g)

    unbias = u.unbias(beta2, u.count([state["step"] for state in states]))
    torch._foreach_sqrt_(unbias)
    u.scale_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    below = list(torch._foreach_sqrt(v))
    torch._foreach_add_(below, list(torch._foreach_mul(unbias, group["eps"])))
    pace = zero_nonfinite(u.pace)
    rates = [u.constant] * len(y) if u.constant is not None else u.rates
    delta = g
    torch._foreach_div_(delta, below)
    del below
    torch._foreach_mul_(delta, [each * pace * rate for each, rate in zip(unbias, rates, strict=True)])
    point.turn(states, delta)
    if group["weight_decay"] != 0:
        decay = [(rate * (pace * group["weight_decay"])).clamp(max=1) for rate in rates]
        torch._foreach_addcmul_(delta, y, decay)  # the directions are noted without it

    torch._foreach_add_(k, [live * averaging] * len(k))
    twice = list(torch._foreach_mul(k, 2))
    torch._foreach_add_(twice, 1)
    c = list(torch._foreach_div(torch._foreach_mul(k, 6), torch._foreach_add(k, 1)))
    torch._foreach_div_(c, twice)
    torch._foreach_mul_(c, [live * averaging] * len(c))
    betas, nearer = point.move(states, beta, c, live * averaging)
    towards = list(torch._foreach_sub(z, y))
    torch._foreach_mul_(towards, nearer)
    torch._foreach_add_(y, towards)
    del towards
    kept = [1 - b * (averaging - each) for b, each in zip(betas, c, strict=True)]
    torch._foreach_sub_(y, list(torch._foreach_mul(delta, kept)))
    torch._foreach_mul_(delta, [averaging] * len(delta))
    torch._foreach_sub_(z, delta)


def on_host(state: dict[str, Any], parameter: Tensor, *, searching: bool) -> dict[str, Any]:
    """Return the state of a parameter with numbers for its counts, as it is kept where they are read.

    Args:
        state: a state with counts as tensors; others are returned as they are.
        parameter: the parameter.
        searching: whether the search goes on, so that ``z`` holds the start.
    """
    if not isinstance(state.get("k"), Tensor):
        return state
    step, k = torch.stack([state["step"], state["k"]]).tolist()
    kept = {**state, "step": int(step), "k": int(k)}
    if "beta" in kept:
        kept["beta"] = float(kept["beta"])
    if k == 0 and not searching:
        kept["z"] = parameter.detach().to(kept["z"].dtype)
    return kept
