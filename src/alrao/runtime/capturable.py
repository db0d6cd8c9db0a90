"""A step that never looks at the host: what is a decision on the CPU is a mask here.

A read on the host would stall the queue of a device, and neither a compiled graph nor a CUDA graph can hold
one. So the numbers of a step stay where they are: counters are tensors, gradients are masked whether or not
they need to be, and a step whose loss is refused runs like any other, with coefficients that change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def widest(device: torch.device) -> torch.dtype:
    """Return the widest type of real numbers that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def one_unless(*masks: Tensor) -> Tensor:
    """Return 1, or 0 for an update that is stopped, all of whose entries are masked, in the widest type."""
    stopped = reduce(torch.logical_and, (mask.all() for mask in masks))
    return stopped.logical_not().to(widest(stopped.device))


def in_type_of(tensors: Sequence[Tensor], number: Any) -> Any:
    """Return a number in the type of tensors that it multiplies: else a device does so one by one."""
    types = {each.dtype for each in tensors}
    alike = isinstance(number, Tensor) and types in ({torch.float32}, {torch.float64})
    return number.to(types.pop()) if alike else number


def counter(parameter: Tensor, on_device: bool) -> Tensor:
    """Return a count of 0 where it is needed: beside the parameter in its device's widest type, or here."""
    if on_device:
        return torch.zeros((), dtype=widest(parameter.device), device=parameter.device)
    return torch.tensor(0.0)


COUNTS = "step", "k"  # Auto's: of steps, and of those since its search or the last restart of an average


def share_counts(params: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> None:
    """Put counters that are numbers into tensors, one for equal ones: one operation counts for many."""
    shared: dict[Any, dict[str, Tensor]] = {}
    for p, state in zip(params, states, strict=True):
        numbers = {key: state[key] for key in COUNTS}
        if isinstance(numbers["step"], int):
            dtype = torch.promote_types(p.dtype, torch.float32)
            counts = {key: torch.full((), n, dtype=dtype, device=p.device) for key, n in numbers.items()}
            state |= shared.setdefault((*numbers.values(), dtype, p.device), counts)


def separate_counts(states: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> None:
    """Give parameters that step counters of their own, where others that do not step share theirs."""
    absent = {id(state.get("step")) for state in others}
    new: dict[Any, dict[str, Tensor]] = {}
    for state in states:
        if isinstance(state["step"], Tensor) and id(state["step"]) in absent:
            ids = tuple(id(state[key]) for key in COUNTS)
            state |= new.setdefault(ids, {key: state[key].clone() for key in COUNTS})


class Kept:
    """The state of a torch optimizer on a device before a step, to be put back if the step was refused."""

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


class Refusals:
    """Reports a refused loss from a device to the host asynchronously: the host looks at what has arrived."""

    def __init__(self, device: torch.device) -> None:
        self._noted = torch.zeros((), dtype=torch.bool, device=device)
        self._can_arrive = device.type == "cpu" or _is_accelerator(device)
        self._send()

    def _send(self) -> None:
        self._copy, self._event = self._noted, None
        if _is_accelerator(self._noted.device):
            self._copy = torch.empty_like(self._noted, device="cpu", pin_memory=True)
            self._copy.copy_(self._noted, non_blocking=True)
            self._event = torch.Event(self._noted.device)
            self._event.record()

    def note(self, refused: Tensor) -> None:
        """Note a refusal, on the device."""
        self._noted.logical_or_(refused)

    def arrived(self) -> bool:
        """Return whether a refusal is known on the host by now, after which it is forgotten."""
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if not self._can_arrive or capturing or not (self._event is None or self._event.query()):
            return False
        # In the memory of the host, by no operation that could wait.
        refused = bool(ctypes.c_bool.from_address(self._copy.data_ptr()).value)
        if refused:
            self._noted.zero_()
        self._send()
        return refused


def _is_accelerator(device: torch.device) -> bool:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and device.type == found.type
