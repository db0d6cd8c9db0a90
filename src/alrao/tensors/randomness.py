"""The state of torch's random numbers, to draw the same ones again."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["Randomness"]


class Randomness:
    """The state of the generators of the CPU and of the GPUs that hold some tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if devices and torch.cuda.is_current_stream_capturing():
            devices = set()
        self._cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restore(self) -> None:
        """Put it back."""
        torch.set_rng_state(self._cpu)
        for device, numbers in self._cuda:
            torch.cuda.set_rng_state(numbers, device)
