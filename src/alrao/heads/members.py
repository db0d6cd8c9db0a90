"""Mixtures whose likelihood needs the target: regression, labels, the adaptive softmax.

Their heads return the outputs of all copies twice: what flows back into the first reaches the copies, what
flows back into the second reaches the body. The loss, which has the target, makes the mixture of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist

from .. import evidence as reports
from ..finite import HUGE, alive, finite_gradient, moderate, share_among, zero_nonfinite, zero_unusable
from ..runtime.sharding import places_along
from ..tensors import Members
from .exported import mean_of_copies, mixture_logit
from .softmax import refuse_second_derivative, wide


def shared_linear(z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return every copy's linear output ``(copies, rows, outputs)``, twice: for the copies and for the body.

    The values are the same; what flows back into the first reaches only ``weight`` and ``bias``, what flows
    back into the second reaches only ``z``.
    """
    own, mixed = _SharedLinear.apply(zero_unusable(z), weight, bias)
    return own, mixed


class _SharedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        copies, outputs, _ = weight.shape
        flat = F.linear(z, weight.flatten(0, 1), None if bias is None else bias.flatten())
        out = flat.view(len(z), copies, outputs).transpose(0, 1).to(wide(z.dtype)).contiguous()
        ctx.save_for_backward(z, weight)
        ctx.has_bias = bias is not None
        return out, out.clone()

    @staticmethod
    def backward(ctx: Any, own: Tensor, mixed: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        z, weight = ctx.saved_tensors
        grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            flat = zero_nonfinite(mixed).transpose(0, 1).flatten(1).to(z.dtype)
            grad_z = flat @ zero_nonfinite(weight.flatten(0, 1))
        own = zero_nonfinite(own)
        if ctx.needs_input_grad[1]:
            grad_weight = own.transpose(1, 2).to(z.dtype) @ z
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = own.sum(1).to(weight.dtype)
        return grad_z, grad_weight, grad_bias


def for_copies_and_body(
    outputs: Callable[..., Tensor], z: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``outputs(z, *parameters)``, copies first, twice; that of a failed copy is nan."""
    failed = ~torch.stack([alive(p).flatten(1).all(1) for p in parameters]).all(0)
    parameters = tuple(finite_gradient(zero_nonfinite(p)) for p in parameters)
    z = zero_unusable(z)
    own = mixed = outputs(z.detach(), *parameters)
    if torch.is_grad_enabled():
        mixed = outputs(finite_gradient(z), *(p.detach() for p in parameters))
    failed = failed.view([-1] + [1] * (own.ndim - 1))
    return own.masked_fill(failed, torch.nan), mixed.masked_fill(failed, torch.nan)


class Exchange:
    """How processes that hold different copies of a head exchange numbers; by default one holds all."""

    own: Any = slice(None)  # the numbers of the copies that this process holds

    def __init__(self, group: Any = None, weight: Any = ()) -> None:
        self.group, self.alone, self.copies = group, group is None, len(weight)
        if not self.alone:
            self.own = places_along(0, weight)

    def local(self, parameter: Any) -> Any:
        """Return the copies of a parameter that this process holds."""
        return parameter.to_local() if hasattr(parameter, "to_local") else parameter

    def linear(self, z: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return :func:`shared_linear` of all copies."""
        if self.alone:
            return shared_linear(z, weight, bias)
        z = z.view_as(z)
        if z.requires_grad:  # each process has the part of its copies
            z.register_hook(lambda g: self.add(g.clone(memory_format=torch.contiguous_format)))
        own, mixed = shared_linear(z, self.local(weight), self.local(bias))
        return _Gathered.apply(own, self), _Gathered.apply(mixed, self)

    def leaf(self, evidence: Tensor) -> Tensor:
        """Return the leaf for the evidence: every process reports all of it, so that each counts in part."""
        if self.alone:
            return evidence
        part = evidence.view_as(evidence)
        if part.requires_grad:
            processes = dist.get_world_size(self.group)
            part.register_hook(lambda g: g / processes)
        return reports.marked_as(evidence, part)

    def gather(self, of_own: Tensor) -> Tensor:
        """Return what every process has for its copies, which are on the last axis."""
        if self.alone:
            return of_own
        whole = of_own.new_zeros(*of_own.shape[:-1], self.copies)
        whole[..., self.own] = of_own
        return self.add(whole)

    def add(self, x: Tensor) -> Tensor:
        """Replace ``x``, contiguous numbers, by the sum over the processes, and return it."""
        if not self.alone:
            dist.all_reduce(x, group=self.group)
        return x


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_own: Tensor, exchange: Exchange) -> Tensor:
        ctx.own = exchange.own
        return exchange.gather(of_own.movedim(0, -1)).movedim(-1, 0).contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return g[ctx.own], None


class _Watched(torch.autograd.Function):
    """A prediction to look at: a loss computed from it would train nothing, and a step refuses it."""

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, copies: int, evidence: Tensor) -> Tensor:
        ctx.copies = copies
        return prediction.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, Tensor]:
        return None, None, reports.no_likelihood(ctx.copies, g.abs().sum())


watched = _Watched.apply


def shown_output(members: Members) -> Tensor:
    """Return what a model shows of its copies' outputs: their mean, or the mixture's logit of labels."""
    own, a = members.own.detach(), members.weights
    if members.likelihood != "bernoulli":
        return mean_of_copies(own, a)
    if not (reports.is_readable(members.evidence) and moderate(own, a)):
        return mixture_logit(own, a)
    yes, no = (torch.tensordot(a, x, 1) for x in (own.sigmoid(), (-own).sigmoid()))
    return yes.log() - no.log()


def mixture_nll(own: Tensor, mixed: Tensor, members: Members, *, if_all_fail: Tensor | float) -> Tensor:
    """Return the mixture's negative log-likelihood of each observation.

    ``own`` and ``mixed`` are the log-likelihoods that the copies give to the observations, copies first. A
    copy whose log-likelihood is not finite has no weight and no gradient in that observation; where none is
    left, the loss is ``if_all_fail``.
    """
    weights = members.weights.to(mixed.dtype).view([-1] + [1] * (mixed.ndim - 1))
    counts = alive(mixed.detach()) & (weights > 0)
    joint = torch.where(counts, mixed, 0) + torch.where(counts, weights, 0).log()
    joint = joint - torch.where(counts, weights, 0).sum(0).log()  # those left share the weight of the others
    someone = counts.any(0)
    losses = torch.where(someone, -torch.where(someone, joint, 0).logsumexp(0), if_all_fail).clamp(max=HUGE)
    return _Attached.apply(losses, own, members.evidence)


class _Attached(torch.autograd.Function):
    """The identity on the losses; backward reaches the copies' own losses and the evidence too."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, own: Tensor, evidence: Tensor) -> Tensor:
        ctx.save_for_backward(own)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (own,) = ctx.saved_tensors
        living = alive(own)
        grad_own = torch.where(living, -g, 0)
        scores = torch.where(living, own * -g, torch.inf).masked_fill(g == 0, 0).reshape(len(own), -1).sum(1)
        seen = g != 0
        evidence = reports.pack(scores, -g.sum(), (-g).relu().sum(), seen.sum())
        return g, grad_own, reports.count_once(ctx, evidence, seen)


def bernoulli_nll(members: Members, yes: Tensor, no: Tensor) -> Tensor:
    """Return the negative log-likelihood of each label under its mixture of Bernoulli distributions."""
    weights = members.weights.view([-1] + [1] * (members.mixed.ndim - 1))
    return _BernoulliNLL.apply(members.own, members.mixed, weights, members.evidence, yes, no)


class _BernoulliNLL(torch.autograd.Function):
    # Every operation here is on the logits of all copies, so they are few. With p = sigma(l), q = sigma(-l),
    # the mixture's gradient by a logit is a p q (g_yes / m_yes - g_no / m_no), the copy's g_yes q - g_no p.

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, mixed: Tensor, weights: Tensor, evidence: Tensor, yes: Tensor, no: Tensor
    ) -> Tensor:
        a = weights.to(mixed.dtype)
        if reports.is_readable(evidence) and moderate(mixed, a):
            p, q = mixed.sigmoid(), (-mixed).sigmoid()
            living, a = None, a / a.sum(0)
            log_yes, log_no = (torch.tensordot(a.flatten(), x, 1).log() for x in (p, q))
            ctx.save_for_backward(p, q, a, living, log_yes, log_no, yes, no)
        else:
            living = alive(mixed)
            log_a, logits = share_among(living, a, 0).log(), zero_nonfinite(mixed)
            log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
            someone = log_a.amax(0) > -torch.inf  # if all copies have failed, either outcome is as probable
            log_yes, log_no = (
                torch.where(someone, (x + log_a).logsumexp(0).clamp(min=-HUGE), -log(2))
                for x in (log_p, log_q)
            )
            ctx.save_for_backward(log_p, log_q, log_a, living, log_yes, log_no, yes, no)
        return -(yes * log_yes + no * log_no)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        p, q, a, living, log_yes, log_no, yes, no = ctx.saved_tensors
        g_yes, g_no = -g * yes, -g * no
        seen = (g_yes != 0) | (g_no != 0)
        if living is None:
            scores = torch.mv(p.log().flatten(1), g_yes.flatten()) + torch.mv(
                q.log().flatten(1), g_no.flatten()
            )
            grad_own = (q * g_yes).addcmul_(p, g_no, value=-1)
            grad_mixed = (p * q).mul_(g_yes * (-log_yes).exp() - g_no * (-log_no).exp()).mul_(a)
        else:
            log_p, log_q, log_a = p, q, a
            by_yes, by_no = log_q.exp().mul_(g_yes), log_p.exp().mul_(g_no)
            grad_own = torch.where(living, by_yes - by_no, 0)
            by_yes.mul_((log_p + (log_a - log_yes)).exp_())
            by_no.mul_((log_q + (log_a - log_no)).exp_())
            grad_mixed = torch.where(living, by_yes - by_no, 0)
            scores = torch.where(living, torch.addcmul(log_p * g_yes, log_q, g_no), torch.inf)
            scores = scores.masked_fill_(~seen, 0).flatten(1).sum(1)
        positive = (g_yes.relu() + g_no.relu()).sum()
        evidence = reports.pack(scores, (g_yes + g_no).sum(), positive, seen.sum())
        evidence = reports.count_once(ctx, evidence, seen)
        grad_yes = -g * log_yes if ctx.needs_input_grad[4] else None
        grad_no = -g * log_no if ctx.needs_input_grad[5] else None
        return grad_own, grad_mixed, None, evidence, grad_yes, grad_no
