"""The evidence of a step: read on the host, or left on the device as a :class:`Gate`."""

from __future__ import annotations

from math import inf
from typing import Any

from torch import Tensor

from .. import evidence as reports
from ..heads import Head
from ..runtime.capturable import Gate, widest
from .checks import no_likelihood

__all__ = ["look", "look_on_device", "update_posterior"]


def look(gradient: Tensor | None, head: Head, *, maximize: bool) -> tuple[Any, bool | Gate]:
    """Return the evidence, None if there is none, and whether the loss was finite.

    Raises:
        RuntimeError: the loss was no likelihood.
    """
    if gradient is None:
        return None, True
    evidence = reports.read(gradient, head.copies)
    if not evidence.is_likelihood(maximize=maximize):
        raise RuntimeError(f"the loss is {no_likelihood(head)}. Nothing has been changed")
    return (None, True) if evidence.empty else (evidence, evidence.finite)


def look_on_device(gradient: Tensor | None, head: Head, *, maximize: bool) -> tuple[Any, bool | Gate]:
    """Return the evidence, and what the step may do, without a read on the host."""
    device, evidence = head.evidence.device, None
    if gradient is not None:
        evidence = reports.read_on_device(gradient, head.copies, widest(device))
    return evidence, Gate.of(evidence, device, maximize)


def update_posterior(head: Head, evidence: Any, gate: bool | Gate, of: str) -> None:
    """Update the posterior with the evidence: the ``"mean"`` log-likelihood of a batch, or the ``"sum"``."""
    if evidence is None:
        return
    log_likelihood = evidence.log_likelihood(of)
    averaging = head.averaging
    if isinstance(gate, Gate):
        log_likelihood = head.posterior_evidence_on_device(log_likelihood)
        averaging.update_on_device(log_likelihood.masked_fill(gate.refused, -inf))
    else:
        averaging.update(head.posterior_evidence(log_likelihood))
