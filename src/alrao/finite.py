"""Running statistics that stay finite: what a wild batch leaves behind is not kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["FiniteStatistics"]


class FiniteStatistics:
    """Watches the running statistics of normalisation layers, and takes back what is not finite.

    Training forward passes store their batch's statistics in the layer, finite or not. :meth:`mend` puts the
    last finite values back, entry by entry.
    """

    def __init__(self, net: nn.Module) -> None:
        self._layers = [
            module for module in net.modules() if isinstance(module, nn.modules.batchnorm._NormBase)
        ]
        self._last: list[Tensor] = []
        self.mend()

    def _running(self) -> list[Tensor]:
        buffers = (buffer for layer in self._layers for buffer in (layer.running_mean, layer.running_var))
        return [buffer for buffer in buffers if buffer is not None and not buffer.is_meta]

    def mend(self) -> None:
        """Put back what was finite last, then remember what is finite now."""
        running = self._running() if self._layers else []
        if not running:
            return
        if [last.device for last in self._last] != [now.device for now in running]:
            self._last = [now.nan_to_num(0.0, 0.0, 0.0) for now in running]
        elif not bool(torch.stack(torch._foreach_norm(running)).isfinite().all()):
            for now, last in zip(running, self._last, strict=True):
                now.copy_(torch.where(now.isfinite(), now, last))
        torch._foreach_copy_(self._last, running)
