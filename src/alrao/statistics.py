"""BatchNorm's running statistics at the weights that are evaluated, from the last batches of the training.

The statistics that training passes gather belong to the training weights, and lag behind them by some steps.
Both cost much under Auto, whose weights decay fast: a mean that is 3 % behind is a large shift where the mean
is large beside the deviation. Running averages of passes at the averaged weights lag too, however often
these run. So the statistics are computed when the network is evaluated or saved.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from .calls import unwatch_inputs, watch_calls, watch_inputs
from .finite import FiniteStatistics, in_range, keep_finite_
from .warn import warn
from .watch import version_of

__all__ = ["AveragedStatistics", "batch_norms", "take_statistics"]

ROWS = 1024
"""Rows of the last batches that statistics are computed from. On a CNN with batches of 32 digits, the loss is
within 1 % of that with all training data; with 512 rows it is 1 % higher, with 128 rows 5 %."""

LASTING = 8
"""Training passes after which an evaluation uses none of the last one's statistics. Weights move fast
in a search: a share of statistics of 50 steps ago gave a small ResNet a loss of 5.7 instead of 0.03."""

MEMORY = 2**26
"""Bytes of inputs that are kept, beside the newest batch: large images have many places to each row."""


def batch_norms(net: nn.Module) -> list[Any]:
    """Return the layers of a network that have running statistics of batches."""
    layers = (module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return [layer for layer in layers if layer.running_mean is not None]


def take_statistics(layers: Sequence[nn.Module]) -> None:
    """Take the statistics that layers have now for those of the averaged weights, under Auto."""
    for each in list(_computed):
        each.take(layers)


class AveragedStatistics:
    """Keeps the inputs of the last training passes, and computes statistics from them at other weights.

    Statistics of earlier batches, at the weights of then, stand for the rows that are missing, for a few
    steps: after a checkpoint, which has no inputs, and where evaluations follow each other closely. Where
    none can be computed, those that training passes have gathered are shown.

    Args:
        net: the network. Where a program does not call it in a step, its children take its place: a
            LightningModule is not called itself.
        averages: the averaged weights, with ``shown()`` and ``expecting``.
        finite: what puts statistics back that are not finite.
    """

    def __init__(self, net: nn.Module, averages: Any, finite: FiniteStatistics) -> None:
        self._net, self._averages, self._finite = net, averages, finite
        self._entries = [net]
        self._layers = batch_norms(net)
        self._frozen: set[nn.Module] = set()
        self._batches: deque[_Batch] = deque()
        self._called = self._full = self._warned = False
        self._passes = self._training_passes()
        self._known: list[Tensor] | None = None  # at the averaged weights
        self._gathered: list[Tensor] | None = None  # by training passes, while others are shown
        self._loaded: list[list[Tensor]] = []  # what the layers may have in the last checkpoint
        counts = [layer.num_batches_tracked for layer in self._layers]
        used = any(count.is_meta or bool(count) for count in counts)
        self._before = self._running() if used else None  # of a network that was trained before
        self.watch()

    def watch(self) -> None:
        """Watch the network; a copy of this object has to be told."""
        _computed.add(self)
        for layer in self._layers:
            watch_calls(layer, "_load_from_state_dict", self._given)
            watch_calls(layer, "reset_running_stats", self._given)
        self._watch_entries()

    def _watch_entries(self) -> None:
        for module in self._entries:
            watch_inputs(module, self._note)

    def _unwatch_entries(self) -> None:
        for module in self._entries:
            unwatch_inputs(module, self._note)

    def stop(self) -> None:
        """Leave the statistics to the training passes from now on."""
        self._load(None)
        self._unwatch_entries()
        self._entries = []

    def _running(self) -> list[Tensor]:
        return [torch.stack([layer.running_mean, layer.running_var]) for layer in self._layers]

    def _training_passes(self) -> list[int]:
        """Return numbers that change with every training pass of a layer."""
        return [version_of(layer.num_batches_tracked) for layer in self._layers]

    @property
    def _has_layers(self) -> bool:
        """Whether the layers still have running statistics; otherwise stop."""
        if all(layer.running_mean is not None for layer in self._layers):
            return True
        self.stop()
        self._layers = []
        return False

    def _given(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        """Forget what is known once statistics are loaded or reset, unless they belong to it."""
        if self._averages.expecting or layer not in self._layers or not self._has_layers:
            return
        i = self._layers.index(layer)
        now = self._running()[i]
        if not any(torch.equal(now, each[i].to(now)) for each in self._loaded):
            self._load(None)
        elif self._gathered is not None and self._known is not None:
            self._gathered[i] = self._loaded[1][i]
            _write(layer, self._known[i])

    # While the network trains.

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the inputs of a training pass, and drop those that are not needed any more."""
        if not module.training or not self._has_layers or self._layers[0].running_mean.is_meta:
            return
        if torch._C._current_graph_task_id() != -1:
            return  # activation checkpointing calls modules in the backward pass, too
        self._called = True
        self._frozen = {layer for layer in self._layers if not layer.training}
        batch, batches = _Batch(module, args, kwargs), self._batches
        if not batch.size:  # no tensor: nothing is known of what it holds
            return
        batches.append(batch)
        rows, size = (sum(getattr(batch, name) for batch in batches) for name in ("rows", "size"))
        while len(batches) > 1 and (rows - batches[0].rows >= ROWS or size > MEMORY):
            dropped = batches.popleft()
            rows, size, self._full = rows - dropped.rows, size - dropped.size, True

    def stepped(self) -> None:
        """Go one level deeper if the layers were trained since the last step, by none of the entries."""
        if not self._has_layers:
            return
        passes = self._training_passes()
        trained, called = passes != self._passes, self._called
        self._passes, self._called = passes, False
        if trained and not called and self._entries:
            inner = [child for module in self._entries for child in module.children() if batch_norms(child)]
            self._unwatch_entries()
            self._batches.clear()
            self._entries = inner
            self._watch_entries()

    # When it is evaluated or saved.

    def show(self) -> None:
        """Put the statistics at the present weights into the layers."""
        self._unwatch_entries()  # a hook would be in the way of torch.jit
        self._compute()
        if self._known is not None:
            self._gathered = self._running()
            self._write(self._known)

    def hide(self) -> None:
        """Put those that training passes have gathered back into the layers."""
        if self._gathered is not None and self._has_layers:
            self._write(self._gathered)
        self._gathered = None
        self._watch_entries()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the statistics at the present weights for a moment, without a change of the buffers."""
        self._compute()
        with self._replaced(self._known or self._running()):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics at the averaged weights, and the gathered ones while those are shown.

        There are the same tensors whether they are known or not.
        """
        with torch.no_grad(), self._averages.shown():
            self._compute()
        running = self._running() if self._has_layers else []
        return {
            "known": self._known is not None,
            "values": running if self._known is None else self._known,
            "shown": self._gathered is not None,
            "gathered": running if self._gathered is None else self._gathered,
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take the statistics of a checkpoint; None is of one without them."""
        if self._gathered is not None:
            self._write(self._gathered)
        self._load(state["values"] if state is not None and state["known"] else None)
        if state is not None:
            self._loaded = [state["values"], state["gathered"]]
            if state["shown"]:
                self._gathered = list(state["gathered"])
                self._write(state["values"])

    @contextmanager
    def kept_on_error(self) -> Iterator[None]:
        """Keep what is known if a load of the network is refused, which puts its buffers back."""
        before = {**self.__dict__, "_batches": deque(self._batches)}
        before["_gathered"] = None if self._gathered is None else list(self._gathered)
        try:
            yield
        except RuntimeError:
            self.__dict__.update(before)
            raise

    def take_gathered(self) -> None:
        """Take the statistics that the layers have now for those that training passes have gathered."""
        self._gathered = None
        self._watch_entries()

    def _load(self, known: list[Tensor] | None) -> None:
        self._known, self._full, self._gathered, self._before, self._loaded = known, False, None, None, []
        self._batches.clear()

    def take(self, layers: Sequence[nn.Module]) -> None:
        """Take the statistics that some layers have now for those of the averaged weights."""
        if set(layers).isdisjoint(self._layers):
            return
        now, known = self._running(), self.state_dict()["values"]
        pairs = zip(self._layers, now, known, strict=True)
        self._load([value if layer in layers else old for layer, value, old in pairs])

    def _write(self, values: list[Tensor]) -> None:
        for layer, value in zip(self._layers, values, strict=True):
            if layer not in self._frozen:
                _write(layer, value)
        self._finite.remember(reads=not self._layers[0].running_mean.is_meta)

    def _compute(self) -> None:
        """Put the batches that have come since in the place of as many of the rows known."""
        batches = list(self._batches)
        self._batches.clear()
        if not batches or not self._has_layers:
            return
        running = self._running()
        try:
            with self._adding_up(running) as sums:
                for batch in batches:
                    batch.run()
        except Exception as error:  # the network may not run in evaluation mode
            self._load(None)
            if not self._warned:
                self._warned = True
                warn(
                    "BatchNorm's statistics could not be computed at the averaged weights, so that those "
                    f"that training has gathered are evaluated ({error!r}): pass recalibrate=False to Auto, "
                    "and call alrao.recalibrate(model, loader) before an evaluation"
                )
            return
        earlier = self._before if self._known is None else self._known
        if earlier is None or self._full:
            earlier, share = running, 1.0
        else:
            share = min(1.0, max(sum(batch.rows for batch in batches) / ROWS, len(batches) / LASTING))
        self._known, self._full, self._before = [], False, None
        for layer, old, now in zip(self._layers, earlier, running, strict=True):
            total, passes = sums[layer]
            new = total / passes if passes else now
            keep_finite_(new, now)
            self._known.append(torch.lerp(old.to(new), new, share))

    @contextmanager
    def _adding_up(self, running: list[Tensor]) -> Iterator[dict[nn.Module, tuple[Tensor, int]]]:
        """Normalise by the statistics of each batch, and add these up; all that passes change is restored.

        The layers are in evaluation mode as well: in training mode some wait for other processes.
        """
        pairs = zip(self._layers, running, strict=True)
        sums = {layer: (torch.zeros_like(value), 0) for layer, value in pairs}

        def gather(layer: Any, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs["input"]
            x = x.to(torch.promote_types(x.dtype, layer.running_mean.dtype))
            n = x.numel() // x.shape[1]
            found = x.new_zeros(2, x.shape[1])  # mean and unbiased variance, three times as fast as var_mean
            torch.batch_norm(x, None, None, found[0], found[1], True, 1.0, layer.eps, False)
            var = found[1] * ((n - 1) / n) if n > 1 else torch.zeros_like(found[1])
            layer._buffers |= {"running_mean": found[0], "running_var": var}
            if n > 1 and in_range([found]):
                total, passes = sums[layer]
                sums[layer] = total + found, passes + 1

        modes = [(module, module.training) for module in self._net.modules()]
        statistics = {buffer for layer in self._layers for buffer in layer.buffers(recurse=False)}
        others = [(buffer, buffer.clone()) for buffer in self._net.buffers() if buffer not in statistics]
        attributes = [(module, dict(vars(module))) for module in self._net.modules()]
        with ExitStack() as stack:
            stack.enter_context(_same_random_numbers(running[0].device))
            stack.enter_context(self._replaced(running))
            for layer in self._layers:
                if layer not in self._frozen:
                    stack.callback(layer.register_forward_pre_hook(gather, with_kwargs=True).remove)
            try:
                for module, _ in modes:
                    module.training = False
                yield sums
            finally:
                for module, before in attributes:  # such as a hidden state or a counter
                    for name in vars(module).keys() - before.keys():
                        del vars(module)[name]
                    vars(module).update(before)
                for module, mode in modes:
                    module.training = mode
                for buffer, value in others:  # a forward pass may count its calls
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)

    @contextmanager
    def _replaced(self, values: list[Tensor]) -> Iterator[None]:
        """Put other tensors in the place of the buffers, which a backward pass may still need as they are."""
        names = ("running_mean", "running_var")
        own = [{name: layer._buffers[name] for name in names} for layer in self._layers]
        try:
            for layer, value in zip(self._layers, values, strict=True):
                if layer not in self._frozen:
                    layer._buffers |= dict(zip(names, value.unbind(), strict=True))
            yield
        finally:
            for layer, buffers in zip(self._layers, own, strict=True):
                layer._buffers |= buffers

    def __getstate__(self) -> dict[str, Any]:
        self.state_dict()  # a copy has no inputs
        return {**self.__dict__, "_batches": deque()}


_computed: weakref.WeakSet[AveragedStatistics] = weakref.WeakSet()
"""All objects that compute statistics."""


class _Batch:
    """The inputs of a pass: copies, since a program may use the same memory for the next batch."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = module
        self._inputs = tree_map_only(Tensor, lambda x: x.detach().clone(), (args, kwargs))
        tensors = [leaf for leaf in tree_leaves(self._inputs) if isinstance(leaf, Tensor)]
        self.rows = next((len(leaf) for leaf in tensors if leaf.ndim), 1)
        self.size = sum(leaf.numel() * leaf.element_size() for leaf in tensors)
        device = tensors[0].device.type if tensors else "cpu"
        self._autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        self._dtype = _dtype_of(module)

    def run(self) -> None:
        """Run the pass again."""
        args, kwargs = self._inputs
        now = _dtype_of(self._module)
        if now != self._dtype:  # the model has been cast
            args, kwargs = tree_map_only(
                Tensor, lambda x: x.to(now) if x.dtype == self._dtype else x, self._inputs
            )
        device, dtype, enabled = self._autocast
        with torch.autocast(device, dtype, enabled):
            self._module(*args, **kwargs)


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def _write(layer: Any, value: Tensor) -> None:
    layer.running_mean.copy_(value[0])
    layer.running_var.copy_(value[1])


def _same_random_numbers(device: torch.device) -> Any:
    """Return a context that restores the state of the random numbers."""
    if device.type == "cpu":
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)
