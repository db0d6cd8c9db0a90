"""What every head has in common: stacked copies, the posterior over them, the leaf for the evidence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..averaging import Averaging
from ..features import register_features
from .mixture import EVIDENCE_EXTRA

__all__ = ["Head", "stacked"]


def stacked(parameter: Tensor, copies: int, keep: bool) -> nn.Parameter:
    """``copies`` of a parameter: as it is, or initialised afresh by the scheme that it was.

    Fresh values are the parameter's own in a random order: whatever law its entries were drawn from,
    independently of each other (uniform, normal, zero, …), these are drawn from it too.
    """
    copied = parameter.detach().expand(copies, *parameter.shape).clone()
    if not keep and not parameter.is_meta:
        for entries in copied.view(copies, -1):
            entries.copy_(entries[torch.randperm(entries.numel()).to(entries.device)])
    return nn.Parameter(copied, requires_grad=parameter.requires_grad)


class Head(nn.Module):
    """Copies of an output layer, in its place in the network, averaged by a posterior.

    Every parameter has the copies as its first axis.
    """

    likelihood: str
    remedy: str
    """How the loss must be computed, for the message when it was not."""

    def __init__(self, copies: int, averaging: Averaging) -> None:
        super().__init__()
        self.copies = copies
        self.averaging = averaging
        self.rates: Tensor | None = None  # the copies' learning rates, once an optimizer has set them
        self._new_evidence(torch.empty(0))

    def _new_evidence(self, like: Tensor) -> None:
        # A leaf that is no parameter of the model; its gradient is the evidence (see alrao.fused).
        size = self.copies + EVIDENCE_EXTRA + (self.averaging.evidence == "sum")
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.evidence = torch.zeros(size, dtype=dtype, device=like.device, requires_grad=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._new_evidence(next(self.parameters()))
        return self

    def leaf(self) -> Tensor:
        """The leaf for the evidence; a frozen head gathers none, and asks for no gradient by itself."""
        for p in self._parameters.values():
            if p is not None and p.requires_grad:
                return self.evidence
        return self.evidence.detach()

    def __getstate__(self) -> dict[str, Any]:
        # As for parameters, a copy does not take the gradient along.
        return {**super().__getstate__(), "evidence": self.evidence.detach().clone().requires_grad_()}

    def verdict(self, log_likelihood: list[float]) -> list[float]:
        """The evidence of a batch as the posterior is to see it."""
        return log_likelihood

    @abstractmethod
    def layer(self, copy: int) -> nn.Module:
        """Copy number ``copy`` as a plain layer of the original kind."""

    @abstractmethod
    def mixture(self) -> nn.Module:
        """The whole mixture as a plain layer."""

    def extra_repr(self) -> str:
        """The size, as in the layer that this one replaces."""
        return f"copies={self.copies}"


@register_features(Head)
def _copies(head: Head) -> dict[str, int | Tensor]:
    return {name: 0 for name, _ in head.named_parameters(recurse=False)}
