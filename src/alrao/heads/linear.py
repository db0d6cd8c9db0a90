"""Copies of a linear layer or of a 1x1 convolution, and the mixture they make together."""

from __future__ import annotations

from abc import abstractmethod
from math import inf

import torch
from torch import Tensor, nn

from ..averaging import Averaging
from ..finite import alive, share_among, without_failed, zero_nonfinite
from ..shortcuts import child_of, inside_functional_transform
from ..tensors import Members, Prediction
from .base import Head, stacked
from .exported import MixtureOfClassifiers, mixture_logit
from .large import is_large, large_mixture
from .members import shared_linear, watched
from .mixture import categorical_mixture, wide

__all__ = ["LINEAR_HEADS", "BernoulliHead", "CategoricalHead", "GaussianHead", "LinearHead"]

UNDERFLOW = 700.0
"""The relative likelihood of a copy this many nats behind the best underflows in double precision."""


def _autocasts(z: Tensor) -> bool:
    if z.is_cpu:  # faster than naming the device
        return torch.is_autocast_enabled("cpu")
    return not z.is_meta and torch.is_autocast_enabled(z.device.type)


class LinearHead(Head):
    """Copies of a linear layer, or of a convolution of kernel size 1."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module, averaging: Averaging, *, keep: bool = False) -> None:
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        super().__init__(averaging, weight)
        self.spatial = weight.ndim - 2  # axes behind the channels: those of a convolution
        self.weight = stacked(weight.flatten(1), self.copies, keep)
        biases = stacked(bias, self.copies, keep) if isinstance(bias, Tensor) else None
        self.register_parameter("bias", biases)

    @property
    def in_features(self) -> int:
        """Size of the input, as in :class:`torch.nn.Linear`."""
        return self.weight.shape[2]

    @property
    def out_features(self) -> int:
        """Number of outputs (classes) of one copy."""
        return self.weight.shape[1]

    def forward(self, z: Tensor) -> Tensor:
        """Return the mixture's output for ``z``, the output of the body."""
        if inside_functional_transform():
            raise RuntimeError(
                "torch.func transforms (grad, vmap, jvp) do not apply to an Alrao head, because its gradient "
                "is not the derivative of its value: call loss.backward(), or use model.collapse()"
            )
        weight, bias = self.weight, self.bias
        _, outputs, inputs = weight.shape
        if self.spatial:
            unbatched = z.ndim == self.spatial + 1
            z = (z[None] if unbatched else z).movedim(1, -1)
        if z.shape[-1] != inputs:
            raise ValueError(f"the output layer takes {inputs} features, got an input of {tuple(z.shape)}")
        if not self.training:
            self.look_at(z)
        rows = z if z.ndim == 2 else z.reshape(-1, inputs)
        out = self._autocast(rows, weight, bias) if _autocasts(z) else self._rows(rows, weight, bias)
        if z.ndim != 2:
            out = out.view(*z.shape[:-1], outputs)
        if self.spatial:
            out = out.movedim(-1, 1).contiguous()
            return out[0] if unbatched else out
        return out

    def _autocast(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Matrix products in the narrow type, everything else in float32.
        dtype = torch.get_autocast_dtype(z.device.type)
        with torch.autocast(z.device.type, enabled=False):
            return self._rows(z.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    @abstractmethod
    def _rows(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the mixture's output for ``z`` of shape ``(rows, d)``."""

    def layer(self, copy: int) -> nn.Module:
        """Return copy number ``copy`` as a linear layer or a convolution."""
        return self._plain(self.weight[copy], None if self.bias is None else self.bias[copy])

    def _plain(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        outputs, inputs = weight.shape
        has_bias = bias is not None
        layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
        if not self.spatial:
            layer = nn.Linear(inputs, outputs, has_bias, device="meta")
        else:
            kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.spatial - 1]
            layer = kind(inputs, outputs, 1, bias=has_bias, device="meta")
        trained = self.weight.requires_grad
        layer.weight = nn.Parameter(weight.detach().clone().view(layer.weight.shape), trained)
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone(), trained)
        return layer

    def extra_repr(self) -> str:
        """Return the size, as in the layer that this one replaces."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, bias={bias}, copies={self.copies}"


class CategoricalHead(LinearHead):
    """Copies of a softmax classifier; the output is the mixture's log-probabilities."""

    likelihood = "categorical"
    remedy = (
        "compute it with cross_entropy or nll_loss from the model's output as it is (label smoothing, class "
        "weights and soft targets are fine), or train a plain network with this loss"
    )

    def _rows(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        a = child_of(self, "averaging").column(wide(z.dtype))
        mixture = large_mixture if is_large(z, weight) else categorical_mixture
        return mixture(z, weight, bias, a, self.evidence_leaf(weight, bias))

    def _autocast(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if is_large(z, weight):  # its products cast the weights
            return self._rows(z.to(torch.get_autocast_dtype(z.device.type)), weight, bias)
        return super()._autocast(z, weight, bias)

    def mixture(self) -> nn.Module:
        """Return the mixture as a layer that returns log-probabilities."""
        return MixtureOfClassifiers(
            self.weight, self.bias, self.averaging.weights, self.likelihood, self.spatial
        )


class GaussianHead(LinearHead):
    """Copies of a regressor, each a Normal around its output; the output is the mixture's mean."""

    likelihood = "gaussian"
    remedy = "compute it with alrao.MixtureMSELoss from the model's output as it is"

    def _rows(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        own, mixed = shared_linear(z, weight, bias)
        a = self.averaging.weights.to(own.dtype, copy=True)
        leaf = self.evidence_leaf(weight, bias)
        members = Members(own, mixed, a, leaf, self.likelihood)
        return Prediction.of(watched(self._average(own.detach(), a), self.copies, leaf), 1, members)

    def posterior_evidence(self, log_likelihood: list[float]) -> list[float]:
        """Return the log-likelihoods, ``-inf`` for a copy whose relative likelihood underflows.

        The small weight that the switch leaves to such a copy does no harm in a mixture of probabilities,
        but it would ruin the mean.
        """
        numbers = without_failed(log_likelihood)
        best = max(numbers)
        return [x if x > best - UNDERFLOW else -inf for x in numbers]

    def _average(self, outputs: Tensor, a: Tensor) -> Tensor:
        # If all copies have failed, predict 0.
        a = share_among(alive(outputs), a.view([-1] + [1] * (outputs.ndim - 1)), 0)
        return (a * zero_nonfinite(outputs)).sum(0)

    def mixture(self) -> nn.Module:
        """Return the mixture's mean, which is one linear layer."""
        a = self.averaging.weights
        weight = self._average(self.weight.detach(), a.to(self.weight))
        return self._plain(
            weight, None if self.bias is None else self._average(self.bias.detach(), a.to(self.bias))
        )


class BernoulliHead(GaussianHead):
    """Copies of a layer of logits, one for each label; the output is the logit of the mixture."""

    likelihood = "bernoulli"
    remedy = "compute it with alrao.MixtureBCELoss from the model's output as it is"
    posterior_evidence = Head.posterior_evidence

    def _average(self, outputs: Tensor, a: Tensor) -> Tensor:
        return mixture_logit(outputs, a)

    def mixture(self) -> nn.Module:
        """Return the mixture as a layer that returns its logit."""
        return MixtureOfClassifiers(
            self.weight, self.bias, self.averaging.weights, self.likelihood, self.spatial
        )


LINEAR_HEADS: dict[str, type[LinearHead]] = {
    head.likelihood: head for head in (CategoricalHead, GaussianHead, BernoulliHead)
}
