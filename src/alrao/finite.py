"""Guards against numbers that are not finite: everything that keeps them out of a model.

A copy of the head, or a feature, whose rate is too high diverges: it *fails*. Failed numbers are masked
before they meet others, because ``0 * nan`` is nan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from .calls import watch_calls
from .watch import version_of

HUGE = 1e30  # the largest loss of one observation: the sum over a batch is still finite
TINY = 1e-30  # mixture probabilities in float32 below this are computed in logarithms instead
MAX_NORM = 1e15  # the largest norm of a gradient that is applied without a look at its entries


# Masks.


alive = torch.isfinite  # where a tensor is finite
is_finite = isfinite  # whether a number is finite


def alive_rows(log_p: Tensor) -> Tensor:
    """Return where all log-probabilities along the last axis, which is kept, are finite."""
    return log_p.amin(-1, keepdim=True).isfinite()


def alive_distributions(log_p: Tensor) -> Tensor:
    """Return where no log-probability along the last axis, which is kept, is nan; ``-inf`` is that of 0."""
    return ~log_p.isnan().any(-1, keepdim=True)


def fail(log_p: Tensor, alive: Tensor) -> Tensor:
    """Return ``log_p`` with ``-inf`` where nothing is alive."""
    return torch.where(alive, log_p, -torch.inf)


def fail_nonfinite(log_p: Tensor) -> Tensor:
    """Return ``log_p`` with ``-inf`` where it is not finite: ``+inf`` is a failure too."""
    return log_p.nan_to_num(-inf, -inf, -inf)


def moderate(logits: Tensor, weights: Tensor) -> bool:
    """Return whether logits are so small that neither their sigmoids nor a mixture of them underflow."""
    if not logits.numel():
        return False
    low, high = torch.aminmax(logits)
    return -60 < low.item() <= high.item() < 60 and weights.sum().item() > TINY


def usable(x: Tensor) -> Tensor:
    """Return where ``x`` is finite, and its square too."""
    return x.abs() <= largest(x.dtype)


def largest(dtype: torch.dtype) -> float:
    """Return the largest :func:`usable` number of a type."""
    info = torch.finfo(dtype)
    return float(info.max**0.5 if info.max > 1e5 else info.max)


def zero_unusable(x: Tensor) -> Tensor:
    """Return ``x`` with 0 where it is not :func:`usable`."""
    return torch.where(usable(x), x, 0)


def zero_nonfinite(x: Tensor) -> Tensor:
    """Return ``x`` with 0 where it is not finite."""
    if torch.compiler.is_compiling() and not x.is_complex():  # compiled code for nan_to_num has no vectors
        return torch.where(x.abs() < float("inf"), x, 0)
    return x.nan_to_num(0.0, 0.0, 0.0)


def zero_nan(x: Tensor) -> Tensor:
    """Return ``x`` with 0 where it is nan: ``-inf`` minus ``-inf``, where all copies have failed."""
    return x.nan_to_num(0.0)


def zero_nonfinite_(x: Tensor) -> Tensor:
    """Set ``x`` to 0 where it is not finite."""
    return x.nan_to_num_(0.0, 0.0, 0.0)


def keep_finite_(x: Tensor, before: Tensor) -> None:
    """Set ``x`` back to ``before`` where it is not finite."""
    x.copy_(torch.where(x.isfinite(), x, before))


def all_finite(numbers: Sequence[float]) -> bool:
    """Return whether all numbers are finite, and their sum too."""
    return isfinite(sum(numbers))


def without_failed(numbers: Iterable[float]) -> list[float]:
    """Return log-likelihoods with ``-inf`` for those that are not finite: ``+inf`` is a failure too."""
    return [number if isfinite(number) else -inf for number in numbers]


def share_among(alive: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return ``weights`` with 0 for the failed; the others, if any, are scaled to sum to 1 along ``dim``."""
    weights = weights * alive
    return weights / weights.sum(dim, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


# Gradients.


def in_range(tensors: list[Tensor]) -> bool:
    """Return whether all tensors are finite, and so small that no update by them can overflow."""
    if not tensors:
        return True
    norms = torch._foreach_norm(tensors)
    if norms[0].is_cpu:  # faster there than one more operation
        return sum([norm.item() for norm in norms]) <= MAX_NORM
    return bool(torch.stack([norm.float() for norm in norms]).amax() <= MAX_NORM)


def mask_gradients(grads: list[Tensor]) -> list[Tensor]:
    """Return gradients with 0 where they are not :func:`usable`; none if none of their entries is."""
    if in_range(grads):
        return grads
    fits = [usable(grad) for grad in grads]
    if not any(bool(each.any()) for each in fits):
        return []
    return [torch.where(each, grad, 0) for each, grad in zip(fits, grads, strict=True)]


def mask_on_device(grads: list[Tensor], refused: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Do as :func:`mask_gradients` without a read on the host, by as many operations for many as for one."""
    of_type: dict[torch.dtype, list[int]] = {}
    for i, grad in enumerate(grads):
        of_type.setdefault(grad.dtype, []).append(i)
    masked, masks = list(grads), []
    for dtype, places in of_type.items():
        # In the order of the entries in memory: then flattening copies nothing, and layouts are kept.
        axes = {i: sorted(range(grads[i].ndim), key=grads[i].stride, reverse=True) for i in places}
        ordered = [grads[i].permute(axes[i]) for i in places]
        joined, most = torch.cat([each.reshape(-1) for each in ordered]), largest(dtype)
        size = joined.abs() if joined.is_complex() else joined
        unusable = (size.clamp(-most, most) != size).logical_or_(refused)  # nan is unequal to itself
        masks.append(unusable)
        joined.masked_fill_(unusable, 0)
        parts = joined.split([each.numel() for each in ordered])
        for i, part, each in zip(places, parts, ordered, strict=True):
            back = [axes[i].index(axis) for axis in range(each.ndim)]
            masked[i] = part.view(each.shape).permute(back)
    return masked, masks


class _FiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return zero_nonfinite(g)


finite_gradient = _FiniteGradient.apply  # the identity; what flows back is 0 where it is not finite

# Running statistics.


class FiniteStatistics:
    """Restores running statistics of normalisation layers that are not finite.

    Training forward passes store their batch's statistics in the layer, finite or not. :meth:`restore` puts
    the last finite mean and variance of a channel back. Values that are loaded or reset are remembered at
    once, and those that are changed by hand when :meth:`remember` is called before the next pass.
    """

    def __init__(self, net: nn.Module) -> None:
        self._layers = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        self._last: list[Tensor] = []
        self._seen: list[tuple[Tensor, int]] = []
        self._watch_loads()
        self.restore()

    def _watch_loads(self) -> None:
        for layer in self._layers:
            for name in ("_load_from_state_dict", "reset_running_stats"):
                watch_calls(layer, name, self._changed)

    def _changed(self, *_: Any, **__: Any) -> None:
        self.restore()

    def _running(self) -> list[Tensor]:
        found = [layer._buffers for layer in self._layers]  # three times as fast as attributes
        both = [buffers.get(name) for buffers in found for name in ("running_mean", "running_var")]
        return [buffer for buffer in both if buffer is not None]

    @property
    def resetting(self) -> bool:
        """Whether a program computes the statistics again, as torch's ``update_bn`` does."""
        return any(layer.momentum is None for layer in self._layers)

    def remember(self, *, reads: bool = True) -> None:
        """Remember the statistics before a training pass if anything but a pass has changed them."""
        if self._layers:
            now = _versions(self._running())
            pairs = zip(self._seen, now, strict=False)
            if len(self._seen) != len(now) or any(a[0] is not b[0] or a[1] != b[1] for a, b in pairs):
                self.restore(reads=reads)

    def restore(self, *, reads: bool = True) -> None:
        """Put back what was finite last, then remember what is finite now."""
        running = self._running() if self._layers else []
        if not running:
            return
        if [(last.device, last.dtype) for last in self._last] != [(now.device, now.dtype) for now in running]:
            known = self._last if len(self._last) == len(running) else [now.to("meta") for now in running]
            with torch.inference_mode(False):
                pairs = zip(known, running, strict=True)
                self._last = [zero_nonfinite(now) if was.is_meta else was.to(now) for was, now in pairs]
        look = reads and all(now.is_cpu for now in running)
        if not (look and bool(torch.stack(torch._foreach_norm(running)).isfinite().all())):
            _put_back(running, self._last)
        torch._foreach_copy_(self._last, running)
        self._seen = [] if torch.compiler.is_compiling() else _versions(running)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch_loads()


def _versions(running: list[Tensor]) -> list[tuple[Tensor, int]]:
    """Return statistics with torch's count of their changes; it leaves out those by forward passes."""
    return [(now, 0 if now.is_inference() else version_of(now)) for now in running]


def _put_back(running: list[Tensor], last: list[Tensor]) -> None:
    """Put back means and variances of which one is not finite: as one tensor for each device and type."""
    kinds: dict[Any, list[int]] = {}
    for i in range(0, len(running), 2):
        kinds.setdefault((running[i].device, running[i].dtype), []).append(i)
    for means in kinds.values():
        places = [*means, *(i + 1 for i in means)]
        now, before = (torch.cat([each[i] for i in places]).view(2, -1) for each in (running, last))
        finite = torch.where(now.isfinite().all(0), now, before).view(-1)
        ours = [running[i] for i in places]
        torch._foreach_copy_(ours, list(finite.split([len(each) for each in ours])))
