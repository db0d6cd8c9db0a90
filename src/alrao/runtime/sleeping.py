r"""Sleeping copies: those whose posterior weight is negligible are left out of most steps.

``docs/how-it-works.md`` has the method and its reasons. Who is awake, neighbours in the order of the rates
:math:`\eta_j`, is decided every :data:`CYCLE` steps. A slower copy is *looked at* every
:math:`k_j = \min(\eta / 2 \eta_j, 48)` steps, with the highest rate awake :math:`\eta`: it is compared and
trained, at :math:`s\,\eta_j` for the :math:`s` steps since the last look. The next faster one is looked at in
the last :data:`LOOKS` steps of a cycle. Copies awake give a batch the log-likelihood :math:`\bar\ell =
\log \sum_j a_j e^{\ell_j} - \log \sum_j a_j`. One that takes part is given its :math:`\ell_j`; another
:math:`\bar\ell + d_j`, with :math:`d_j = \ell_j - \bar\ell` of its last look, but no more than makes its
weight that of the best copy awake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, inf, log
from typing import Any

from torch import Tensor

from ..finite import without_failed

CYCLE = 97  # steps from one decision to the next: a prime, so that looks do not always meet the same batches
LOOKS = 4  # steps at the end of a cycle in which the next copy faster than those awake is looked at
MAX_INTERVAL = 48  # the most steps between two looks at a copy slower than those awake

NEGLIGIBLE = 0.01
"""A copy falls asleep once its posterior weight has been lower in the second half of a cycle."""

WORTHWHILE = 2**20  # minimum number of weights of all copies together for sleeping under ``Auto`` by default
SAVED = ("position", "since", "every", "peak", "behind")  # attributes of Sleep

HEAD_SLICES = ("awake", "part", "mixing")
"""Attributes of a head: the copies that are awake, that the next pass computes, that it mixes."""


class Sleep:
    """Decides which copies of a head sleep, and when they are looked at."""

    def __init__(self, head: Any, wanted: bool | None, *, on_host: bool = True) -> None:
        posterior = getattr(head, "averaging", None)
        possible = on_host and head.can_sleep
        if wanted and not possible:
            raise ValueError(
                "sleep=True needs several copies of a linear layer of a classifier under Switch, in steps on "
                f"the CPU without capturable=True, got {type(head).__name__} with {head.copies} copies under "
                f"{type(posterior).__name__}: leave sleep out"
            )
        self.head = head
        pays = sum(p.numel() for p in head.parameters()) >= WORTHWHILE
        self.wanted = (pays and possible) if wanted is None else wanted
        self._restart()

    def _restart(self) -> None:
        """Begin with a cycle in which all are awake."""
        self.position = 0  # steps of the present cycle so far
        self.since = [1] * self.head.copies  # steps that the next look at each copy stands for
        self.every = [1] * self.head.copies  # steps from one look at a copy to the next
        self.peak: list[float] = []  # highest weight of each copy in the second half of the cycle
        self.behind: list[float] = []  # the d_j
        self.head.wake_all()

    def notice(self, scores: list[float]) -> None:
        """Wake all if all were computed after all: by a compiled model, or in evaluation mode."""
        part = range(self.head.copies)[self.head.part]
        if any(score != 0 for j, score in enumerate(scores) if j not in part):
            self._restart()

    def observe(self, log_likelihood: list[float], rates: Callable[[], Tensor], *, allowed: bool) -> None:
        """Update the posterior, decide at the end of a cycle who is awake, and who is looked at next."""
        head, averaging = self.head, self.head.averaging
        if not (allowed and head.can_sleep):
            averaging.update(log_likelihood)
            self._restart()
            return
        last = self.position == CYCLE - 1
        if head.awake is None and not last:
            averaging.update(log_likelihood)
        else:
            averaging.update(self._given(averaging.weights.tolist(), log_likelihood))
        weights = averaging.weights.tolist()
        if self.position >= CYCLE // 2:
            self.peak = list(map(max, self.peak or weights, weights))
        self.position += 1
        if last:
            self._decide(weights, rates().tolist())
        if head.awake is not None:
            self._plan(weights)

    # The posterior.

    def _given(self, weights: list[float], log_likelihood: Sequence[float]) -> list[float]:
        """Return the log-likelihoods, with what is known of sleeping copies that did not take part."""
        head, copies = self.head, range(self.head.copies)
        awake, part = copies[head.awake or slice(None)], copies[head.part or slice(None)]
        given = without_failed(x if j in part else 0.0 for j, x in enumerate(log_likelihood))
        joint = [_log(weights[j]) + given[j] for j in awake]
        best = max(joint)
        if best == -inf:  # those awake have failed: the others take over, all alike
            self._restart()
            return given
        mixed = best + log(sum(exp(x - best) for x in joint)) - log(sum(weights[j] for j in awake))
        behind = self.behind or [0.0] * len(copies)
        self.behind = [given[j] - mixed if j in part else behind[j] for j in copies]
        for j in copies:
            if j not in part:
                given[j] = min(mixed + behind[j], best - _log(weights[j]))
        return given

    def _decide(self, now: list[float], rates: list[float]) -> None:
        """Let copies fall asleep and wake: the only place where the posterior is read."""
        head, copies = self.head, range(self.head.copies)
        peak = self.peak or now
        matter = [j for j in copies[head.awake or slice(None)] if peak[j] >= NEGLIGIBLE]
        matter += [j for j in copies if now[j] >= NEGLIGIBLE]
        first, last = max(0, min(matter) - 1), max(matter)
        awake = copies[first : last + 1]
        self.position, self.peak = 0, []
        if len(awake) == len(copies):
            self._restart()
            return
        head.awake = slice(first, last + 1)
        highest = max(rates[j] for j in awake)
        # A rate may be 0.
        steps = (highest / (2 * rate) if rate > 0 else MAX_INTERVAL for rate in rates)
        self.every = [max(1, int(min(MAX_INTERVAL, each))) for each in steps]

    def _plan(self, weights: list[float]) -> None:
        """Choose the copies of the next step, and those of its mixture."""
        head, copies = self.head, range(self.head.copies)
        awake, part = copies[head.awake], copies[head.part or slice(None)]
        self.since = [1 if j in part or j >= awake.stop else self.since[j] + 1 for j in copies]
        due = [j for j in copies[: awake.start] if self.since[j] >= self.every[j]]
        stop = min(awake.stop + (self.position >= CYCLE - LOOKS), len(copies))
        head.part = slice(min(due, default=awake.start), stop)
        most = max(weights[j] for j in awake)
        matter = [j for j in awake if weights[j] >= min(most, NEGLIGIBLE)]
        head.mixing = slice(matter[0], matter[-1] + 1)

    # The weights.

    def prepare_looks(self, state: Any, entries: Iterable[tuple[Tensor, Any, bool]]) -> None:
        """Before the looks at a copy faster than all awake, let it continue from the fastest of those."""
        awake = self.head.awake
        if awake is None or self.position != CYCLE - LOOKS:
            return
        for p, rate, of_copies in entries:
            if of_copies and isinstance(rate, Tensor):
                for value in (p, *state[p].values()):
                    if isinstance(value, Tensor) and value.shape == p.shape:
                        value[awake.stop : awake.stop + 1] = value[awake.stop - 1]

    # Checkpoints.

    def packed_into(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the state of an optimizer with who sleeps, if copies may."""
        packed: dict[str, Any] = {name: getattr(self, name) for name in SAVED}
        if not self.wanted:
            return state_dict
        for name in HEAD_SLICES:
            rows = getattr(self.head, name)
            packed[name] = None if rows is None else [rows.start, rows.stop]
        return {**state_dict, "param_groups": [{**g, "sleep": packed} for g in state_dict["param_groups"]]}

    def unpack(self, groups: list[dict[str, Any]]) -> None:
        """Take out of the loaded groups what :meth:`packed_into` has put there, and continue from it."""
        packed, *_ = [group.pop("sleep", None) for group in groups]
        self._restart()
        if packed is not None and self.wanted:
            for name in SAVED:
                setattr(self, name, packed[name])
            for name in HEAD_SLICES:
                setattr(self.head, name, None if packed[name] is None else slice(*packed[name]))


def _log(x: float) -> float:
    return log(x) if x > 0 else -inf
