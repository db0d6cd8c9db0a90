"""Copies of an adaptive softmax, the output layer for very many classes."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..finite import alive_copies, alive_rows, fail, finite_gradient, zero_nonfinite, zero_unusable
from ..heads.head import Head, stacked
from ..heads.members import mixture_nll, watched
from ..heads.softmax import refuse_second_derivative, wide
from ..posterior import Posterior
from ..tensors import Members

__all__ = ["AdaptiveHead", "AdaptiveOutput"]


class AdaptiveOutput(NamedTuple):
    """The log-probabilities of the targets, and the loss, as in torch."""

    output: Tensor
    loss: Tensor


class AdaptiveHead(Head):
    """Copies of :class:`torch.nn.AdaptiveLogSoftmaxWithLoss`, called in the same way.

    The loops below are over its clusters of rare classes, never over the copies.
    """

    likelihood = "categorical"
    remedy = "train with the loss, or the target's log-probabilities, that the layer returns for its target"

    def __init__(
        self, layer: nn.AdaptiveLogSoftmaxWithLoss, averaging: Posterior, *, keep: bool = False
    ) -> None:
        super().__init__(averaging, next(layer.parameters()))
        self.in_features, self.n_classes = layer.in_features, layer.n_classes
        self.cutoffs, self.div_value, self.has_head_bias = layer.cutoffs, layer.div_value, layer.head_bias
        for name, parameter in layer.named_parameters():
            self.register_parameter(name.replace(".", "_"), stacked(parameter, self.copies, keep))

    def forward(self, z: Tensor, target: Tensor) -> AdaptiveOutput:
        """Return the log-probability of each ``target`` under the mixture, and the mean negative of it."""
        batched = z.dim() == 2
        z, target = (z, target) if batched else (z[None], target[None])
        if z.shape[:1] != target.shape:
            raise ValueError(
                f"each row needs one target, got an input of {tuple(z.shape)} and targets of "
                f"{tuple(target.shape)}"
            )
        if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < self.n_classes:
            raise ValueError(
                f"targets must lie in [0, {self.n_classes - 1}], got {target.min()}..{target.max()}"
            )
        self.look_at(z)
        z = zero_unusable(z)
        parameters: dict[str, Tensor] = dict(self.named_parameters(recurse=False))
        # A copy with a parameter that is not finite has failed: its numbers must not touch the others'.
        alive = alive_copies(parameters.values())[:, None]
        parameters = {name: finite_gradient(zero_nonfinite(p)) for name, p in parameters.items()}
        own, mixed = (fail(x, alive) for x in self._target_log_probs(finite_gradient(z), target, parameters))
        a = self.averaging.weights.to(own.dtype, copy=True)
        members = Members(own, mixed, a, self.evidence_leaf(*self.parameters()), self.likelihood)
        output = -mixture_nll(own, mixed, members, if_all_fail=log(self.n_classes))
        return AdaptiveOutput(output if batched else output[0], -output.mean())

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log-probabilities of all classes under the mixture, to look at, not to train with."""
        with torch.no_grad():
            z, dtype, shortlist = zero_unusable(z), wide(z.dtype), self.cutoffs[0]
            parameters = dict(self.named_parameters(recurse=False))
            logits = _of_all_copies(z, parameters["head_weight"]) + parameters.get("head_bias", 0)
            frequent = logits.log_softmax(-1, dtype=dtype)
            parts = [frequent[..., :shortlist]]
            for i in range(len(self.cutoffs) - 1):
                hidden = _of_all_copies(z, parameters[f"tail_{i}_0_weight"])
                logits = torch.einsum("rch,coh->rco", hidden, parameters[f"tail_{i}_1_weight"])
                parts.append(logits.log_softmax(-1, dtype=dtype) + frequent[..., shortlist + i, None])
            log_p = torch.cat(parts, -1).movedim(1, 0)
            log_p = fail(log_p, alive_rows(log_p))
            log_m = (log_p + self.averaging.log_weights.to(log_p)[:, None, None]).logsumexp(0)
        return watched(log_m, self.copies, self.evidence_leaf(*self.parameters()))

    def predict(self, z: Tensor) -> Tensor:
        """Return the class of the highest probability under the mixture."""
        return self.log_prob(z).argmax(-1)

    def _target_log_probs(
        self, z: Tensor, target: Tensor, parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return those of all copies, ``(copies, rows)``, twice: for the copies and for the body."""
        shortlist, column = self.cutoffs[0], target.clone()
        rare: list[tuple[Tensor, Tensor, Tensor]] = []
        for i, (low, high) in enumerate(zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True)):
            (rows,) = ((target >= low) & (target < high)).nonzero(as_tuple=True)
            column[rows] = shortlist + i
            if rows.numel():
                first, second = (parameters[f"tail_{i}_{k}_weight"] for k in (0, 1))
                found = _TargetLogProbs.apply(z[rows], first, second, None, target[rows] - low)
                rare.append((rows, *found))
        head = parameters["head_weight"], parameters.get("head_bias")
        own, mixed = _TargetLogProbs.apply(z, None, *head, column)
        for rows, of_own, of_mixed in rare:
            own, mixed = own.index_add(1, rows, of_own), mixed.index_add(1, rows, of_mixed)
        return own, mixed

    def layer(self, copy: int) -> nn.Module:
        """Return copy number ``copy`` as an adaptive softmax."""
        layer = nn.AdaptiveLogSoftmaxWithLoss(
            self.in_features, self.n_classes, self.cutoffs[:-1], self.div_value, self.has_head_bias
        ).to(next(self.parameters()))
        for name, parameter in layer.named_parameters():
            parameter.data.copy_(getattr(self, name.replace(".", "_"))[copy])
        return layer

    def mixture(self) -> nn.Module:
        """Raise: the mixture of adaptive softmaxes has no plain form."""
        raise ValueError(
            "a mixture of adaptive softmaxes has no plain form: use collapse() without mixture=True, which "
            "returns the best copy"
        )

    def extra_repr(self) -> str:
        """Return the size, as in the layer that this one replaces."""
        return f"{self.in_features}, {self.n_classes}, cutoffs={self.cutoffs}, copies={self.copies}"


def _of_all_copies(z: Tensor, weight: Tensor) -> Tensor:
    """Return ``(rows, copies, out)`` from ``z`` ``(rows, d)`` and ``weight`` ``(copies, out, d)``."""
    return F.linear(z, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])


class _TargetLogProbs(torch.autograd.Function):
    r"""The targets' log-probabilities under softmax layers of all copies, ``(copies, rows)``, twice.

    The values are the same; what flows back into the first reaches only the parameters, what flows back into
    the second reaches only ``z``. With the gradient :math:`\delta_{ky} - p_k` by the logits, both need the
    same products, scaled by other numbers: one for each row and copy.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, first: Tensor | None, second: Tensor, bias: Tensor | None, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = z.expand(len(second), *z.shape) if first is None else z @ first.transpose(1, 2)
        logits = hidden @ second.transpose(1, 2)
        if bias is not None:
            logits += bias[:, None]
        log_p = logits.log_softmax(-1, dtype=wide(z.dtype))
        index = target.expand(len(second), -1)[..., None]
        ctx.save_for_backward(z, first, second, hidden, log_p, index)
        of_target = log_p.gather(-1, index)[..., 0]
        return of_target, of_target.clone()

    @staticmethod
    def backward(ctx: Any, own: Tensor, mixed: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, first, second, hidden, log_p, index = ctx.saved_tensors
        needs = ctx.needs_input_grad
        own, mixed = own[..., None], mixed[..., None]
        dtype = log_p.dtype
        by_logits = log_p.exp().neg_()
        by_logits.scatter_add_(-1, index, torch.ones_like(own))
        grads: list[Tensor | None] = [None] * 5
        if needs[2]:
            grads[2] = (by_logits.transpose(1, 2) @ (hidden.to(dtype) * own)).to(second.dtype)
        if needs[3]:
            grads[3] = (own.transpose(1, 2) @ by_logits)[:, 0].to(second.dtype)
        if needs[0] or needs[1]:
            back = by_logits @ second.to(dtype)
            of_z = back * mixed
            if first is not None:
                grads[1] = ((back * own).transpose(1, 2) @ z.to(dtype)).to(first.dtype) if needs[1] else None
                of_z = of_z @ first.to(dtype)
            grads[0] = of_z.sum(0).to(z.dtype) if needs[0] else None
        return tuple(grads)
