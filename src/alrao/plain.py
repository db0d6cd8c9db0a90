"""A plain network as the optimizers see it: a rate for every feature, no copies, any loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .calls import unwatch_calls, unwatch_inputs, watch_calls, watch_inputs
from .clipping import clip_grads_
from .evidence import is_readable
from .finite import FiniteStatistics
from .warn import warn
from .watch import EvaluationWatch, note_step_of, version_of


class NoHead:
    """The head of a plain network: no copies, no posterior; as its own leaf it never has a gradient."""

    copies = 0
    awake = part = mixing = grad = None
    can_sleep = training_weights = False

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.evidence, self._params = self, params

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._params[0].device if self._params else torch.device("cpu")

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.device.type == "cpu"

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return no parameters."""
        return iter(())

    def start_alike(self) -> None:
        """Do nothing: there are no copies."""

    wake_all = expect_shards = start_alike


class Plain:
    """A network without copies, as the optimizers see it, in the place of an :class:`Alrao` model."""

    def __init__(self, net: nn.Module, modules: list[nn.Module]) -> None:
        self.net = net
        self.modules = modules
        self.head: Any = NoHead(list(net.parameters()))
        self.finite_statistics = FiniteStatistics(net)
        self.training = self._mode() if modules else True
        self._seen = self.training
        self._stale: list[tuple[nn.Parameter, Tensor, int]] = []
        self._averages: Any = None
        self._evaluation = EvaluationWatch(
            "net",
            in_a_row=True,
            more=". For a network that acts while it learns, build alrao.Auto(net, swap=False)",
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters."""
        return self.net.parameters()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradients to a norm, as :func:`torch.nn.utils.clip_grad_norm_`; failed ones become 0."""
        reads = is_readable(self.head.evidence)
        return clip_grads_(list(self.net.parameters()), [], max_norm, norm_type, reads=reads)

    # The mode, and the weights that belong to it.

    def _mode(self) -> bool:
        return any(module.training for module in self.modules)

    def averaged_by(self, averages: Any) -> None:
        """Let an optimizer put its weights for the present mode into the parameters."""
        own = {p for group in averages.groups for p in group["params"]}
        self._stop()
        for module in self.modules:
            watch_calls(module, "train", self._mode_called, keep=True)  # also once the optimizer is gone
        trained = [m for m in self.net.modules() if not own.isdisjoint(m.parameters(recurse=False))]
        if self.modules and trained:  # the last one that a load comes to
            watch_calls(trained[-1], "_load_from_state_dict", self._loaded)
        if averages.swap and self._seen:
            for module in self.modules:
                watch_inputs(module, self._passed)
        self._averages = averages

    def place_weights(self) -> None:
        """Put the weights for the present mode into the parameters, if the modules' mode has changed."""
        if self.modules and self._mode() != self._seen:
            averages = self._averages
            if self._mode() and averages is not None and averages.evaluating and averages.differ:
                grads = [(p, p.grad) for p in self.parameters() if p.grad is not None]
                self._stale = [(p, grad, version_of(grad)) for p, grad in grads]
            self.hold(self._mode())
            if averages is not None:
                averages.place(self.training)

    def hold(self, training: bool) -> None:
        """Take a mode for the present one, until that of the modules changes."""
        self.training = training
        self._seen = self._mode() if self.modules else training

    def _mode_called(self, *_: Any, **__: Any) -> None:
        if self._averages is not None and self._averages.retired:
            self._stop()
        self.finite_statistics.restore(reads=is_readable(self.head.evidence))
        self._seen = not self._mode()  # a call counts, whatever the mode was
        self.place_weights()
        self._stale = []
        if not self._seen:
            self._stop_watching_passes()

    def _passed(self, *_: Any) -> None:
        averages = self._averages
        if averages is None or not self._mode():
            return
        if averages.evaluating or not self._evaluation.look(averages, self.finite_statistics):
            self._stop_watching_passes()

    def _stop_watching_passes(self) -> None:
        for module in self.modules:
            unwatch_inputs(module, self._passed)

    def _loaded(self, *_: Any, **__: Any) -> None:
        if self._averages is not None:
            self._averages.loaded(self.training)

    def check_gradients(self, averages: bool) -> None:
        """Warn before a step whose gradients are those at the averaged weights, though the network trains."""
        late = averages and not self.training and (self._mode() or not self.modules)
        stale, self._stale = self._stale, []
        if late or any(p.grad is grad and version_of(grad) == version for p, grad, version in stale):
            self.hold(True)
            warn(
                "this step has the gradients at the averaged weights, because the mode was set without a "
                "call of train(), or after optimizer.eval(): call net.train() or optimizer.train() before "
                "the forward pass; with Lightning, add alrao.integrations.lightning.AlraoCallback"
            )

    def notice_step(self) -> None:
        """Warn of parameters that copies have replaced since; for networks, the step refuses these."""
        if not (self.modules or torch.compiler.is_compiling()):
            note_step_of("the optimizer", self.parameters())

    def _stop(self) -> None:
        self._stop_watching_passes()
        for module in self.modules:
            unwatch_calls(module, "train", self._mode_called)
        for module in self.net.modules():
            unwatch_calls(module, "_load_from_state_dict", self._loaded)
        self._averages = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_averages": None, "_stale": []}
