"""Averages over the copies; torch.jit.script takes them too: hence no postponed annotations."""

import torch.nn.functional as F
from torch import Tensor

from ..finite import alive, fail, share_among, zero_nan, zero_nonfinite

__all__ = ["mean_of_copies", "mixture_logit"]


def mean_of_copies(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of outputs, copies first, without failed ones; 0 where all have failed."""
    a = share_among(alive(outputs), weights.view([-1] + [1] * (outputs.ndim - 1)), 0)
    return (a * zero_nonfinite(outputs)).sum(0)


def mixture_logit(logits: Tensor, a: Tensor) -> Tensor:
    """Return the logit of a mixture of Bernoulli distributions, copies first, without failed ones."""
    log_a = fail(a.log().view([-1] + [1] * (logits.dim() - 1)), alive(logits))
    logits = zero_nonfinite(logits)
    yes = (F.logsigmoid(logits) + log_a).logsumexp(0)
    no = (F.logsigmoid(-logits) + log_a).logsumexp(0)
    return zero_nan(yes - no)
