"""Copies of a linear layer or of a 1x1 convolution, stacked, and the mixture they make together."""

from __future__ import annotations

from abc import abstractmethod
from math import inf, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..averaging import Averaging
from ..tensors import Members, Prediction
from .base import Head, stacked
from .mixture import categorical_mixture, shared_linear, watched

__all__ = ["LINEAR_HEADS", "BernoulliHead", "CategoricalHead", "GaussianHead", "LinearHead"]

BEATEN = 700.0
"""A log-likelihood that much below the best is nothing beside it, in double precision."""


def _autocasts(z: Tensor) -> bool:
    if z.is_cpu:
        return torch.is_autocast_enabled("cpu")  # asking for the device takes longer than this
    return not z.is_meta and torch.is_autocast_enabled(z.device.type)


class LinearHead(Head):
    """Copies of a linear layer, or of a convolution of kernel size 1."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module, copies: int, averaging: Averaging, *, keep: bool = False) -> None:
        super().__init__(copies, averaging)
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        self.spatial = weight.ndim - 2  # axes behind the channels: those of a convolution
        self.weight = stacked(weight.flatten(1), copies, keep)
        self.register_parameter("bias", stacked(bias, copies, keep) if isinstance(bias, Tensor) else None)
        self._new_evidence(weight)

    @property
    def in_features(self) -> int:
        """Size of the input, as in :class:`torch.nn.Linear`."""
        return self.weight.shape[2]

    @property
    def out_features(self) -> int:
        """Number of outputs (classes) of one copy."""
        return self.weight.shape[1]

    def forward(self, z: Tensor) -> Tensor:
        """The mixture's output for ``z``, the output of the body."""
        if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
            raise RuntimeError(
                "the gradient of an Alrao output layer is not the derivative of its value, so torch.func "
                "transforms (grad, vmap, jvp) do not apply: call loss.backward(), or use model.collapse()"
            )
        try:
            weight, bias = self._parameters["weight"], self._parameters["bias"]  # faster than the attributes
        except KeyError:  # parametrized or pruned
            weight, bias = self.weight, self.bias
        assert weight is not None
        _, outputs, inputs = weight.shape
        if self.spatial:
            unbatched = z.ndim == self.spatial + 1
            z = (z[None] if unbatched else z).movedim(1, -1)
        if z.shape[-1] != inputs:
            raise ValueError(f"the output layer takes {inputs} features, got {tuple(z.shape)}")
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
        """The mixture's output for ``z`` of shape ``(rows, d)``."""

    def layer(self, copy: int) -> nn.Module:
        """Copy number ``copy`` as a linear layer or a convolution."""
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
        """The size, as in the layer that this one replaces."""
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
        averaging: Any = self._modules["averaging"]  # faster than the attribute
        return categorical_mixture(z, weight, bias, averaging, self.leaf())

    def mixture(self) -> nn.Module:
        """The mixture as a layer that returns log-probabilities."""
        return MixtureOfClassifiers(self)


class GaussianHead(LinearHead):
    """Copies of a regressor, each a Normal around its output; the output is the mixture's mean."""

    likelihood = "gaussian"
    remedy = "compute it with alrao.MixtureMSELoss from the model's output as it is"

    def _rows(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        own, mixed = shared_linear(z, weight, bias)
        a = self.averaging.weights.to(own.dtype, copy=True)
        members = Members(own, mixed, a, self.leaf(), self.likelihood)
        return Prediction.of(watched(self._average(own.detach(), a), self.copies, self.leaf()), 1, members)

    def verdict(self, log_likelihood: list[float]) -> list[float]:
        """The evidence, in which a copy that is beaten beyond all numbers has failed.

        In a mixture of probabilities the little weight that the switch leaves to it would do no harm; the
        mean it would ruin.
        """
        best = max((x for x in log_likelihood if isfinite(x)), default=0.0)
        return [x if x > best - BEATEN else -inf for x in log_likelihood]

    def _average(self, outputs: Tensor, a: Tensor) -> Tensor:
        # 0 times the output of a copy that has failed must be 0. If all have, predict nothing: 0.
        alive = outputs.isfinite()
        a = a.view([-1] + [1] * (outputs.ndim - 1)) * alive
        return (a * torch.where(alive, outputs, 0)).sum(0) / a.sum(0).clamp(min=torch.finfo(a.dtype).tiny)

    def mixture(self) -> nn.Module:
        """The mixture's mean, which is one linear layer."""
        a = self.averaging.weights
        weight = self._average(self.weight.detach(), a.to(self.weight))
        return self._plain(
            weight, None if self.bias is None else self._average(self.bias.detach(), a.to(self.bias))
        )


class BernoulliHead(GaussianHead):
    """Copies of a layer of logits, one for each label; the output is the logit of the mixture."""

    likelihood = "bernoulli"
    remedy = "compute it with alrao.MixtureBCELoss from the model's output as it is"
    verdict = Head.verdict

    def _average(self, outputs: Tensor, a: Tensor) -> Tensor:
        return mixture_logit(outputs, a)

    def mixture(self) -> nn.Module:
        """The mixture as a layer that returns its logit."""
        return MixtureOfClassifiers(self)


LINEAR_HEADS: dict[str, type[LinearHead]] = {
    head.likelihood: head for head in (CategoricalHead, GaussianHead, BernoulliHead)
}


def mixture_logit(logits: Tensor, a: Tensor) -> Tensor:
    """The logit of a mixture of Bernoulli laws, copies first, without those that are not finite."""
    log_a = torch.where(logits.isfinite(), a.log().view([-1] + [1] * (logits.ndim - 1)), -torch.inf)
    logits = logits.nan_to_num(0, 0, 0)
    yes, no = ((F.logsigmoid(x) + log_a).logsumexp(0) for x in (logits, -logits))
    return (yes - no).nan_to_num(0)


class MixtureOfClassifiers(nn.Module):
    """A trained mixture as a plain layer: what the copies that have weight say together."""

    weight: Tensor
    bias: Tensor
    a: Tensor

    def __init__(self, head: LinearHead) -> None:
        super().__init__()
        self.likelihood = head.likelihood
        self.spatial = head.spatial
        living = head.averaging.weights > 0
        bias = head.weight.new_zeros(head.weight.shape[:2]) if head.bias is None else head.bias
        self.weight = nn.Parameter(head.weight.detach()[living])
        self.bias = nn.Parameter(bias.detach()[living])
        self.register_buffer("a", head.averaging.weights[living].to(head.weight))

    def forward(self, z: Tensor) -> Tensor:
        """Log-probabilities of the classes, or the logits of the labels."""
        channels = z.ndim - 1 - self.spatial  # where they are: unbatched images have no axis before them
        z = z.movedim(channels, -1) if self.spatial else z
        logits = F.linear(z, self.weight.flatten(0, 1), self.bias.flatten())
        logits = logits.unflatten(-1, self.weight.shape[:2]).movedim(-2, 0)
        if self.likelihood == "bernoulli":
            out = mixture_logit(logits, self.a)
        else:
            log_a = self.a.log().view([-1] + [1] * (logits.ndim - 1))
            out = (logits.log_softmax(-1) + log_a).logsumexp(0)
        return out.movedim(-1, channels) if self.spatial else out
