"""The posterior over the copies of the output layer: how much each copy is believed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import isfinite, log
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Averaging", "BayesianAverage", "Switch"]


class Averaging(nn.Module):
    """A probability over ``copies`` models, moved by the evidence each of them earns.

    All state is in buffers, so it is saved, moved and restored with the model. It stays in float64
    (float32 on devices that have nothing wider) whatever the rest of the model is cast to.

    Args:
        copies: number of models averaged.
        evidence: what one batch counts for. ``"mean"`` is the mean log-likelihood over its samples
            (as in the published results), ``"sum"`` their sum.
    """

    weights: Tensor

    def __init__(self, copies: int, *, evidence: str = "mean") -> None:
        super().__init__()
        if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
            raise ValueError(f"copies must be a whole number of at least 1, got {copies!r}")
        if evidence not in ("mean", "sum"):
            raise ValueError(f"evidence must be 'mean' or 'sum', got {evidence!r}")
        self.copies = copies
        self.evidence = evidence
        self._add_state("weights", copies)

    def _add_state(self, name: str, *shape: int, persistent: bool = True) -> None:
        self.register_buffer(name, torch.empty(shape, dtype=torch.float64), persistent)

    @abstractmethod
    def reset(self) -> None:
        """Return to the prior: every copy is believed alike."""

    @abstractmethod
    def _absorb(self, log_likelihood: Tensor, factor: float, alive: Tensor | None) -> None:
        """Move the state by an observation with the log-likelihoods ``factor * log_likelihood``.

        They are finite, except where ``alive`` says that a copy is not: ``-inf`` there.
        """

    @property
    def log_weights(self) -> Tensor:
        """The logarithm of ``weights``; ``-inf`` for a copy that is out."""
        return self.weights.log()

    def update(self, log_likelihood: Tensor) -> None:
        """Take in one observation: the log-likelihood that each copy gave to what happened.

        ``-inf`` or nan takes a copy out: its weight is exactly 0. If all are out, nothing changes.
        """
        if log_likelihood.shape != (self.copies,):
            raise ValueError(
                f"log_likelihood must hold one number for each of the {self.copies} copies, "
                f"shape ({self.copies},), got {tuple(log_likelihood.shape)}"
            )
        log_likelihood = log_likelihood.detach().to(self.weights)
        alive = log_likelihood.isfinite()  # +inf too is a failure of the copy, not evidence for it
        if alive.all():
            self._absorb(log_likelihood, 1.0, None)
        elif alive.any():
            self._absorb(log_likelihood.masked_fill(~alive, -torch.inf), 1.0, alive)

    def update_with_sums(self, evidence: Tensor) -> None:
        """Take in the evidence of some backward passes: the leaf's gradient (see :mod:`alrao.fused`)."""
        numbers = evidence.tolist()
        total = numbers[self.copies]
        if total == 0:
            return  # nothing was observed: an empty batch, or all of it ignored
        factor = (numbers[-1] if self.evidence == "sum" else 1.0) / total
        scores = evidence[: self.copies]
        if isfinite(sum(numbers) * factor):
            self._absorb(scores, factor, None)  # the usual case, in few operations
        else:
            self.update(scores * factor)

    def extra_repr(self) -> str:
        """The arguments, as in the constructor."""
        return f"{self.copies}, evidence={self.evidence!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Follow the model to another device, never to a narrower type.
        unmaterialised = self.weights.is_meta
        wide = {name: buffer for name, buffer in self.named_buffers() if buffer.is_floating_point()}
        for name, buffer in wide.items():
            self._buffers[name] = buffer.float()
        super()._apply(fn, recurse)
        device = self.weights.device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        if unmaterialised and device.type != "meta":
            wide = {name: torch.empty_like(buffer, device=device) for name, buffer in wide.items()}
        for name, buffer in wide.items():
            self._buffers[name] = buffer.to(device, dtype)
        if unmaterialised and device.type != "meta":
            self.reset()
        return self


class BayesianAverage(Averaging):
    r"""Plain Bayesian model averaging: :math:`a_j \propto \prod_t p_j(t)`.

    A copy that did badly early has to earn all of it back before it counts again (the catch-up
    phenomenon), which is what :class:`Switch` is there to avoid. The convergence theorem of the paper
    (appendix B) is about this average.

    Args:
        copies: number of models averaged.
        evidence: ``"mean"`` or ``"sum"`` of a batch's log-likelihoods.

    Example:
        >>> import torch, alrao
        >>> average = alrao.BayesianAverage(2)
        >>> average.update(torch.tensor([0.9, 0.1]).log())
        >>> [round(weight, 4) for weight in average.weights.tolist()]
        [0.9, 0.1]
    """

    _log_weights: Tensor

    def __init__(self, copies: int, *, evidence: str = "mean") -> None:
        super().__init__(copies, evidence=evidence)
        self._add_state("_log_weights", copies)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the uniform prior."""
        self._log_weights.fill_(-log(self.copies))
        self.weights.fill_(1 / self.copies)

    @property
    def log_weights(self) -> Tensor:
        """The logarithm of ``weights``, exact also where ``weights`` underflows."""
        return self._log_weights.clone()

    def _absorb(self, log_likelihood: Tensor, factor: float, alive: Tensor | None) -> None:
        joint = torch.add(self._log_weights, log_likelihood, alpha=factor).log_softmax(0)
        if joint.isnan().all():
            return  # every copy that still had weight failed on this batch: it says nothing of the others
        self._log_weights.copy_(joint)
        torch.exp(joint, out=self.weights)


class Switch(Averaging):
    r"""The switch of van Erven, Grünwald and de Rooij: a posterior over *sequences* of models.

    Every way of switching between the copies over time is a hypothesis; its prior is geometric in the
    number of switches, uniform over the copies, and :math:`\pi_T(t) = 1/(t(t+1))` over the moments of
    switching. The posterior weight of a copy is that of all sequences which use it next, computed
    exactly by the forward recursion of a hidden Markov model. Of each copy's weight, :math:`w^a`
    belongs to sequences that may still switch and :math:`w^b` to those that never will again. With
    likelihoods :math:`p_j`, the sum over :math:`w^a` after the first line, and :math:`h = 1/(t+1)`:

    .. math::
        w^a_j, w^b_j &\leftarrow w^a_j p_j,\; w^b_j p_j \\
        w^a_j &\leftarrow (1-h)\, w^a_j + h\, \theta \textstyle\sum_i w^a_i / N \\
        w^b_j &\leftarrow w^b_j + h\, (1-\theta) \textstyle\sum_i w^a_i / N \\
        a_j &\propto w^a_j + w^b_j, \qquad t \leftarrow t + 1

    Args:
        copies: number of models averaged, :math:`N`.
        theta: :math:`\theta`, the prior probability that a switch is followed by another one.
        evidence: ``"mean"`` or ``"sum"`` of a batch's log-likelihoods.

    Example:
        >>> import torch, alrao
        >>> switch = alrao.Switch(2)
        >>> for _ in range(20):
        ...     switch.update(torch.tensor([-0.1, -1.0]))
        >>> bool(switch.weights[0] > 0.9)
        True

    Reference: van Erven, Grünwald, de Rooij, "Catching up faster by switching sooner", 2012.
    """

    t: Tensor
    _log_joint: Tensor
    _switching: Tensor

    def __init__(self, copies: int, theta: float = 0.999, *, evidence: str = "mean") -> None:
        super().__init__(copies, evidence=evidence)
        if not 0.0 < theta < 1.0:
            raise ValueError(f"theta must lie strictly between 0 and 1, got {theta!r}")
        self.theta = theta
        self._add_state("t")
        self._add_state("_log_joint", 2, copies)  # log wa, log wb
        self._add_state("_switching", 2 * copies, 2 * copies, persistent=False)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the prior: uniform, ``t = 1``."""
        self.t.fill_(1)
        self._log_joint[0] = log(self.theta / self.copies)
        self._log_joint[1] = log((1 - self.theta) / self.copies)
        self.weights.fill_(1 / self.copies)
        # What becomes of (wa, wb) at a moment of switching: wb stays, wa is shared out.
        self._switching.zero_().fill_diagonal_(1)
        self._switching[: self.copies, : self.copies] = self.theta / self.copies
        self._switching[self.copies :, : self.copies] = (1 - self.theta) / self.copies

    def _absorb(self, log_likelihood: Tensor, factor: float, alive: Tensor | None) -> None:
        joint = torch.add(self._log_joint, log_likelihood, alpha=factor).view(-1).softmax(0)
        h = 1 / (self.t.item() + 1)
        joint = torch.addmv(joint, self._switching, joint, beta=1 - h, alpha=h).view(2, -1)
        torch.log(joint, out=self._log_joint)
        torch.sum(joint, 0, out=self.weights)
        self.t.add_(1)
        if alive is not None:
            # A copy that failed has its share of the pool like the others, so that it can come back, but it
            # predicts nothing now: the sequences that use it next have likelihood 0.
            weights = self.weights * alive
            torch.div(weights, weights.sum(), out=self.weights)

    def extra_repr(self) -> str:
        """The arguments, as in the constructor."""
        return f"{self.copies}, theta={self.theta}, evidence={self.evidence!r}"
