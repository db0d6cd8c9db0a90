"""Copies of an adaptive softmax, the output layer for very many classes."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..finite import alive_rows, fail, zero_unusable
from ..heads.head import Head, stacked
from ..heads.members import for_copies_and_body, mixture_nll, watched
from ..heads.softmax import wide
from ..posterior import Posterior
from ..tensors import Members


class AdaptiveOutput(NamedTuple):
    """The log-probabilities of the targets, and the loss, as in torch."""

    output: Tensor
    loss: Tensor


class AdaptiveHead(Head):
    """Copies of :class:`torch.nn.AdaptiveLogSoftmaxWithLoss`, called in the same way."""

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

    def _empty_layer(self) -> nn.AdaptiveLogSoftmaxWithLoss:
        return nn.AdaptiveLogSoftmaxWithLoss(
            self.in_features, self.n_classes, self.cutoffs[:-1], self.div_value, self.has_head_bias,
            device="meta",
        )  # fmt: skip

    def forward(self, z: Tensor, target: Tensor) -> AdaptiveOutput:
        """Return the log-probability of each ``target`` under the mixture, and the mean negative of it."""
        layer = self._empty_layer()
        names = [name for name, _ in layer.named_parameters()]

        def of_all(z: Tensor, *parameters: Tensor) -> Tensor:
            copies = (dict(zip(names, each, strict=True)) for each in zip(*parameters, strict=True))
            return torch.stack([functional_call(layer, each, (z, target)).output for each in copies])

        dtype = wide(z.dtype)
        parameters = [getattr(self, name.replace(".", "_")).to(dtype) for name in names]
        own, mixed = for_copies_and_body(of_all, z.to(dtype), *parameters)
        a = self.averaging.weights.to(own.dtype, copy=True)
        members = Members(own, mixed, a, self.evidence_leaf(*self.parameters()), self.likelihood)
        output = -mixture_nll(own, mixed, members, if_all_fail=log(self.n_classes))
        return AdaptiveOutput(output, -output.mean())

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log-probabilities of all classes under the mixture, to look at, not to train with."""
        with torch.no_grad():
            z = zero_unusable(z)
            log_p = torch.stack([self.layer(j).log_prob(z) for j in range(self.copies)]).to(wide(z.dtype))
            log_p = fail(log_p, alive_rows(log_p))
            log_m = (log_p + self.averaging.log_weights.to(log_p)[:, None, None]).logsumexp(0)
        return watched(log_m, self.copies, self.evidence_leaf(*self.parameters()))

    def predict(self, z: Tensor) -> Tensor:
        """Return the class of the highest probability under the mixture."""
        return self.log_prob(z).argmax(-1)

    def layer(self, copy: int) -> nn.AdaptiveLogSoftmaxWithLoss:
        """Return copy number ``copy`` as an adaptive softmax."""
        layer = self._empty_layer()
        names = [name for name, _ in layer.named_parameters()]
        state = {name: getattr(self, name.replace(".", "_")).detach()[copy].clone() for name in names}
        layer.load_state_dict(state, assign=True)
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
