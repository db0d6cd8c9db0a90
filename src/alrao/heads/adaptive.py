"""Copies of an adaptive softmax, the output layer for very many classes."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..averaging import Averaging
from ..finite import alive_copies, alive_rows, fail, finite_gradient, zero_nonfinite, zero_unusable
from ..tensors import Members, watched
from .base import Head, stacked
from .members import mixture_nll
from .mixture import wide

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
        self, layer: nn.AdaptiveLogSoftmaxWithLoss, averaging: Averaging, *, keep: bool = False
    ) -> None:
        super().__init__(averaging, next(layer.parameters()))
        self.in_features, self.n_classes = layer.in_features, layer.n_classes
        self.cutoffs, self.div_value, self.has_head_bias = layer.cutoffs, layer.div_value, layer.head_bias
        self._plain_names = {name.replace(".", "_"): name for name, _ in layer.named_parameters()}
        for name, parameter in layer.named_parameters():
            self.register_parameter(name.replace(".", "_"), stacked(parameter, self.copies, keep))

    def plain_name(self, name: str) -> str:
        """Return what a parameter of the head is called in the layer that it replaces."""
        return self._plain_names[name]

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
        frozen = {name: parameter.detach() for name, parameter in parameters.items()}
        own = fail(self._target_log_probs(z.detach(), target, parameters), alive)
        mixed = fail(self._target_log_probs(finite_gradient(z), target, frozen), alive)
        a = self.averaging.weights.to(own.dtype, copy=True)
        members = Members(own, mixed, a, self.evidence_leaf(*self.parameters()), self.likelihood)
        output = -mixture_nll(own, mixed, members, if_all_fail=log(self.n_classes))
        return AdaptiveOutput(output if batched else output[0], -output.mean())

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log-probabilities of all classes under the mixture, to look at, not to train with."""
        with torch.no_grad():
            z = zero_unusable(z)
            parameters = dict(self.named_parameters(recurse=False))
            frequent = self._frequent(z, parameters)
            shortlist = self.cutoffs[0]
            parts = [frequent[..., :shortlist]]
            parts += [
                self._rare(z, i, parameters) + frequent[..., shortlist + i, None]
                for i in range(len(self.cutoffs) - 1)
            ]
            log_p = torch.cat(parts, -1).movedim(1, 0)
            log_p = fail(log_p, alive_rows(log_p))
            log_m = (log_p + self.averaging.log_weights.to(log_p)[:, None, None]).logsumexp(0)
        return watched(log_m, self.copies, self.evidence_leaf(*self.parameters()))

    def predict(self, z: Tensor) -> Tensor:
        """Return the class of the highest probability under the mixture."""
        return self.log_prob(z).argmax(-1)

    def _frequent(self, z: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return log-probabilities of the frequent classes and of the clusters, ``(rows, copies, …)``."""
        logits = _of_all_copies(z, parameters["head_weight"])
        if self.has_head_bias:
            logits = logits + parameters["head_bias"]
        return logits.log_softmax(-1, dtype=wide(z.dtype))

    def _rare(self, z: Tensor, cluster: int, parameters: Mapping[str, Tensor]) -> Tensor:
        hidden = _of_all_copies(z, parameters[f"tail_{cluster}_0_weight"])
        logits = torch.einsum("rch,coh->rco", hidden, parameters[f"tail_{cluster}_1_weight"])
        return logits.log_softmax(-1, dtype=wide(z.dtype))

    def _target_log_probs(self, z: Tensor, target: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        frequent = self._frequent(z, parameters)
        shortlist = self.cutoffs[0]
        column = target.clone()
        rare = frequent.new_zeros(frequent.shape[:2])
        for i, (low, high) in enumerate(zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True)):
            (rows,) = ((target >= low) & (target < high)).nonzero(as_tuple=True)
            column[rows] = shortlist + i
            if rows.numel():
                log_p = self._rare(z[rows], i, parameters)
                index = (target[rows] - low)[:, None, None].expand(-1, self.copies, 1)
                rare = rare.index_add(0, rows, log_p.gather(-1, index).squeeze(-1))
        column = column[:, None, None].expand(-1, self.copies, 1)
        return (frequent.gather(-1, column).squeeze(-1) + rare).t()

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
