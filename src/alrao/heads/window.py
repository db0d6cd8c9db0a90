"""Copies of a convolution whose kernel looks further than one place."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from .members import for_copies_and_body
from .softmax import wide


class Window(NamedTuple):
    """The arguments of a convolution, as in torch."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, layer: nn.Module) -> Window | None:
        """Return those of a layer; None for a linear layer and a convolution that is one at every place."""
        if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return None
        ones = (1,) * len(layer.kernel_size)
        unpadded = layer.padding in ("valid", "same", (0,) * len(ones))
        if layer.kernel_size == layer.stride == ones and unpadded:
            return None
        return cls(layer.kernel_size, layer.stride, layer.padding, layer.dilation)

    def of_all_copies(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return every copy's outputs, copies first, twice: for the copies and for the body."""
        return for_copies_and_body(self._convolved, z, *([weight] if bias is None else [weight, bias]))

    def _convolved(self, z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        copies, outputs, _ = weight.shape
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel_size) - 1]
        weight = weight.view(copies * outputs, -1, *self.kernel_size)
        bias = None if bias is None else bias.flatten()
        out: Tensor = convolve(z, weight, bias, self.stride, self.padding, self.dilation)
        return out.to(wide(out.dtype)).unflatten(1, (copies, outputs)).movedim(1, 0)
