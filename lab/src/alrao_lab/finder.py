"""The learning-rate finder of fastai: a short run at ever higher rates."""

from __future__ import annotations

import copy
from itertools import count, islice
from math import isfinite

import torch
from torch import nn

from .tasks.task import Supervised

LOWEST, HIGHEST = 1e-7, 10.0
STEPS = 100
SMOOTHING = 0.98
WORSE = 4.0
"""The search ends at a loss this many times the lowest one."""


def find_rate(net: nn.Module, problem: Supervised) -> float:
    """Return the rate for AdamW that the finder suggests; the network stays as it is.

    AdamW trains a copy of the network for 100 steps, at rates from 1e-7 to 10 in geometric progression, until
    the smoothed loss is four times its lowest value. The first ten and the last five steps do not count.
    """
    rates: list[float] = []
    losses: list[float] = []
    trial, smooth = copy.deepcopy(net).train(), 0.0
    optimizer = torch.optim.AdamW(trial.parameters(), lr=LOWEST)
    carry = None
    batches = (batch for epoch in count(1) for batch in problem.batches(epoch))
    with torch.random.fork_rng():
        for step, (inputs, targets) in enumerate(islice(batches, STEPS)):
            rate = LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1))
            optimizer.param_groups[0]["lr"] = rate
            outputs, carry = problem.forward(trial, inputs, carry)
            loss = problem.loss(outputs, targets)
            smooth = SMOOTHING * smooth + (1 - SMOOTHING) * loss.item()
            shown = smooth / (1 - SMOOTHING ** (step + 1))
            if not isfinite(shown) or (losses and shown > WORSE * min(losses)):
                break
            rates.append(rate)
            losses.append(shown)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    begun, ended = (STEPS // 10, -5) if len(losses) > STEPS // 10 + 5 else (0, None)
    return valley(rates[begun:ended], losses[begun:ended])


def valley(rates: list[float], losses: list[float]) -> float:
    """Return the rate in the middle of the longest decreasing subsequence of the losses.

    Reference: fastai's suggestion ``valley``.
    """
    lengths = [1] * len(losses)
    for i, loss in enumerate(losses):
        lengths[i] += max((lengths[j] for j in range(i) if losses[j] > loss), default=0)
    end = max(range(len(losses)), key=lambda i: lengths[i])
    start = max(0, end - lengths[end])
    return rates[start + (end - start) // 2]
