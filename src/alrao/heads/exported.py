"""A trained mixture as a plain layer, which torch.jit.script takes too: hence no postponed annotations."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..finite import alive, fail, share_among, zero_nan, zero_nonfinite


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


class MixtureOfClassifiers(nn.Module):
    """A trained mixture as a plain layer.

    Args:
        weight: stacked weights of the copies, ``(copies, outputs, d)``.
        bias: stacked biases, or None.
        a: weights of the copies in the mixture; copies without weight are left out.
        likelihood: ``"categorical"``, for log-probabilities, or ``"bernoulli"``, for logits of the labels.
        spatial: number of axes behind the channels: those of a convolution.
    """

    weight: Tensor
    bias: Tensor
    a: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, a: Tensor, likelihood: str, spatial: int) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.spatial = spatial
        living = a > 0
        bias = weight.new_zeros(weight.shape[:2]) if bias is None else bias
        self.weight = nn.Parameter(weight.detach()[living])
        self.bias = nn.Parameter(bias.detach()[living])
        self.register_buffer("a", a[living].to(weight))

    def forward(self, z: Tensor) -> Tensor:
        """Return log-probabilities of the classes, or the logits of the labels."""
        channels = z.dim() - 1 - self.spatial  # where they are: unbatched images have no axis before them
        if self.spatial > 0:
            z = z.movedim(channels, -1)
        logits = F.linear(z, self.weight.flatten(0, 1), self.bias.flatten())
        logits = logits.unflatten(-1, self.weight.shape[:2]).movedim(-2, 0)
        if self.likelihood == "bernoulli":
            out = mixture_logit(logits, self.a)
        else:
            log_a = self.a.log().view([-1] + [1] * (logits.dim() - 1))
            out = (logits.log_softmax(-1) + log_a).logsumexp(0)
        return out.movedim(-1, channels) if self.spatial > 0 else out
