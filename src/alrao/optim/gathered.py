"""What a step updates in a parameter group: the parameters with a gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..finite import in_range, zero_unusable
from .blocks import Part
from .feature_rates import GroupRates
from .on_device import Gate
from .update import GroupUpdate

__all__ = ["Gathered"]


class Gathered:
    """The parameters of a group that have a gradient, with the rates of their features.

    Args:
        rates: the group.
        state: the optimizer's state.
        awake: the copies of the head that are updated; None: all.
    """

    def __init__(self, rates: GroupRates, state: Any, awake: slice | None) -> None:
        params, grads, of_features, of_body = [], [], [], []
        self.parts: list[Part] = []
        """What is updated of the head's parameters, if some copies sleep; it stands for them in the lists."""
        self.sparse: list[tuple[Tensor, Tensor, Any]] = []
        """Parameters with a sparse gradient, their gradients and rates; they are in no other list."""
        self.masked = False
        """Whether gradients were set to 0."""
        for p, rate, theirs in rates.entries:
            grad = p.grad
            if grad is None:
                continue
            if grad.is_sparse:
                self.sparse.append((p, grad, rate))
                continue
            if theirs and awake is not None:
                self.parts.append(part := Part(state, p, (awake,)))
                p, grad, rate = part.param, part.of(grad), part.of(rate)
            params.append(p)
            grads.append(grad)
            of_features.append(rate)
            if not theirs:
                of_body.append(grad)
        self.params = params
        self._grads, self._rates, self._constant = grads, of_features, rates.constant
        self._of_body = of_body

    def update(self, gate: bool | Gate, factor: Any) -> GroupUpdate:
        """Return the update of all of them, with 0 for gradients that must not be applied.

        Args:
            gate: what the step may do, or whether the loss was finite.
            factor: the group's ``lr``.
        """
        grads = self._grads
        if isinstance(gate, Gate):
            return gate.update(self.params, grads, self._rates, self._constant, factor)
        if not (gate and in_range(self._of_body)):
            self.masked = True
            grads = [zero_unusable(grad) for grad in grads]
        return GroupUpdate(self.params, grads, self._rates, self._constant, float(factor))
