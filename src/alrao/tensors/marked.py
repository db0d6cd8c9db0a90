"""What all outputs with a meaning have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Marked"]


class Marked(torch.Tensor):
    """A tensor that remembers what it is; ``axis`` is that of the outputs, None once that is lost."""

    axis: int | None = None

    def as_subclass(self, cls: Any) -> Any:
        """Return a plain tensor; for the type of another package, which has no meaning here, the output."""
        return super().as_subclass(cls) if cls is Tensor else self
