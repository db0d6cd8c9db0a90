"""Numbers to look at, from which no loss may be computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import evidence as reports

__all__ = ["watched"]


def watched(prediction: Tensor, copies: int, evidence: Tensor) -> Tensor:
    """Return a prediction to look at. A loss that is computed from it is reported, and the step refuses it.

    Such a loss, computed past the criterion, would train nothing.
    """
    return _Watched.apply(prediction, copies, evidence)


class _Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, copies: int, evidence: Tensor) -> Tensor:
        ctx.copies = copies
        return prediction.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, Tensor]:
        return None, None, reports.no_likelihood(ctx.copies, g.abs().sum())
