"""A step that never looks at the host: what is a decision on the CPU is a mask here.

A read on the host would stall the queue of a device, and neither a compiled graph nor a CUDA graph can hold
one. So the numbers of a step stay where they are: counters are tensors, gradients are masked whether or not
they need to be, and a step whose loss is refused runs like any other, with coefficients that change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..evidence import EvidenceOnDevice
from .update import GroupUpdate

__all__ = [
    "DeviceUpdate",
    "Gate",
    "Kept",
    "Refusals",
    "Sent",
    "counter",
    "in_type_of",
    "one_unless",
    "widest",
]


@dataclass
class Gate:
    """What a step may do, as a tensor with a single Boolean."""

    refused: Tensor
    """Whether the loss was no likelihood: then nothing may change."""

    @classmethod
    def of(cls, evidence: EvidenceOnDevice | None, device: Any, maximize: bool) -> Gate:
        """Return the gate for some evidence; without any, everything is accepted."""
        if evidence is None:
            return cls(torch.zeros((), dtype=torch.bool, device=device))
        return cls(evidence.refused(maximize=maximize))


@dataclass
class DeviceUpdate(GroupUpdate):
    """An update by tensor operations only; ``factor`` may be a tensor."""

    stopped: Tensor
    """Whether nothing may change; the gradients are 0 then."""

    _live: Tensor | None = field(default=None, init=False)

    @property
    def live(self) -> Tensor:
        """0 for an update that changes nothing, else 1."""
        if self._live is None:
            self._live = one_unless(self.stopped)
        return self._live

    @property
    def pace(self) -> Tensor:
        """The factor on all rates, 0 for an update that changes nothing."""
        return self.live * self.factor

    def one_by_one(self) -> Iterator[GroupUpdate]:
        """Return an update for each parameter: slower, with less memory at a time."""
        for p, grad, rate in zip(self.params, self.grads, self.rates, strict=True):
            yield DeviceUpdate([p], [grad], [rate], self.constant, self.factor, self.stopped)

    def move(self, directions: list[Tensor]) -> None:
        """Step against ``directions``."""
        torch._foreach_addcmul_(self.params, directions, self._pace_of_all(), -1)

    def move_ratio(self, above: list[Tensor], below: list[Tensor], divisors: list[Any]) -> None:
        """Step against ``above / below / divisors``; ``below`` is overwritten."""
        steps = list(torch._foreach_div(above, below))
        torch._foreach_div_(steps, divisors)
        torch._foreach_mul_(steps, self._pace_of_all())
        torch._foreach_sub_(self.params, steps)

    def _pace_of_all(self) -> list[Tensor]:
        if self.constant is not None:
            return [self.pace * self.constant] * len(self.params)
        return list(torch._foreach_mul(self.rates, in_type_of(self.rates, self.pace)))

    def penalised(self, weight_decay: float) -> list[Tensor]:
        """Return the gradients of the loss with an L2 penalty."""
        decay = in_type_of(self.params, self.live * weight_decay)
        return list(torch._foreach_add(self.grads, torch._foreach_mul(self.params, decay)))

    def decayed(self, weight_decay: float) -> list[Tensor]:
        """Return the gradients of the loss with an L2 penalty, clamped so that it never overshoots zero."""
        if self.constant is not None:
            return self.penalised(weight_decay)
        decay = torch._foreach_mul(self.rates, in_type_of(self.rates, self.factor))
        torch._foreach_reciprocal_(decay)
        torch._foreach_clamp_max_(decay, weight_decay)
        torch._foreach_mul_(decay, in_type_of(self.rates, self.live))
        return list(torch._foreach_addcmul(self.grads, self.params, decay))

    def shrink(self, weight_decay: float) -> None:
        """Decay the weights in proportion to their rates, at most to zero."""
        kept = torch._foreach_mul(self._pace_of_all(), -weight_decay)
        torch._foreach_add_(kept, 1)
        torch._foreach_clamp_min_(kept, 0)
        torch._foreach_mul_(self.params, kept)

    def scale_(self, kept: list[Tensor], factor: float) -> None:
        """Multiply what is kept of earlier gradients by a factor."""
        torch._foreach_mul_(kept, in_type_of(kept, 1 - self.live * (1 - factor)))

    def mix_(self, kept: list[Tensor], new: list[Tensor], part: float) -> None:
        """Move what is kept of earlier gradients a part of the way to new ones."""
        self.scale_(kept, 1 - part)
        torch._foreach_add_(kept, new, alpha=part)

    def count(self, steps: list[Any]) -> list[Any]:
        """Count this update in tensors, and return them."""
        torch._foreach_add_(steps, [self.live] * len(steps))
        return steps

    def unbias(self, beta: float, steps: list[Any]) -> list[Any]:
        """Return what a running average must be divided by after some steps; 1 - beta after none."""
        powers = list(torch._foreach_pow(beta, torch._foreach_clamp_min(steps, 1.0)))
        torch._foreach_mul_(powers, -1)
        torch._foreach_add_(powers, 1)
        return powers


def widest(device: torch.device) -> torch.dtype:
    """Return the widest type of real numbers that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def one_unless(stopped: Tensor) -> Tensor:
    """Return 1, or 0 for an update that is stopped, in the widest type of the device."""
    return stopped.logical_not().to(widest(stopped.device))


def in_type_of(tensors: Sequence[Tensor], number: Any) -> Any:
    """Return a number in the type of tensors that it multiplies: else a device does so one by one.

    In a type narrower than float32, or where there are several, it stays as it is, as does one on the host.
    """
    types = {each.dtype for each in tensors}
    alike = isinstance(number, Tensor) and types in ({torch.float32}, {torch.float64})
    return number.to(types.pop()) if alike else number


def counter(parameter: Tensor, on_device: bool) -> Tensor:
    """Return a count of 0 where it is needed: beside the parameter in its device's widest type, or here."""
    if on_device:
        return torch.zeros((), dtype=widest(parameter.device), device=parameter.device)
    return torch.tensor(0.0)


class Kept:
    """The state of a torch optimizer before a step, to be put back if the step was refused.

    A counter of torch's that is on the host counts refused steps too.
    """

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner
        self._before = {
            p: {key: value.clone() for key, value in state.items() if isinstance(value, Tensor)}
            for p, state in inner.state.items()
        }

    def restore_unless(self, accepted: Tensor) -> None:
        """Put back all tensors unless the step was accepted; those that are new begin at 0 then."""
        for p, state in self._inner.state.items():
            before = self._before.get(p, {})
            for key, now in state.items():
                if not isinstance(now, Tensor) or now.device != accepted.device:
                    continue
                was = before.get(key)
                if was is not None:
                    now.copy_(torch.where(accepted, now, was))
                elif key == "step":
                    now.mul_(accepted)


class Sent:
    """Numbers on their way to the host: read steps later, they cost no wait.

    Args:
        numbers: a vector on any device.
    """

    def __init__(self, numbers: Tensor) -> None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._waits = accelerator is not None and numbers.device.type == accelerator.type
        self._copy = numbers
        if self._waits:
            self._copy = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._copy.copy_(numbers, non_blocking=True)
            self._event = torch.Event(numbers.device)
            self._event.record()

    def read(self) -> list[float] | None:
        """Return the numbers; None on a device that computes nothing."""
        if self._waits:
            self._event.synchronize()
        return None if self._copy.is_meta else self._copy.tolist()


class Refusals:
    """The news that a loss was refused, on its way from a device to the host.

    A device notes it; the host looks at a copy that has been sent before, and so waits for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._noted = torch.zeros((), dtype=torch.bool, device=device)
        self._event: Any = None
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._waits = accelerator is not None and device.type == accelerator.type
        self._can_arrive = self._waits or device.type == "cpu"
        self._copy = torch.zeros((), dtype=torch.bool, device="cpu", pin_memory=self._waits)

    @property
    def device(self) -> torch.device:
        """Where refusals are noted."""
        return self._noted.device

    def note(self, refused: Tensor) -> None:
        """Note a refusal, on the device."""
        self._noted.logical_or_(refused)

    def arrived(self) -> bool:
        """Return whether a refusal is known on the host by now, after which it is forgotten."""
        if not self._can_arrive or _capturing():
            return False
        if self._event is None or self._event.query():
            known = self._event is not None and self._read()
            self._copy.copy_(self._noted, non_blocking=True)
            if self._waits:
                self._event = torch.Event(self.device)
                self._event.record()
            else:
                known = self._read()
            if known:
                self._noted.zero_()
                self._event = None
            return known
        return False

    def _read(self) -> bool:
        # The memory of the host itself: no operation that could wait.
        return bool(ctypes.c_bool.from_address(self._copy.data_ptr()).value)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
