"""The posterior over the copies of the head."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from math import exp, inf, log
from operator import add, index, mul
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .finite import fail, fail_nonfinite, without_failed


class Posterior(nn.Module):
    """A posterior over ``copies`` models, updated by the evidence for each of them.

    All state is in one buffer, so it is saved, moved and restored with the model. It stays in float64
    (float32 on devices that have nothing wider) whatever the rest of the model is cast to.

    A recursion is tensor operations, in which a failure is a mask, without a read that would stall the queue
    of a device. That of the switch takes 97 µs on the CPU; so there it runs on Python numbers, in 12 µs.

    Args:
        copies: number of models averaged.
    """

    _state: Tensor
    _exchange: tuple[Tensor, Tensor] | None = None  # constants on the device of the state

    def __init__(self, copies: int) -> None:
        super().__init__()
        if isinstance(copies, bool) or not hasattr(copies, "__index__") or copies < 1:
            raise ValueError(f"copies must be a whole number of at least 1, got {copies!r}")
        self.copies = index(copies)

    @abstractmethod
    def _prior(self) -> list[float]:
        """Return the state before any observation; the weights come first in it."""

    @abstractmethod
    def _observe_on_device(self, state: Tensor, log_likelihood: Tensor) -> None:
        """Update the state by tensor operations, unless all copies have failed: theirs is ``-inf``."""

    @property
    def weights(self) -> Tensor:
        """The posterior probability of each copy; sums to 1."""
        return self._state[: self.copies].clone()

    @property
    def log_weights(self) -> Tensor:
        """The logarithm of ``weights``; ``-inf`` for a failed copy."""
        return self.weights.log()

    def column(self, dtype: torch.dtype) -> Tensor:
        """Return a copy of the weights as a column, ``(copies, 1)``."""
        return self._state[: self.copies, None].to(dtype, copy=True)

    def column_of(self, rows: slice, mixing: slice, dtype: torch.dtype) -> Tensor:
        """Return the weights of some copies as a column: 0 but for those mixing, whose weights sum to 1."""
        some = self.column(dtype)[mixing]
        some = some / some.sum().clamp(min=torch.finfo(dtype).tiny)
        return F.pad(some, (0, 0, mixing.start - rows.start, rows.stop - mixing.stop))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_exchange": None}

    @property
    def at_prior(self) -> Tensor:
        """Whether nothing has been observed yet, as a single Boolean on the device."""
        return (self._state == torch.tensor(self._prior(), dtype=torch.float64).to(self._state)).all()

    def reset(self) -> None:
        """Reset the posterior to the prior, which is uniform over the copies."""
        prior = torch.tensor(self._prior(), dtype=torch.float64)
        if "_state" in self._buffers:
            self._state.copy_(prior)
        else:
            self.register_buffer("_state", prior)

    def update(self, log_likelihood: Tensor | Sequence[float], underflow: float = inf) -> None:
        """Update the posterior with one observation: the log-likelihood that each copy gave to it.

        A copy with ``-inf`` or nan, or with ``underflow`` less than the best one, has failed: its weight is
        exactly 0. If all have, nothing changes.
        """
        if not isinstance(log_likelihood, Tensor):
            log_likelihood = self._state.new_tensor(log_likelihood)
        self.update_on_device(log_likelihood, underflow)

    @torch.no_grad()
    def update_on_device(self, log_likelihood: Tensor, underflow: float = inf) -> None:
        """Update the posterior as :meth:`update` does, without a read on the host."""
        if log_likelihood.shape != (self.copies,):
            raise _misfit(self.copies, log_likelihood)
        numbers = fail_nonfinite(log_likelihood)
        if underflow < inf:
            numbers = fail(numbers, numbers.amax() - numbers < underflow)
        self._observe_on_device(self._state, numbers)

    def extra_repr(self) -> str:
        """Return the arguments, as in the constructor."""
        return f"{self.copies}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Follow the model to another device, never to a narrower type.
        state = self._state
        self._buffers["_state"] = state.float()
        super()._apply(fn, recurse)
        device, shared = self._state.device, self._state.is_shared()
        if state.is_meta and device.type != "meta":
            state = torch.tensor(self._prior(), dtype=torch.float64)
        state = state.to(device, torch.float32 if device.type == "mps" else torch.float64)
        self._buffers["_state"] = state.share_memory_() if shared else state
        return self


class BayesianAverage(Posterior):
    r"""Plain Bayesian model averaging: :math:`a_j \propto \prod_t p_j(t)`.

    A copy that was behind early must catch up on all of it before it counts again (the catch-up
    phenomenon), which :class:`Switch` avoids. The paper's convergence theorem (appendix B) is about this
    average.

    Args:
        copies: number of models averaged.

    Example:
        >>> import torch, alrao
        >>> average = alrao.paper.BayesianAverage(2)
        >>> average.update(torch.tensor([0.9, 0.1]).log())
        >>> [round(weight, 4) for weight in average.weights.tolist()]
        [0.9, 0.1]
    """

    def __init__(self, copies: int) -> None:
        super().__init__(copies)
        self.reset()

    @property
    def log_weights(self) -> Tensor:
        """The logarithm of ``weights``, exact also where ``weights`` underflows."""
        return self._state[self.copies :].clone()

    def _prior(self) -> list[float]:
        return [1 / self.copies] * self.copies + [-log(self.copies)] * self.copies

    def _observe_on_device(self, state: Tensor, log_likelihood: Tensor) -> None:
        joint = state[self.copies :] + log_likelihood
        logs = joint - joint.logsumexp(0)
        state.copy_(torch.where(joint.amax() > -inf, torch.cat([logs.exp(), logs]), state))


class Switch(Posterior):
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

    Example:
        >>> import torch, alrao
        >>> switch = alrao.Switch(2)
        >>> for _ in range(20):
        ...     switch.update(torch.tensor([-0.1, -1.0]))
        >>> bool(switch.weights[0] > 0.9)
        True

    Reference: van Erven, Grünwald, de Rooij, "Catching up faster by switching sooner", 2012.
    """

    def __init__(self, copies: int, theta: float = 0.999) -> None:
        super().__init__(copies)
        if not 0.0 < theta < 1.0:
            raise ValueError(f"theta must lie strictly between 0 and 1, got {theta!r}")
        self.theta = theta
        self.reset()
        self._constants(self._state)  # a compiled step would be compiled again

    @property
    def t(self) -> int:
        """The number of observations so far, plus one."""
        return int(self._state[-1])

    def _prior(self) -> list[float]:
        n, theta = self.copies, self.theta
        return [1 / n] * n + [theta / n] * n + [(1 - theta) / n] * n + [1.0]

    def update(self, log_likelihood: Tensor | Sequence[float], underflow: float = inf) -> None:
        """Update the posterior with one observation, as in :class:`Posterior`."""
        state, numbers = self._state, log_likelihood
        if isinstance(numbers, Tensor) and state.is_cpu:
            numbers = numbers.tolist() if numbers.ndim == 1 else []
        if isinstance(numbers, Tensor):
            self.update_on_device(numbers, underflow)
            return
        if len(numbers) != self.copies:
            raise _misfit(self.copies, log_likelihood)
        if not -inf < sum(numbers) < inf:
            numbers = without_failed(numbers)
        if (best := max(numbers)) > -inf:
            if underflow < inf:
                numbers = [x if best - x < underflow else -inf for x in numbers]
            updated = array("d", self._posterior(state.tolist(), numbers))
            state.copy_(torch.frombuffer(updated, dtype=torch.float64))  # a third of the time of tensor()

    def _posterior(self, state: list[float], log_likelihood: Sequence[float]) -> list[float]:
        """Return the state after an observation; ``-inf`` is for failed copies, which not all are."""
        # Probabilities are safe, without logarithms: every copy gets a share of the pool at each step, so a
        # weight that underflows would not have mattered again.
        n, theta, t = self.copies, self.theta, state[-1]
        top = max(log_likelihood)
        if 0.0 in state[:n]:  # failed copies are no measure for those that predicted
            top = max((x for x, a in zip(log_likelihood, state, strict=False) if a > 0), default=-inf)
            if top == -inf:  # all that had weight failed: the others start again
                return self._posterior([*self._prior()[:-1], t], log_likelihood)
            log_likelihood = [min(x, top) for x in log_likelihood]
        p = [exp(x - top) for x in log_likelihood]
        joint = list(map(mul, state[n:-1], p + p))
        h, total = 1 / (t + 1), sum(joint)
        pool = h * sum(joint[:n]) / (n * total)
        stay, back, out = (1 - h) / total, theta * pool, (1 - theta) * pool
        wa = [stay * w + back for w in joint[:n]]
        wb = [w / total + out for w in joint[n:]]
        if -inf in log_likelihood:
            # The sequences that use a failed copy next have likelihood 0. It can come back, with its next
            # share of the pool.
            wa, wb = (
                [w if x > -inf else 0.0 for w, x in zip(ws, log_likelihood, strict=True)] for ws in (wa, wb)
            )
            total = sum(wa) + sum(wb)
            wa, wb = [w / total for w in wa], [w / total for w in wb]
        return [*map(add, wa, wb), *wa, *wb, t + 1]

    def _observe_on_device(self, state: Tensor, log_likelihood: Tensor) -> None:
        # Few operations: every one is a launch. With the joint weights q of a copy and an observation, both
        # lines of the recursion are q + h B q, with a matrix B whose columns sum to 0. The sums of both, the
        # weights of the copies, stand before them.
        n, weights, t = self.copies, state[:-1], state[-1]
        floor, exchange = self._constants(state)
        predicts = log_likelihood > -inf
        known = predicts.any()
        t += known
        # If all that had weight failed, the others start again: their weight of 0 counts as a tiny one.
        joint = torch.maximum(weights[n:].log().view(2, n), floor) + log_likelihood
        q = joint.view(-1).softmax(0)
        stays, moves = torch.mv(exchange, q).view(2, -1)
        found = torch.addcdiv(stays, moves, t).view(3, n) * predicts
        torch.where(known, (found / found[0].sum()).view(-1), weights, out=weights)

    def _constants(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least logarithm of a weight, and the matrices of the weights and of their exchange."""
        known = self._exchange
        if known is None or known[0].device != state.device or known[0].dtype != state.dtype:
            n, theta = self.copies, self.theta
            to_all = torch.tensor([[theta / n]] * n + [[(1 - theta) / n]] * n, dtype=torch.float64)
            exchange = torch.cat([to_all.expand(-1, n) - torch.eye(2 * n, n), torch.zeros(2 * n, n)], 1)
            all_three = torch.cat([torch.eye(n).repeat(1, 2), torch.eye(2 * n)]).to(exchange)
            least = to_all.view(2, n).log() - torch.finfo(state.dtype).eps ** -0.5
            known = least.to(state), torch.cat([all_three, all_three @ exchange]).to(state)
            if not torch.compiler.is_compiling():  # a compiled step would be compiled again
                self._exchange = known
        return known

    def extra_repr(self) -> str:
        """Return the arguments, as in the constructor."""
        return f"{self.copies}, theta={self.theta}"


def _misfit(copies: int, log_likelihood: Any) -> ValueError:
    return ValueError(
        f"log_likelihood must hold one number for each of the {copies} copies, got {log_likelihood!r}"
    )


def posterior_bar(weights: Tensor) -> str:
    """Return weights between 0 and 1 as a row of bars, one for each."""
    levels = " ▁▂▃▄▅▆▇█"
    return "".join(levels[min(8, int(8 * weight + 0.999))] for weight in weights.tolist())
