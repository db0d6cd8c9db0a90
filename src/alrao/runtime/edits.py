"""Edits: changes of parameters by something else than the optimizer, such as masks, clamps and loads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sharding import INTEGERS, local


class Written:
    """Notices parameters that something else has changed since they were noted.

    On the CPU every change is noticed, by a checksum of the bits. Elsewhere a read would stall the device:
    a change that torch counts is noticed at once, and one through ``.data``, which it does not count, by
    the norm and only where numbers may be read.
    """

    def __init__(self) -> None:
        self._params: list[Tensor] = []
        self._marks: list[Tensor] = []
        self._versions: list[int] = []
        self._kinds: list[Any] = []
        self._copies: dict[Tensor, Tensor] = {}

    def note(
        self, params: list[Tensor], copied: list[Tensor], *, reads: bool, as_before: bool = False
    ) -> None:
        """Remember what parameters hold.

        Args:
            params: the parameters.
            copied: those of which a copy is kept, so that single entries can be told.
            reads: whether numbers may be read on the host.
            as_before: they hold what they held when they were last noted, maybe in another type.
        """
        self._versions = [p._version for p in params]
        if as_before and self._params == params:
            return
        self._params, self._marks, self._kinds = params, _marks(params, exact=reads), _kinds(params)
        for p in copied:
            if p in self._copies:
                self._copies[p].copy_(local(p.detach()))
            else:
                self._copies[p] = local(p.detach()).clone()

    def forgive(self) -> None:
        """Count writes that left a parameter as it was, such as a load of the same weights, as none."""
        for i, differs in enumerate(self._differ()):
            if not differs:
                self._versions[i] = self._params[i]._version

    def changed(self, *, reads: bool) -> list[tuple[Tensor, Tensor | None]]:
        """Return the parameters that have changed, and where; None is everywhere.

        Args:
            reads: whether numbers may be read on the host.
        """
        if _kinds(self._params) != self._kinds:
            return []  # cast or moved: the optimizer has not stepped since
        found = [p._version != version for p, version in zip(self._params, self._versions, strict=True)]
        if reads:
            exact = all(mark.dtype == torch.int64 for mark in self._marks)
            pairs = zip(found, self._differ(), strict=True)
            found = [differs or (counted and not exact) for counted, differs in pairs]
        return [
            (p, local(p.detach()) != self._copies[p] if p in self._copies else None)
            for p, changed in zip(self._params, found, strict=True)
            if changed or (p in self._copies and not reads)
        ]

    def _differ(self) -> list[bool]:
        """Return which parameters have other marks than before; none once they have been cast or moved."""
        if not self._params or _kinds(self._params) != self._kinds:
            return []
        before = torch.stack(self._marks)
        now = torch.stack(_marks(self._params, exact=before.dtype == torch.int64))
        found: list[bool] = (now != before).view(len(now), -1).any(1).tolist()
        return found


def _kinds(params: list[Tensor]) -> list[Any]:
    return [(p.dtype, p.device) for p in params]


def _marks(params: list[Tensor], *, exact: bool) -> list[Tensor]:
    """Return a number for each parameter that changes with its bits; see :class:`Written`."""
    parts = [x if type(x) is Tensor else local(x) for x in (p.detach() for p in params)]
    if not parts or (exact and all(part.is_cpu for part in parts)):
        return [_checksum(part) for part in parts]
    wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    return list(torch._foreach_norm(parts, dtype=wide))


def _checksum(x: Tensor) -> Tensor:
    """Return the sums of the bits of both halves: one alone would stay if rows change their places."""
    flat = x.contiguous().view(-1)
    size = flat.element_size()
    words = flat.view(torch.int64 if size == 8 or flat.numel() * size % 16 == 0 else INTEGERS[size])
    if len(words) % 2 == 0:
        return words.view(2, -1).sum(1)
    return words[1:].view(2, -1).sum(1) + words[0]
