"""Some of a head's copies: their rows of the parameters, and gradients that are zero for the others."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..shortcuts import storage_is_shared
from ..watch import version_of

__all__ = ["GradientRoom"]


class GradientRoom:
    """Memory for a gradient most of which is zero, so that the zeros are not written at every step.

    It is used again only where nothing else refers to the last gradient, and its zeros are written again if
    that was changed in place. On other devices than the CPU, writing zeros is cheap.
    """

    def __init__(self) -> None:
        self._full: Tensor | None = None
        self._rows = slice(0, 0)
        self._seen = 0

    def rows_of(self, parameter: Tensor, rows: slice) -> Tensor:
        """Return some copies of a stacked parameter, without a copy of them.

        The gradient has the parameter's shape, as hooks, clipping, gradient scalers and DDP expect it, and is
        0 for the other copies.
        """
        some: Tensor = _Rows.apply(parameter, rows, self)
        some.gradient_room = partial(self.room_for, parameter, rows)  # type: ignore[attr-defined]
        return some

    def room_for(self, parameter: Tensor, rows: slice) -> Tensor:
        """Return memory for the gradient of some rows; :meth:`whole` completes it."""
        full = self._full
        fits = full is not None and full.shape == parameter.shape and full.dtype == parameter.dtype
        if full is None or not fits or storage_is_shared(full):
            full = torch.zeros_like(parameter)
        elif version_of(full) != self._seen:
            full.zero_()
        elif rows != self._rows:
            full[self._rows].zero_()
        self._full, self._rows, self._seen = full, rows, version_of(full)
        return full[rows]

    def whole(self, g: Tensor, parameter: Tensor, rows: slice) -> Tensor:
        """Return a gradient of the whole parameter from that of some rows."""
        full = self._full
        if full is None or rows != self._rows or g.data_ptr() != full[rows].data_ptr():
            self.room_for(parameter, rows).copy_(g)
            full = self._full
            assert full is not None
        del g
        self._seen = version_of(full)
        if not full.is_cpu:
            self._full = None
            return full
        return full.detach()  # autograd takes this one for the gradient as it is

    def __getstate__(self) -> dict[str, Any]:
        return {}  # memory is not worth a copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, rows: slice, room: GradientRoom) -> Tensor:
        ctx.parameter, ctx.rows, ctx.room = parameter, rows, room
        return parameter[rows]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.room.whole(g, ctx.parameter, ctx.rows), None, None
