"""The right weights at the right time: averaged ones to evaluate, training ones to train."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..shards import fingerprint, resharded, sharded_as
from ..shortcuts import outside_dispatch_modes
from ..warn import warn
from ..watch import version_of
from .optimizer import AlraoOptimizer

__all__ = ["AveragedOptimizer", "wide_dtype"]


def wide_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type in which averages of a parameter are kept: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


class AveragedOptimizer(AlraoOptimizer):
    r"""An optimizer whose model is evaluated at averaged weights.

    The gradient is taken at :math:`y = (1 - \beta) z + \beta x`; the step moves :math:`z`; :math:`x` is the
    average. The parameters hold :math:`y` in training mode and :math:`x` in evaluation mode of the Alrao
    model. ``state[p]["z"]`` is :math:`z`; :math:`x` follows from both, with :math:`\beta` in
    ``state[p]["beta"]`` where it changes. In evaluation mode ``state[p]["y"]``
    is a copy of :math:`y`, because arithmetic would not bring back the same bits.

    With ``swap=False`` the parameters hold :math:`y` in both modes.

    Weights that are loaded into the model without the state of the optimizer become all three. A state holds
    a fingerprint of the weights it belongs to, so that they are recognised whatever is loaded first.
    """

    _wide = AlraoOptimizer._wide | {"z", "v", "worth", "last", "total", "total_size"}
    _starts_as_weights = frozenset({"z"})

    def __init__(self, *args: Any, swap: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.swap = swap
        self._evaluating = False
        self._versions: dict[Tensor, int] = {}  # of the parameters when averages were put into them
        self._expected: dict[Tensor, int] = {}  # fingerprints of the weights that belong to a loaded state
        self._looked_at: list[int] = []
        self._loads = self.model.head.loads
        self._known_as = self.model.averaged_by(self)

    # The modes.

    def train(self) -> None:
        """Put the training weights into the parameters. The model's ``train()`` does this by itself."""
        self.model.hold(True)
        self.place(True)

    def eval(self) -> None:
        """Put the averaged weights into the parameters. The model's ``eval()`` does this by itself."""
        self.model.hold(False)
        self.place(False)

    def place(self, training: bool) -> None:
        """Put the weights for a mode into the parameters, where they are not there yet."""
        training = training or not self.swap
        if self._evaluating != training and not self._expected and self._loads == self.model.head.loads:
            return
        with torch.inference_mode(False), torch.no_grad():
            self._notice_loads()
            if self._expected and not self._recognise():
                return  # the weights of the loaded state are still to come
            if training:
                self._leave()
            else:
                self._enter()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Show the averaged weights for a moment, in training mode too, without a change to the graph."""
        self.place(self.model.training)
        replaced = []
        if self.swap and not self._evaluating and not self._expected:
            with torch.no_grad():
                for p, beta in self._averages():
                    replaced.append((p, p.data))
                    p.data = self._average(p, beta).to(p.dtype)
        try:
            yield
        finally:
            for p, data in replaced:
                p.data = data

    @property
    def shows_averages(self) -> bool:
        """Whether the parameters hold averaged weights, which differ from the training weights."""
        return self._evaluating and bool(self._versions)

    def _averages(self) -> Iterator[tuple[Tensor, Any]]:
        """Return the parameters whose average differs from them, with their beta."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p, {})
                k, beta = state.get("k", 0), state.get("beta", group["beta"])
                if isinstance(k, Tensor) or k > 0:  # a tensor is not read: the average may be the weights
                    yield p, beta.to(p.device, wide_dtype(p)) if isinstance(beta, Tensor) else beta

    def _average(self, p: Tensor, beta: Any) -> Tensor:
        state = self.state[p]
        y, z, k = self.training_weights(p, state), state["z"], state["k"]
        if y.dtype != z.dtype or y.device != z.device:  # the model was cast or moved after the last step
            wide = torch.promote_types(y.dtype, z.dtype)
            y, z = y.to(wide), z.to(y.device, wide)
        x = torch.lerp(z, y, 1 / beta)
        return torch.where(sharded_as(k.to(p.device) > 0, p), x, y) if isinstance(k, Tensor) else x

    def training_weights(self, p: Tensor, state: dict[str, Any]) -> Tensor:
        """Return a parameter at the precision of its average; the parameter itself, if it has that."""
        rest = state.get("rest")
        return p.detach() if rest is None else p.to(wide_dtype(p)) + rest.to(p.device)

    def _enter(self) -> None:
        if self._evaluating:
            return
        with resharded(self.sharded_modules):
            for p, beta in self._averages():
                average = self._average(p, beta)
                self.state[p]["y"] = p.detach().clone()
                p.copy_(average)
                self._versions[p] = version_of(p)
                self.model.head.training_weights = False
        self._evaluating = True

    def _leave(self) -> None:
        if not self._evaluating:
            return
        with resharded(self.sharded_modules):
            for p, state in self.state.items():
                if "y" not in state:
                    continue
                if self._versions.get(p) == version_of(p):
                    p.copy_(state.pop("y"))
                else:  # somebody has put other weights there
                    self._restart(p)
        self._versions.clear()
        self._evaluating = False
        self._mark()

    def _mark(self) -> None:
        """Let the model know whether it has training weights that differ from the averaged ones."""
        if self.swap and next(self._averages(), None) is not None:
            self.model.head.training_weights = not self._evaluating

    @torch.no_grad()
    def transform(self, change: Callable[[], None]) -> None:
        """Apply an affine change of the weights to everything that is kept of them.

        A change in place would else count as new training weights, next to averages of the old ones.

        Args:
            change: changes parameters of the model in place, each by an affine function of the parameters. It
                is called once for each set of weights: the present ones, :math:`z`, and so on.
        """
        self._notice_loads()
        params = [p for group in self.param_groups for p in group["params"]]
        present = [p.data for p in params]
        for key in ("z", "y", "start"):
            kept = [self.state.get(p, {}).get(key) for p in params]
            if all(each is None for each in kept):
                continue
            for p, data, each in zip(params, present, kept, strict=True):
                p.data = data.clone() if each is None else each
            try:
                change()
            finally:
                for p, data in zip(params, present, strict=True):
                    p.data = data
        change()
        self._versions = {p: version_of(p) for p in self._versions}

    def _follow(self, new: dict[Tensor, Tensor]) -> None:
        super()._follow(new)
        self._expected = {new.get(p, p): mark for p, mark in self._expected.items()}
        self._versions = {new.get(p, p): version_of(new.get(p, p)) for p in self._versions}

    # Weights that came from elsewhere.

    def _restart(self, p: Tensor) -> None:
        """Take a parameter's present value for the start and for its average."""
        state = self.state[p]
        state.pop("y", None)
        if "start" in state:
            state["start"] = p.detach().clone()
        if "z" in state:
            state["z"] = p.detach().to(wide_dtype(p), copy=True)
            state["k"] = torch.zeros_like(state["k"]) if isinstance(state.get("k"), Tensor) else 0
        if "rest" in state:
            state["rest"].zero_()

    def ignore_load(self) -> None:
        """Keep the average after a load that failed: the model has the weights that it had before."""
        self._loads = self.model.head.loads
        self._versions = {p: version_of(p) for p in self._versions}

    def _notice_loads(self) -> None:
        """Start again from weights that were loaded into the model, unless a state was loaded too."""
        if self._expected or self._loads == self.model.head.loads:
            return
        self._loads = self.model.head.loads
        for p, state in self.state.items():
            if "y" not in state or self._versions.get(p) != version_of(p):
                self._restart(p)

    def _recognise(self, *, stepping: bool = False) -> bool:
        """Return whether the model has the weights of the loaded state.

        Args:
            stepping: the weights are trained now: start again from those that are not the state's.
        """
        looked_at = [version_of(p) for p in self._expected]
        if looked_at == self._looked_at and not stepping:
            return False
        self._looked_at = looked_at
        found = {p: fingerprint(p) for p in self._expected}
        strange = [p for p, expected in self._expected.items() if found[p] != expected]
        if strange and self._evaluating and self._are_training_weights(found):
            strange, self._evaluating = [], False
            for p in self._expected:
                self.state[p].pop("y", None)
        if strange and not stepping:
            return False
        for p in strange:
            self._restart(p)
        if self._evaluating:
            self._rebuild()
        if strange:
            warn(
                f"{len(strange)} parameters are not those that the optimizer's state was saved with, so "
                "their averages start again: load the model and the optimizer from the same checkpoint"
            )
        self._settle()
        return True

    def _rebuild(self) -> None:
        """Compute the training weights that a distributed checkpoint has no room for, from both others."""
        for p, beta in self._averages():
            state = self.state[p]
            if "y" not in state:
                x, k = p.detach().to(wide_dtype(p)), state["k"]
                y = torch.lerp(state["z"], x, beta)
                y = torch.where(sharded_as(k > 0, p), y, x) if isinstance(k, Tensor) else y
                state["y"] = y.to(p.dtype)

    def _are_training_weights(self, found: dict[Tensor, int]) -> bool:
        """Return whether the model was saved in training mode, though the optimizer was not."""
        return all(
            mark == (fingerprint(self.state[p]["y"]) if "y" in self.state[p] else self._expected[p])
            for p, mark in found.items()
        )

    def _settle(self) -> None:
        self._expected, self._looked_at = {}, []
        self._loads = self.model.head.loads
        self._versions = {p: version_of(p) for p, state in self.state.items() if "y" in state}
        self._mark()

    # The step.

    def _begin_step(self) -> None:
        self._notice_loads()
        if self._expected:
            self._recognise(stepping=True)
        self.model.check_gradients(self.shows_averages)
        self._leave()

    def _end_step(self, evidence: Any, gate: Any) -> None:
        self.model.head.training_weights = False  # of an earlier run: this one continues from them
        self._mark()
        if self.swap and not self.model.training:
            self._enter()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the mode that the weights in the model are in, and their fingerprints."""
        self._notice_loads()
        packed = super().state_dict()
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in enumerate(params):
            state = packed["state"].get(i, {})
            if "z" in state or "start" in state or "v" in state:
                known = self._expected.get(p)
                mark = fingerprint(p) if known is None else known
                kept = {key: value for key, value in state.items() if key != "start"}
                if "z" not in kept:  # the same tensors at every moment: what is to be loaded is known then
                    start = state.get("start", p.detach())
                    kept |= {"z": start.to(wide_dtype(p), copy=True), "k": 0}  # dcp.load writes into it
                packed["state"][i] = {**kept, "fingerprint": mark}
        packed["param_groups"] = [
            {**group, "evaluating": self._evaluating} for group in packed["param_groups"]
        ]
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, before or after the weights of the model."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            self._evaluating = group.pop("evaluating")
        training_weights = self.model.head.training_weights
        self._settle()
        self._expected = {
            p: state.pop("fingerprint") for p, state in self.state.items() if "fingerprint" in state
        }
        self.model.head.training_weights = training_weights  # the present weights may be others

    def __getstate__(self) -> dict[str, Any]:
        left = ("_versions", "_known_as")
        return {key: value for key, value in super().__getstate__().items() if key not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model" in state:  # a copy or a pickle, not a loaded state
            self._versions = {p: version_of(p) for p, of_param in self.state.items() if "y" in of_param}
            self._known_as = self.model.averaged_by(self)

    def __del__(self) -> None:
        # A function that trains a model drops its optimizer, and the model is evaluated afterwards.
        known_as = self.__dict__.get("_known_as")
        if known_as is not None and not sys.is_finalizing() and self.model.is_averaged_by(known_as):
            with outside_dispatch_modes():
                self.place(False)
