"""What a classifier returns: log-probabilities that remember what they are.

A classifier returns :class:`LogProbs`. Users pass them to ``cross_entropy`` or ``log_softmax`` like logits;
neither is linear in log-probabilities, and on log-probabilities the log-softmax is the identity.

Operations that only move numbers keep the type. Whether the rows are still whole distributions is a question
for the softmax: where probabilities add up to 1 along its axis, it is the identity; other rows, such as
padding or some of the classes, are normalised as torch would. Operations that compute leave a note of where
that was. They return a plain tensor, or scores: functions of log-probabilities, which :func:`outcome` follows
to find a loss that is no likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction as _Reduction
from torch.utils import _pytree as pytree

from ..warn import note_lost
from .axes import JOINS, MOVE, SPLIT, Marked, Op, changes_values, functions

_T = torch.Tensor
_implicit_dim = F._get_softmax_dim  # type: ignore[attr-defined]  # with torch's warning


class LogProbs(Marked):
    """Log-probabilities of the mixture, with ``axis`` of the classes until something has moved them."""

    scores: bool = False
    """Whether these are functions of log-probabilities, to be differentiated; see :func:`outcome`."""
    shifted: bool = False  # whether something was added to scores
    _classes: int = 0

    @property
    def intact(self) -> bool:
        """Whether these are the numbers of the mixture, moved at most."""
        return torch.compiler.is_compiling() or not self.scores  # compiled code has no scores

    @property
    def classes(self) -> int:
        """The number of classes of what is intact; 0 for what compiled code has moved, where it is lost."""
        return self._classes if self.axis is None else self.shape[self.axis]

    @classmethod
    def of(cls, tensor: Tensor, axis: int | None = None) -> LogProbs:
        """Mark ``tensor`` as log-probabilities, which are known to be normalised along ``axis``."""
        marked = tensor if isinstance(tensor, cls) else tensor.as_subclass(cls)
        marked.axis = axis
        return marked

    @classmethod
    def call(cls, func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Replace softmax and cross-entropy by their equivalents; keep the type where numbers only move."""
        source = args[0] if args else None
        with torch._C.DisableTorchFunctionSubclass():
            if not isinstance(source, LogProbs) or not source.intact:
                return _computed(func, args, kwargs)
            if func in _ROUTES:
                return _ROUTES[func](source, *args[1:], **kwargs)
            if func is _T.__deepcopy__:
                return cls.of(source.as_subclass(Tensor).__deepcopy__(*args[1:]), source.axis)
            if func not in _MOVES or changes_values(func, kwargs):
                return _computed(func, args, kwargs)
            result = func(*args, **kwargs)
            if isinstance(result, tuple | list):
                return type(result)([source.moved(func, part) for part in result])
            return source.moved(func, result)

    def moved(self, func: Op, result: Any) -> Any:
        """Mark the result of an operation that moved these numbers; others are lengths, for example."""
        if result is self or not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        marked = LogProbs.of(result)
        if not torch.compiler.is_compiling():
            marked._classes = classes = self.classes
            if classes and (result.numel() % classes or (result.ndim > 1 and classes not in result.shape)):
                note_lost(func, result)  # some of the classes
        return marked


def _computed(func: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation that does more than move the numbers of one output."""
    if func in JOINS and args and all(isinstance(part, LogProbs) and part.intact for part in args[0]):
        return args[0][0].moved(func, func(*args, **kwargs))
    if torch.compiler.is_compiling():
        if changes_values(func, kwargs) and isinstance(args[0], LogProbs):
            args[0].axis = None
        return func(*args, **kwargs)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, LogProbs)]
    scores = [leaves[i] for i in places]
    target = leaves[0] if changes_values(func, kwargs) and isinstance(leaves[0], Tensor) else None
    new, fresh = PLAIN, False
    if getattr(func, "__name__", "") not in _NO_ARITHMETIC:
        fresh = any(score.intact for score in scores)
        if torch.is_grad_enabled():
            new = outcome(func, scores, any(score.shifted for score in scores), leaves)
    if new is REFUSED:
        for i in places:
            leaves[i] = leaves[i].as_subclass(Tensor).clone()
            if leaves[i].requires_grad:
                leaves[i].register_hook(_refused)
        args, kwargs = pytree.tree_unflatten(leaves, structure)
    result = func(*args, **kwargs)
    if target is None:
        if fresh:
            note_lost(func, result)
        whole = isinstance(result, Tensor) and result.ndim == 0 and scores[0].ndim > 0
        if whole or new in (PLAIN, REFUSED):
            return result  # a sum over all is no score of an observation any more

        def mark(part: Any) -> Any:
            if not (isinstance(part, Tensor) and part.is_floating_point() and part.requires_grad):
                return part
            marked = LogProbs.of(part)
            marked.scores, marked.shifted = True, new is SHIFTED
            return marked

        return pytree.tree_map(mark, result)
    if target is not leaves[0]:
        target.copy_(leaves[0])
    # As in outputs[t] = out, where the other numbers are moved log-probabilities or none at all yet.
    written = func in (_T.__setitem__, _T.copy_) and isinstance(args[-1], LogProbs) and args[-1].intact
    written = written and not (isinstance(target, LogProbs) and target.scores)
    if fresh and not written:
        note_lost(func, target)
    if (target.requires_grad or written) and not isinstance(target, LogProbs):
        target.__class__ = LogProbs
    if isinstance(target, LogProbs):
        target._classes = args[-1].classes if written else target.classes
        target.axis, target.scores, target.shifted = None, not written, new is SHIFTED
    return target


_MOVES = MOVE | SPLIT | functions("masked_select")
_NO_ARITHMETIC = {"backward", "grad", "__get__", "__set__"}


# The softmax and the losses.


def _log_sums(x: LogProbs, dim: int) -> Tensor | None:
    """Return the log-sums of probabilities along ``dim``, 0 for distributions; None if all are, and known."""
    if x.axis == dim % max(1, x.ndim) or not x.numel():
        return None
    sums = x.logsumexp(dim, keepdim=True)  # a plain tensor: these functions are called without the subclass
    tolerance = max(1e-4, torch.finfo(x.dtype).eps * (1 + log(x.shape[dim])))  # of the sum and its terms
    other = sums.detach().abs() > tolerance
    if x.is_cpu and not torch.compiler.is_compiling() and not other.any():
        return None
    return torch.where(other, sums, 0)


def _normalised(x: LogProbs, dim: int, func: Op) -> LogProbs:
    """Return log-probabilities whose sums along ``dim`` are 1: as they are where they are distributions."""
    sums = _log_sums(x, dim)
    if sums is None:
        return x
    if x.is_cpu and torch.is_grad_enabled():
        note_lost(func, sums)
    return LogProbs.of(x - sums)


def _log_softmax(
    x: LogProbs, dim: int | None = None, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> LogProbs:
    dtype = next((arg for arg in args if isinstance(arg, torch.dtype)), dtype)  # methods take it by position
    dim = _implicit_dim("log_softmax", x.ndim, 5) if dim is None else dim
    out = _normalised(x, dim, F.log_softmax)
    return LogProbs.of(out.view_as(out) if dtype is None else out.to(dtype), dim % max(1, x.ndim))


def _softmax(x: LogProbs, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    dim = _implicit_dim("softmax", x.ndim, 5) if dim is None else dim
    return _log_softmax(x, dim, *args, **kwargs).as_subclass(Tensor).exp()


def _logsumexp(x: LogProbs, dim: Any, keepdim: bool = False, **kwargs: Any) -> Tensor:
    """Return the logarithms of sums of probabilities; 0, a score, for those of a distribution."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    if len(dims) != 1 or kwargs:
        return torch.logsumexp(x.as_subclass(Tensor), dim, keepdim, **kwargs)
    sums = _log_sums(x, dims[0])
    if sums is None:
        sums = torch.zeros_like(x.as_subclass(Tensor).select(dims[0], 0).unsqueeze(dims[0]))
    marked = LogProbs.of(sums if keepdim else sums.squeeze(dims[0]))
    marked.scores = True
    return marked


def _cross_entropy(
    x: LogProbs,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``F.cross_entropy`` of log-probabilities: what it computes after its log-softmax."""
    axis = min(1, x.ndim - 1)
    x = _normalised(x, axis, F.cross_entropy)
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    log_p = x if x.ndim == 2 else x.contiguous()  # nll_loss needs that of images
    soft = target.is_floating_point() and target.shape == x.shape
    if not soft and label_smoothing == 0.0:
        return F.nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction=reduction)
    if soft and ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    weighted = log_p if weight is None else log_p * weight.view([-1] + [1] * (x.ndim - 1 - axis))
    rest = label_smoothing / x.shape[axis]
    if soft:
        losses = -(weighted * (target * (1 - label_smoothing) + rest)).sum(axis)
        count: Any = losses.numel()
    else:
        losses = F.nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction="none")
        kept = target != ignore_index
        losses = (1 - label_smoothing) * losses - rest * weighted.sum(axis).masked_fill(~kept, 0.0)
        count = (kept if weight is None else weight[target.masked_fill(~kept, 0)] * kept).sum()
    return losses.sum() / count if reduction == "mean" else losses.sum() if reduction == "sum" else losses


# What becomes of log-probabilities in a loss that is written by hand: whether it is still a likelihood.

# What an operation on log-probabilities returns.
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
_SELECTIONS = _MOVES | _ops(
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


def outcome(func: Op, scores: Sequence[Any], shifted: bool, leaves: Sequence[Any]) -> str:
    """Return what an operation makes of ``scores`` among its arguments, the ``leaves``.

    These are log-probabilities, or functions of them; ``shifted``: something was added to one. A negative
    log-likelihood is linear in log-probabilities, or weights them by probabilities, as a focal loss does. A
    distance to a target is neither, though its gradient has the same sign while every output is below its
    target. So a likelihood takes log-probabilities through linear operations and through functions of
    themselves. Once something was added to them, only linear operations and exponentials are left; and no
    other function takes them together with another tensor.
    """
    others = [x for x in leaves if isinstance(x, Tensor) and not any(x is score for score in scores)]
    kept = SHIFTED if shifted else SCORES
    if func in _PROBABILITIES:
        return PLAIN
    if func in _SUMS:
        added = others or any(isinstance(x, int | float) and x != 0 for x in leaves)
        return SHIFTED if added else kept
    if func in _SELECTIONS:
        return kept
    if func in _PRODUCTS:
        if func in _DIVISIONS and leaves[0] is not scores[0]:
            return REFUSED
        if len(scores) == 1 and not any(x.requires_grad for x in others):
            return kept
        return REFUSED if shifted else PLAIN
    alone = len(scores) == 1 and not others
    return kept if alone and (func in _LINEAR or not shifted) else REFUSED


def _refused(g: Tensor) -> Tensor:
    """Return the gradient of a loss that must not train: it has both signs, which a step refuses."""
    if g.numel() == 1:  # which cannot have both signs
        raise RuntimeError(
            "the loss is not a negative log-likelihood of the model's output: use cross_entropy or "
            "nll_loss, or train the plain network, alrao.Auto(net)"
        )
    signs = torch.ones_like(g)
    signs.view(-1)[1::2] = -1
    return (g.abs() + g.abs().mean()) * signs  # none is 0, so that both signs are there


_ROUTES: dict[Op, Op] = {
    F.cross_entropy: _cross_entropy,
    **dict.fromkeys((F.log_softmax, torch.log_softmax, _T.log_softmax), _log_softmax),
    **dict.fromkeys((F.softmax, torch.softmax, _T.softmax), _softmax),
    **dict.fromkeys((torch.logsumexp, torch.special.logsumexp, _T.logsumexp), _logsumexp),
}
# Saved outputs can be loaded with torch's default, weights_only=True.
torch.serialization.add_safe_globals([LogProbs])
