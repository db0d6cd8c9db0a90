"""What every head shares: stacked copies, the posterior over them, the leaf for the evidence."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from ..evidence import detached, new_leaf
from ..features import first_axis, register_features
from ..posterior import Posterior


def stacked(parameter: Tensor, copies: int, keep: bool) -> nn.Parameter:
    """Return ``copies`` of a parameter: as it is, or initialised again by the same scheme.

    New values are the parameter's own in a random order: whatever distribution its entries were drawn from
    independently, the new ones are drawn from it too. A frozen parameter is always kept.
    """
    copied = parameter.detach().expand(copies, *parameter.shape).clone()
    if not keep and parameter.requires_grad and not parameter.is_meta:
        for entries in copied.view(copies, -1):
            entries.copy_(entries[torch.randperm(entries.numel()).to(entries.device)])
    return nn.Parameter(copied, requires_grad=parameter.requires_grad)


class Head(nn.Module):
    """Copies of an output layer, on the first axis of every parameter, averaged by a posterior."""

    likelihood: str
    remedy: str  # how the loss must be computed, for the message when it was not
    underflow = inf
    """How far below the best one the log-likelihood of a batch may be; below, a copy has failed."""
    can_sleep: Any = False  # whether copies of this head can be left out
    sharded = False
    """Whether each process holds a part of the parameters, and gathers them for a forward pass."""
    awake: slice | None = None
    """The copies that are awake, from the first to the last; None: all. An optimizer decides about it."""
    part: slice | None = None
    """The copies that the next training pass computes: those awake, and sleeping ones that are looked at."""
    mixing: slice | None = None
    """Those of them whose mixture the pass returns: the others are compared and trained; None: all."""

    def __init__(self, averaging: Posterior, like: Tensor) -> None:
        super().__init__()
        self.averaging = averaging
        self.__dict__["averaging"] = averaging  # here too: torch's way to a child is slow, for every step
        self.copies = averaging.copies
        self.evidence = new_leaf(self.copies, like)
        self.training_weights = False
        """Whether the network has training weights of an optimizer that averages them for evaluation."""

    def wake_all(self) -> None:
        """Let all copies take part in the next pass."""
        self.awake = self.part = self.mixing = None

    def taking_part(self) -> slice | None:
        """Return the copies that the present pass computes; None: all, as in every evaluation."""
        if torch.compiler.is_compiling() or self.part is None:  # that first: nothing is to be compiled again
            return None
        return self.part if self.training and torch.is_grad_enabled() else None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {})
        if self.training_weights and prefix[:-1] in metadata:
            metadata[prefix[:-1]]["training_weights"] = True

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        self.adopt(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)
        self.training_weights = bool(local_metadata.get("training_weights"))

    def adopt(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Turn the state of the plain layer, if there is one under a prefix, into that of the copies."""
        if any(key.startswith(f"{prefix}averaging.") for key in state_dict):
            return
        found = False
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key.removeprefix(prefix).replace(".", "_")  # of parts of the layer
            value, parameter = state_dict[key], self._parameters.get(name)
            if parameter is not None and isinstance(value, Tensor) and value.numel() == parameter[0].numel():
                del state_dict[key]
                state_dict[prefix + name] = value.reshape(parameter.shape[1:]).expand(parameter.shape).clone()
                found = True
        if found:
            uniform = copy.deepcopy(self.averaging)
            uniform.reset()
            state_dict.update(uniform.state_dict(prefix=f"{prefix}averaging."))

    @torch.no_grad()
    def start_alike(self) -> None:
        """Set every copy to the values of the first, unless the posterior shows that they were trained."""
        where = self.averaging.at_prior  # on the device: a single Boolean
        for parameter in self.parameters():
            parameter.copy_(torch.where(where, parameter[:1], parameter))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.move_leaf()
        return self

    def expect_shards(self) -> None:
        """Learn that the parameters are gathered for each pass; torch may have moved them to a device."""
        self.sharded = True
        if self.evidence.device != next(self.parameters()).device:
            self.move_leaf()

    def move_leaf(self) -> None:
        """Make the leaf for the evidence again, where the parameters are now."""
        self.evidence = new_leaf(self.copies, next(self.parameters()), self.evidence)

    def evidence_leaf(self, *parameters: Tensor | None) -> Tensor:
        """Return the leaf for the evidence; a head whose parameters are all frozen gathers none."""
        for parameter in parameters:
            if parameter is not None and parameter.requires_grad:
                return self.evidence
        return detached(self.evidence)

    def __getstate__(self) -> dict[str, Any]:
        # As for parameters, a copy does not take the gradient along. Its storage is the leaf's, which
        # outlives this call, so that another process can open it.
        return {**super().__getstate__(), "evidence": detached(self.evidence).requires_grad_()}

    @abstractmethod
    def layer(self, copy: int) -> nn.Module:
        """Return copy number ``copy`` as a plain layer of the original kind."""

    @abstractmethod
    def mixture(self) -> nn.Module:
        """Return the whole mixture as a plain layer."""

    def extra_repr(self) -> str:
        """Return the size, as in the layer that this one replaces."""
        return f"copies={self.copies}"


register_features(Head)(first_axis)
