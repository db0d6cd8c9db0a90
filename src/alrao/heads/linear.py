"""Copies of a linear layer or of a 1x1 convolution, and the mixture they make together."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from .. import evidence as reports
from ..posterior import Posterior, Switch
from ..runtime.sharding import gathered
from ..shortcuts import inside_functional_transform, storage_is_shared
from ..tensors import LazyLogProbs, Members, Prediction
from ..watch import version_of
from .after_output import Spread, mixture_of_softmaxes
from .exported import MixtureOfClassifiers, mean_of_copies
from .head import Head, stacked
from .members import Exchange, shown_output, watched
from .softmax import cast, categorical_mixture, wide
from .vocabulary import Vocabulary, is_large

CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
"""What a convolution tells about itself."""


class _Rows(torch.autograd.Function):
    """Some copies of a stacked parameter; the gradient is that of the whole parameter, 0 for the others."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, rows: slice) -> Tensor:
        ctx.parameter, ctx.rows = parameter, rows
        return parameter[rows]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        # In the memory of the last one unless that is in use, so that zeros are not written at every step.
        parameter, rows = ctx.parameter, ctx.rows
        full, before, version = _gradients.get(parameter, (g, rows, 0))
        fits = (full.shape, full.dtype, full.device) == (parameter.shape, parameter.dtype, parameter.device)
        if not fits or storage_is_shared(full) or version_of(full) != version:
            full = torch.zeros_like(parameter)
        elif rows != before:
            full[before].zero_()
        full[rows] = g
        if not full.is_cpu:  # writing zeros is cheap there
            return full, None
        _gradients[parameter] = full, rows, version_of(full)
        return full.detach(), None  # autograd takes this one for the gradient as it is


_gradients: Any = WeakIdKeyDictionary()
"""The last gradient of each parameter on the CPU, with the rows that are not 0 and its version."""


class LinearHead(Head):
    """Copies of a linear layer or a 1x1 convolution; with ``spread`` it returns the outputs of all copies."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    parallel = Exchange()  # the way to the copies that other processes hold, if they are on several devices

    def __init__(self, layer: nn.Module, averaging: Posterior, *, keep: bool = False) -> None:
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        super().__init__(averaging, weight)
        self.spread = False
        self.out_features, self.in_features = weight.shape[:2]  # as in torch.nn.Linear
        self.spatial = weight.ndim - 2  # axes behind the channels: those of a convolution
        for name in CONVOLUTION:  # networks read them, to pad their input for example
            if self.spatial and hasattr(layer, name):
                setattr(self, name, getattr(layer, name))
        self.weight = stacked(weight.flatten(1), self.copies, keep)
        biases = stacked(bias, self.copies, keep) if isinstance(bias, Tensor) else None
        self.register_parameter("bias", biases)

    def forward(self, z: Tensor) -> Tensor:
        """Return the mixture's output for ``z``, the output of the body."""
        if inside_functional_transform():
            raise RuntimeError(
                "torch.func transforms (grad, vmap, jvp) do not apply to an Alrao head, because its gradient "
                "is not the derivative of its value: call loss.backward(), or use model.collapse()"
            )
        part = self.taking_part()
        weight: Any = self.weight
        bias: Any = self.bias
        if part is not None:
            weight, bias = (None if x is None else _Rows.apply(x, part) for x in (weight, bias))
        if self.spatial:
            channels = z.ndim - 1 - self.spatial  # where they are: unbatched images have no axis before them
            z = z.movedim(channels, -1)
        if z.shape[-1] != self.in_features:
            raise ValueError(
                f"the output layer takes {self.in_features} features, got an input of {tuple(z.shape)}"
            )
        rows = z if z.ndim == 2 else z.reshape(-1, self.in_features)
        kind = "cpu" if z.is_cpu else z.device.type  # faster than naming the device
        if (z.is_cpu or torch.amp.is_autocast_available(kind)) and torch.is_autocast_enabled(kind):
            # Matrix products in the narrow type, everything else in float32.
            rows = rows.to(torch.get_autocast_dtype(kind))
            with torch.autocast(kind, enabled=False):
                out = self._rows(rows, weight, bias)
        else:
            out = self._rows(rows, weight, bias)
        if z.ndim != 2:
            out = out.view(*z.shape[:-1], self.out_features)
        return out.movedim(-1, channels).contiguous() if self.spatial else out

    def _rows(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the mixture's output for ``z`` of shape ``(rows, d)``, in the type of the products."""
        own, mixed = self.parallel.linear(z, *cast(z, weight, bias))
        a = self.averaging.weights.to(own.dtype, copy=True)
        leaf = self.parallel.leaf(self.evidence_leaf(self.weight, self.bias))
        members = Members(own, mixed, a, leaf, self.likelihood)
        return Spread.showing(members, 1) if self.spread else self._mixture(members)

    @abstractmethod
    def _mixture(self, members: Members) -> Tensor:
        """Return the mixture of the outputs of all copies, which are on axis 1, behind the copies'."""

    def layer(self, copy: int) -> nn.Module:
        """Return copy number ``copy`` as a linear layer or a convolution."""
        weight, bias = gathered(self.weight), gathered(self.bias)
        return self._plain(weight[copy], None if bias is None else bias[copy])

    def _plain(self, weight: Any, bias: Tensor | None) -> Any:
        outputs, inputs = weight.shape
        kind: Any = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.spatial]
        size = {"kernel_size": 1} if self.spatial else {}
        layer = kind(inputs, outputs, bias=bias is not None, device="meta", **size)
        trained = self.weight.requires_grad
        layer.weight = nn.Parameter(weight.detach().clone().view(layer.weight.shape), trained)
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone(), trained)
        return layer

    def mixture(self) -> nn.Module:
        """Return the mixture as a layer that returns log-probabilities, or the logits of labels.

        That of a regressor returns the mean, and is a linear layer.
        """
        if self.spread:
            raise ValueError(
                "the mixture has no plain form, because the rest of the network works on each copy's "
                "outputs: use collapse() without mixture=True, which returns the best copy"
            )
        weight, bias, a = gathered(self.weight), gathered(self.bias), self.averaging.weights
        if self.likelihood != "gaussian":
            return MixtureOfClassifiers(weight, bias, a, self.likelihood, self.spatial)
        means = (None if x is None else mean_of_copies(x.detach(), a.to(x.dtype)) for x in (weight, bias))
        return self._plain(*means)

    def extra_repr(self) -> str:
        """Return the size, as in the layer that this one replaces."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, bias={bias}, copies={self.copies}"


class CategoricalHead(LinearHead):
    """Copies of a softmax classifier; the output is the mixture's log-probabilities."""

    likelihood = "categorical"
    remedy = (
        "compute it with cross_entropy or nll_loss from the model's output as it is (label smoothing, class "
        "weights and soft targets are fine)"
    )

    @property
    def can_sleep(self) -> bool:
        """Whether copies of this head can be left out."""
        plain = type(self.weight) is nn.Parameter
        several = self.copies > 1 and not self.spread and not self.sharded
        return plain and several and isinstance(self.averaging, Switch)

    def _rows(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.spread:
            return super()._rows(z, weight, bias)
        parallel, mixing = self.parallel, None
        leaf = parallel.leaf(self.evidence_leaf(weight, bias))
        rows = self.taking_part() if weight.shape[0] != self.copies else None
        if rows is None:
            a = self.averaging.column(wide(z.dtype))
        else:
            mixing = self.mixing or rows
            a = self.averaging.column_of(rows, mixing, wide(z.dtype))
            leaf = reports.rows_of(leaf, self.copies, rows)
            mixing = slice(mixing.start - rows.start, mixing.stop - rows.start)
        if parallel.alone and not (self.copies > 1 and is_large(z, weight)):
            return categorical_mixture(z, *cast(z, weight, bias), a, leaf, mixing)
        layer = Vocabulary(parallel.local(weight), parallel.local(bias), a, leaf, mixing, parallel)
        out = layer.log_probs(z)
        # Shards are gathered only for a while.
        return out.computed() if self.sharded and isinstance(out, LazyLogProbs) else out

    def _mixture(self, members: Members) -> Tensor:
        return mixture_of_softmaxes(members, 1)


class GaussianHead(LinearHead):
    """Copies of a regressor, each a Normal around its output; the output is the mixture's mean."""

    likelihood = "gaussian"
    underflow = 700.0  # a copy that the switch leaves a small weight would ruin the mean of the outputs
    remedy = "compute it with alrao.MixtureMSELoss from the model's output as it is"

    def _mixture(self, members: Members) -> Tensor:
        return Prediction.of(watched(shown_output(members), self.copies, members.evidence), 1, members)


class BernoulliHead(GaussianHead):
    """Copies of a layer of logits, one for each label; the output is the logit of the mixture."""

    likelihood = "bernoulli"
    remedy = "compute it with alrao.MixtureBCELoss from the model's output as it is"
    underflow = inf


LINEAR_HEADS: dict[str, type[LinearHead]] = {
    head.likelihood: head for head in (CategoricalHead, GaussianHead, BernoulliHead)
}
