"""What becomes of log-probabilities in a loss that is written by hand: whether it is still a likelihood.

A negative log-likelihood is linear in log-probabilities, or weights them by probabilities, as a focal loss
does. A distance to a target is neither, though its gradient has the same sign while every output is below
its target. The operations tell them apart. A likelihood takes log-probabilities through linear operations and
through functions of themselves. Once something was added to them, only linear operations and exponentials are
left; and no other function takes them together with another tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .axes import FLAT, MOVE, SPLIT, Op, functions

__all__ = ["Outcome", "outcome"]


class Outcome(Enum):
    """What an operation on log-probabilities returns."""

    PLAIN = "probabilities, or a weighted likelihood"
    SCORES = "scores: a function of log-probabilities"
    SHIFTED = "scores to which something was added"
    REFUSED = "no part of a likelihood"


def _ops(*names: str) -> set[Op]:
    """Return the operations of these names: functions, methods, those in place, and operators of Python."""
    found = functions(*names, places=(torch, torch.Tensor, F, torch.linalg, torch.special))
    for form in ("{}_", "__{}__", "__r{}__", "__i{}__"):
        found |= functions(*map(form.format, names), places=(torch.Tensor,))
    return found


_PROBABILITIES = _ops(
    "exp", "exp2", "expm1", "softmax", "log_softmax", "logsumexp", "logaddexp", "logaddexp2",
    "logcumsumexp",
)  # fmt: skip
_SUMS = _ops("add", "sub", "subtract", "rsub", "lerp")
_DIVISIONS = _ops("div", "divide", "truediv", "true_divide")
_PRODUCTS = _DIVISIONS | _ops(
    "mul", "multiply", "matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "einsum", "tensordot",
    "linear", "addmm", "addmv", "addbmm", "baddbmm", "vecdot",
)  # fmt: skip
_SELECTIONS = MOVE | SPLIT | FLAT | _ops(
    "where", "masked_fill", "masked_scatter", "scatter", "scatter_add", "scatter_reduce", "index_add",
    "index_put", "index_fill", "index_copy", "index_reduce", "take", "cat", "concat", "concatenate",
    "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack", "broadcast_tensors", "copy",
    "nll_loss", "kl_div", "setitem",
)  # fmt: skip
_LINEAR = _ops(
    "sum", "nansum", "mean", "nanmean", "neg", "negative", "positive", "cumsum", "diff", "max", "min",
    "amax", "amin", "topk", "sort", "msort", "median", "nanmedian", "kthvalue", "nan_to_num", "diagonal",
    "diag", "trace", "tril", "triu", "dropout", "pos", "requires_grad",
)  # fmt: skip


def outcome(func: Op, scores: Sequence[Any], shifted: bool, leaves: Sequence[Any]) -> Outcome:
    """Return what an operation makes of ``scores`` among its arguments, the ``leaves``.

    These are log-probabilities, or functions of them; ``shifted``: something was added to one.
    """
    others = [x for x in leaves if isinstance(x, Tensor) and not any(x is score for score in scores)]
    kept = Outcome.SHIFTED if shifted else Outcome.SCORES
    if func in _PROBABILITIES:
        return Outcome.PLAIN
    if func in _SUMS:
        added = others or any(isinstance(x, int | float) and x != 0 for x in leaves)
        return Outcome.SHIFTED if added else kept
    if func in _SELECTIONS:
        return kept
    if func in _PRODUCTS:
        if func in _DIVISIONS and leaves[0] is not scores[0]:
            return Outcome.REFUSED
        if len(scores) == 1 and not any(x.requires_grad for x in others):
            return kept
        return Outcome.REFUSED if shifted else Outcome.PLAIN
    alone = len(scores) == 1 and not others
    return kept if alone and (func in _LINEAR or not shifted) else Outcome.REFUSED
