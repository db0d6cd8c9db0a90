"""What a step updates in a parameter group: the parameters with a gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..finite import mask_gradients, mask_on_device
from .blocks import Part
from .feature_rates import GroupRates
from .on_device import DeviceUpdate, Gate
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
        params, grads, of_features = [], [], []
        self.parts: list[Part] = []
        """What is updated of the head's parameters, if some copies sleep; it stands for them in the lists."""
        self.sparse: list[tuple[Tensor, Tensor, Any]] = []
        """Parameters with a sparse gradient, their gradients and rates; they are in no other list."""
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
        self.params = params
        self._grads, self._rates, self._constant = grads, of_features, rates.constant

    def update(self, gate: bool | Gate, factor: Any) -> GroupUpdate | None:
        """Return the update of all of them, with 0 for gradients that must not be applied.

        It is None, or on a device one that changes nothing, if none of the gradients is usable.

        Args:
            gate: what the step may do, or whether the loss was finite.
            factor: the group's ``lr``.
        """
        if isinstance(gate, Gate):
            masked, stopped = mask_on_device(self._grads, gate.refused)
            return DeviceUpdate(self.params, masked, self._rates, self._constant, factor, stopped)
        grads = mask_gradients(self._grads, suspect=not gate)
        if grads is None:
            return None
        return GroupUpdate(self.params, grads, self._rates, self._constant, float(factor))
