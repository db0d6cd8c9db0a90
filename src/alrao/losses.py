r"""Losses for regression and for binary or multi-label outputs: negative log-likelihoods of mixtures.

The value of each is the mixture's loss, :math:`-\log \sum_j a_j p_j(y)`. The body receives the mixture's
gradient, each copy its own, and the leaf the evidence. All three scale with any factor on the loss.
"""

from __future__ import annotations

from math import log, pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import _reduction as _Reduction

from .heads.members import bernoulli_nll, mixture_nll
from .tensors import LogProbs, Members, Prediction, members_of


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def _check(name: str, likelihood: str, prediction: Tensor, target: Tensor) -> Members | None:
    """Return the members behind the prediction; None for the output of a plain model."""
    members = members_of(prediction) if isinstance(prediction, Prediction) else None
    given = "categorical" if isinstance(prediction, LogProbs) else members and members.likelihood
    if given not in (None, likelihood):
        raise TypeError(
            f"{name} is for likelihood={likelihood!r}, got an output of a model with {given!r}: use its "
            f"loss (a classifier's is cross_entropy), or build it with Alrao(net, likelihood={likelihood!r})"
        )
    if prediction.shape != target.shape:
        raise ValueError(
            f"{name} needs a target of the prediction's shape {tuple(prediction.shape)}, "
            f"got {tuple(target.shape)}: reshape one of them"
        )
    return members


class _MixtureLoss(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction


class MixtureMSELoss(_MixtureLoss):
    r"""Loss for regression: what :class:`torch.nn.MSELoss` is for a plain network.

    Each copy :math:`j` is a Normal around its prediction :math:`\mu_j`; the loss of a sample is that of the
    mixture, up to a constant,

    .. math:: L = -\log \sum_j a_j \exp\left(-\tfrac{1}{2\sigma^2} \lVert y - \mu_j \rVert^2\right)

    with one mixture over all :math:`d` outputs of a sample. The gradient is that of :math:`L`, whose weight
    beside other losses is that of a likelihood. The value is in the units of a squared error,
    :math:`\tfrac{2\sigma^2}{d} L`: for a plain tensor, or with one copy, that of
    :class:`torch.nn.MSELoss`. The reduction is over the samples.

    Args:
        variance: :math:`\sigma^2`.
        full: return the negative log-likelihood itself, :math:`L + \tfrac{d}{2}\log(2\pi\sigma^2)`.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; without one, a number for each sample.

    Example:
        >>> import torch, alrao
        >>> model = alrao.Alrao(torch.nn.Linear(3, 1), likelihood="gaussian")
        >>> loss = alrao.MixtureMSELoss()(model(torch.randn(8, 3)), torch.randn(8, 1))
        >>> loss.backward()
    """

    def __init__(self, *, variance: float = 1.0, full: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not 0 < variance < torch.inf:
            raise ValueError(f"variance must be positive and finite, got {variance!r}")
        self.variance = variance
        self.full = full

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``prediction``, the output of the model, for ``target`` of the same shape."""
        members = _check(type(self).__name__, "gaussian", prediction, target)
        if members is None:
            axis: int | None = prediction.ndim - 1 if prediction.ndim > 1 else None
            losses = -self._log_likelihood(prediction, target, axis)
        else:
            assert isinstance(prediction, Prediction)
            axis = None if prediction.axis is None else prediction.axis - prediction.ndim
            own, mixed = (self._log_likelihood(x, target, axis) for x in (members.own, members.mixed))
            at_0 = -self._log_likelihood(torch.zeros_like(target), target, axis)
            losses = mixture_nll(own, mixed, members, if_all_fail=at_0)
        loss = _reduce(losses, self.reduction)
        if self.full:
            return loss
        outputs = 1 if axis is None or self.reduction == "sum" else prediction.shape[axis]
        shown = (loss * (2 * self.variance / outputs)).detach()
        return shown + (loss - loss.detach())  # with the gradient of the loss

    def _log_likelihood(self, mean: Tensor, target: Tensor, axis: int | None) -> Tensor:
        scores = (mean - target).square() / (-2 * self.variance)
        if self.full:
            scores = scores - log(2 * pi * self.variance) / 2
        return scores if axis is None else scores.sum(axis)

    def extra_repr(self) -> str:
        """Return the arguments, as in the constructor."""
        return f"variance={self.variance}, full={self.full}, reduction={self.reduction!r}"


class MixtureBCELoss(_MixtureLoss):
    r"""Loss for binary and multi-label outputs: :class:`torch.nn.BCEWithLogitsLoss` for mixtures.

    One mixture of Bernoulli distributions for each label: :math:`-\log \sum_j a_j\, \sigma(\pm l_j)`. The
    model returns the mixture's logit, so ``output > 0`` decides and ``output.sigmoid()`` is the probability.
    ``torch.nn.BCEWithLogitsLoss`` returns the same for the model's output.

    Args:
        pos_weight: weight of the positive examples, for each label.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, over samples and labels.
    """

    pos_weight: Tensor | None

    def __init__(self, *, pos_weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``prediction``, the output of the model, for ``target`` of the same shape."""
        return binary_cross_entropy(
            prediction, target, pos_weight=self.pos_weight, reduction=self.reduction, name=type(self).__name__
        )


def binary_cross_entropy(
    prediction: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
    *,
    name: str = "binary_cross_entropy_with_logits",
) -> Tensor:
    """Return ``F.binary_cross_entropy_with_logits`` of the output of a model with Bernoulli outputs."""
    members = _check(name, "bernoulli", prediction, target)
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    target = target.to(prediction.dtype)
    if members is None:
        plain = prediction.as_subclass(Tensor)
        losses = F.binary_cross_entropy_with_logits(plain, target, pos_weight=pos_weight, reduction="none")
    else:
        losses = bernoulli_nll(members, target if pos_weight is None else target * pos_weight, 1 - target)
    if weight is not None:
        losses = losses * weight
    return _reduce(losses, reduction)


Prediction.routes[F.binary_cross_entropy_with_logits] = binary_cross_entropy
