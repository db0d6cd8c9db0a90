"""Edits: changes of parameters by something else than the optimizer, such as masks, clamps and loads."""

from __future__ import annotations

from ctypes import string_at
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from .sharding import INTEGERS, local

version_of, is_cpu, is_meta = map(attrgetter, ("_version", "is_cpu", "is_meta"))  # faster than loops

SMALL = 2**14
"""Bytes of a parameter of which a copy is kept in place of a checksum."""


class Written:
    """Notices parameters that something else has changed since they were noted.

    On the CPU every change is noticed, by a checksum of the bits, or a copy of few of them. Elsewhere a read
    would stall the device: a change that torch counts is noticed at once, and one through ``.data``, which
    it does not count, by the norm and only where numbers may be read.
    """

    def __init__(self) -> None:
        self._params: list[Tensor] = []
        self._kinds: list[Any] = []
        self._versions: list[int] = []
        self._exact = False  # whether marks are checksums
        self._marks: list[Any] = []
        self._copies: dict[Tensor, Tensor] = {}
        self._memory: list[Any] = []
        self._words: list[Tensor | None] = []  # the bits of large parameters, which are in that memory

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
        same = len(params) == len(self._params) and all(map(is_, params, self._params))
        self._versions = list(map(version_of, params))
        if as_before and same and params:
            return
        self._exact = reads and all(map(is_cpu, params))
        self._params = params
        self._marks = self._marked()
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
        params = self._params
        reads = reads and not any(map(is_meta, params))
        found = self._differ() if reads else []
        if not (reads and self._exact) and _kinds(params) == self._kinds:
            found = found or [p in self._copies for p in params]
            pairs = zip(found, params, self._versions, strict=True)
            found = [differs or p._version != then for differs, p, then in pairs]
        return [
            (p, local(p.detach()) != self._copies[p] if p in self._copies else None)
            for p, differs in zip(params, found, strict=False)  # none are found once they are cast
            if differs
        ]

    def _differ(self) -> list[bool]:
        """Return which parameters have other marks than before; none once they have been cast or moved."""
        kinds, before, now = self._kinds, self._marks, self._marked()
        if self._kinds != kinds:
            self._kinds, self._memory = kinds, []
            return []
        if now and not self._exact:
            differ: list[bool] = (torch.stack(now) != torch.stack(before)).tolist()
            return differ
        return [] if now == before else [mark != then for mark, then in zip(now, before, strict=True)]

    def _marked(self) -> list[Any]:
        """Return for each parameter what changes with its bits; see :class:`Written`."""
        parts = [p if type(p) in (nn.Parameter, Tensor) else local(p) for p in self._params]
        if not self._exact:
            self._memory, self._words, self._kinds = [], [], _kinds(parts)  # they may have left the memory
            if not parts:
                return []
            wide = torch.float64 if any(p.dtype == torch.float64 for p in parts) else torch.float32
            return list(torch._foreach_norm([p.detach() for p in parts], dtype=wide))
        # A view of the memory is kept: to make it takes longer than the sum of a small parameter. Others than
        # contiguous ones are copied each time.
        memory: list[Any] = [p.data_ptr() if p.is_contiguous() else object() for p in parts]
        if memory != self._memory:
            self._memory, self._kinds = memory, _kinds(parts)
            small = [p.is_contiguous() and p.nbytes <= SMALL for p in parts]
            self._words = [None if few else _words(p.detach()) for p, few in zip(parts, small, strict=True)]
        pairs = zip(memory, parts, self._words, strict=True)
        return [string_at(at, p.nbytes) if words is None else words.sum(1).tolist() for at, p, words in pairs]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": [], "_words": []}


def _kinds(params: list[Tensor]) -> list[Any]:
    return [(p.dtype, p.device) for p in params]


def _words(x: Tensor) -> Tensor:
    """Return the bits in two halves: a sum of all of them would stay if rows change their places."""
    flat = x.contiguous().view(-1)
    size = flat.element_size()
    words = flat.view(torch.int64 if size == 8 or flat.numel() * size % 16 == 0 else INTEGERS[size])
    half = len(words) // 2
    return words.as_strided((2, len(words) - half), (half, 1))
