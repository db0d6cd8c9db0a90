"""``Alrao(net)``: an ordinary module with copies in the place of its output layer."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from .calls import watch_calls
from .clipping import clip_grads_
from .contrib.adaptive import AdaptiveHead
from .evidence import is_readable
from .finite import FiniteStatistics
from .first_forward import FirstForward, Snapshot
from .heads.head import Head
from .output_layer import check_net, choose, declare_untied, make_head, names_of, tied_elsewhere
from .posterior import Posterior, Switch, posterior_bar
from .runtime.sharding import refuse_copy
from .warn import warn
from .watch import EvaluationWatch, unwatch_steps, watch_steps
from .wrapper import Wrapper

DEFAULT_COPIES = 10


class Alrao(Wrapper):
    r"""A network whose output layer is replaced by a head: copies of it, averaged by a posterior.

    The output of a classifier is the log-probability of the mixture,
    :math:`\log \sum_j a_j\, \mathrm{softmax}(W_j z + b_j)`. Use it like logits: in ``cross_entropy``,
    ``nll_loss``, under a ``log_softmax``. In the backward pass each copy receives the gradient of its own
    loss, as if it were the only output, and the body (the rest of the network) that of the mixture. An
    optimizer of this library updates the posterior :math:`a` after each step. :class:`Auto` trains the body
    at one learning rate, the others every feature at its own.

    The network is used as it is, not copied: only its output layer changes.

    Args:
        net: any module with an output layer: a linear layer, a 1x1 convolution, or
            :class:`torch.nn.AdaptiveLogSoftmaxWithLoss`.
        copies: number of copies of the output layer; by default that of ``averaging``, or 10.
        output: the output layer, by dotted name or as a module. By default the last one registered, which is
            checked in the first forward pass.
        likelihood: ``"categorical"`` (the default), ``"gaussian"`` for regression with
            :class:`MixtureMSELoss`, ``"bernoulli"`` for binary and multi-label outputs with
            :class:`MixtureBCELoss`.
        averaging: the posterior, ``Switch(10)`` by default.
        keep_output: start every copy from the output layer as it is, for fine-tuning. By default the copies
            are initialised again, by the same scheme; those of a frozen layer never are.

    Example:
        >>> import torch, alrao
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> model = alrao.Alrao(net)
        >>> optimizer = alrao.SGD(model)
        >>> loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
        >>> loss.backward()
        >>> optimizer.step()
        >>> round(model.posterior.sum().item(), 6)
        1.0

    Reference: Blier, Wolinski, Ollivier, "Learning with Random Learning Rates", 2019.
    """

    head: Head
    """The copies, in the place of the output layer; ``weight`` is ``(copies, classes, d)``."""
    averages: Any = None
    """The averaged weights, under :class:`Auto`; a copy of the model has none."""
    _evaluation: EvaluationWatch | None = None
    """Notices an evaluation in training mode, until ``eval()`` has been called."""

    def __init__(
        self,
        net: nn.Module,
        copies: int | None = None,
        *,
        output: str | nn.Module | None = None,
        likelihood: str | None = None,
        averaging: Posterior | None = None,
        keep_output: bool = False,
    ) -> None:
        super().__init__()
        check_net(net)
        if averaging is None:
            averaging = Switch(DEFAULT_COPIES if copies is None else copies)
        if not isinstance(averaging, Posterior):
            raise TypeError(f"averaging must be a Posterior such as Switch(10), got {averaging!r}")
        if copies is not None and averaging.copies != copies:
            raise ValueError(
                f"averaging is over {averaging.copies} copies, but copies={copies}: leave copies out"
            )
        name, layer = choose(net, output)
        head = make_head(layer, name, likelihood, averaging, keep_output)
        if is_parametrized(layer) or layer._forward_hooks or layer._forward_pre_hooks:
            warn(f"the copies of the output layer {name!r} do not have its parametrizations and hooks")
        tied = tied_elsewhere(net, layer)
        frozen = not any(parameter.requires_grad for parameter in layer.parameters())
        if frozen and head.copies > 1:
            warn(
                f"the output layer {name!r} is frozen, so its copies keep its values and stay alike: they "
                "cost time and memory for nothing. Pass copies=1 to train only the rest of the network, or "
                "unfreeze the layer before Alrao(net) (with PEFT: LoraConfig(modules_to_save=[…]))"
            )
        if tied and not frozen:
            warn(
                f"the weights of the output layer {name!r} are tied to {', '.join(tied)}: the copies have "
                "their own weights from now on, and the tied ones stay with the network"
            )
        self.output_name = name
        self._untied = bool(tied) and not frozen
        self._guessed = output is None and not isinstance(head, AdaptiveHead)
        self._verified = False
        self._evaluation = EvaluationWatch("model", in_a_row=False)
        self.finite_statistics = FiniteStatistics(net)
        head.averaging.to(next(layer.parameters()).device)
        head.train(layer.training)
        # A refused network is left as it was: it changes last.
        for each in names_of(net, layer) if name else ():
            net.set_submodule(each, head)
        self.__dict__["head"] = head  # not a second child: the network has it already
        self.stand_for(net if name else head)
        watch_steps(head, () if tied else layer.parameters())
        converted.add(self)

    # The user's network, reachable through the wrapper.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the network returns, for what the network takes."""
        if torch.compiler.is_compiling():
            spread = getattr(self.head, "spread", False)
            return _uncompiled(self.net, args, kwargs) if spread else self.net(*args, **kwargs)
        self.place_weights()  # ``training`` may have been set without a call of train()
        if self.training:
            self.finite_statistics.remember(reads=is_readable(self.head.evidence))
            averages, evaluation = self.averages, self._evaluation
            if averages and evaluation and not evaluation.look(averages, self.finite_statistics):
                self._evaluation = None
        else:
            self._warn_of_training_weights()
        if self._verified:
            return self.net(*args, **kwargs)
        out = FirstForward(self.net, self.head, self.output_name, self._guessed, args, kwargs).run()
        self._verified = True
        return out

    def notice_step(self) -> None:
        """Learn that an optimizer of alrao has stepped, as it must; see :mod:`alrao.watch`."""
        if not torch.compiler.is_compiling():
            unwatch_steps(self.head)

    def __getstate__(self) -> dict[str, Any]:
        self.finite_statistics.restore()
        return {key: value for key, value in super().__getstate__().items() if key != "averages"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        watch_steps(self.head)
        converted.add(self)

    def __setattr__(self, name: str, value: Any) -> None:
        head = self.__dict__.get("head")
        if head is not None and isinstance(value, nn.Module) and self._modules.get(name) is head:
            raise AttributeError(
                f"{name!r} is the output layer, in whose place the copies are: to replace it, change the "
                "network before alrao.Alrao(net), or convert it again after model.collapse()"
            )
        super().__setattr__(name, value)

    # Training weights and averaged weights, under Auto.

    def averaged_by(self, averages: Any) -> None:
        """Let an optimizer put its weights for the present mode into the parameters."""
        if self.averages is None:
            watch_calls(self.net, "train", self._mode_called)  # by who has kept the network
        self.averages = averages

    def place_weights(self) -> None:
        """Put the weights for the present mode into the parameters, under :class:`Auto`."""
        if self.averages is not None:
            self.averages.place(self.training)

    def _mode_called(self, *_: Any, **__: Any) -> None:
        self.training = self.net.training
        self.place_weights()

    def hold(self, training: bool) -> None:
        """Ignore a mode that the optimizer is told: the model's own mode selects the weights."""

    def check_gradients(self, averages: bool) -> None:
        """Accept all gradients: every forward pass has the weights for the mode, and may train in any."""

    def _warn_of_training_weights(self) -> None:
        """Warn, once, that the averaged weights are not known, if the weights are those of training."""
        if self.head.training_weights:
            self.head.training_weights = False
            warn(
                "the model has the training weights of a run with Auto, and the averaged weights, which "
                "should be evaluated, are not known: call model.eval() before you save or copy a model, or "
                "load the optimizer's state too"
            )

    # The copies and their posterior.

    @property
    def posterior(self) -> Tensor:
        """The posterior probability of each copy, lowest rate first; ``head.averaging`` has it in float64."""
        return self.head.averaging.weights.to(self.head.evidence.dtype)

    def reset_posterior(self) -> None:
        """Reset the posterior to uniform, for example after a change of data."""
        self.head.averaging.reset()
        self.head.wake_all()

    def body_parameters(self) -> list[nn.Parameter]:
        """Return all parameters but those of the head."""
        of_copies = set(self.head.parameters())
        return [parameter for parameter in self.net.parameters() if parameter not in of_copies]

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradient of the body, and that of each copy separately, to ``max_norm``.

        One norm over all of them would let the copy with the largest gradient throttle the body. Gradients
        that are not finite become 0.

        Args:
            max_norm: the largest norm that is left unchanged.
            norm_type: which norm, as in :func:`torch.nn.utils.clip_grad_norm_`.

        Returns:
            The norm of the body's gradient before clipping.
        """
        reads = is_readable(self.head.evidence)
        return clip_grads_(
            self.body_parameters(), list(self.head.parameters()), max_norm, norm_type, reads=reads
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state, as in torch, under the names of the network; running statistics are finite."""
        self.finite_statistics.restore()
        plain = type(self.net).state_dict is nn.Module.state_dict
        return super().state_dict(*args, **kwargs) if plain else self.net.state_dict(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the evidence gathered with them."""
        super().zero_grad(set_to_none)
        self.head.evidence.grad = None

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, as in torch; running statistics are made finite.

        Under :class:`Auto`, the parameters hold the averaged weights in evaluation mode (but with
        ``swap=False``), and the training weights in training mode.
        """
        self.finite_statistics.restore(reads=is_readable(self.head.evidence))
        self.net.train(mode)
        self.training = mode
        self.place_weights()
        if not mode:
            self._evaluation = None
            self._warn_of_training_weights()
        return self

    def collapse(self, *, mixture: bool = False) -> nn.Module:
        """Return an ordinary, independent network, with a single output layer.

        Under :class:`Auto` it has the averaged weights, in either mode; with ``swap=False`` the training
        weights.

        Where the output layer was tied to an embedding, the ``config`` of a Hugging Face model is set to
        untied, so that ``save_pretrained`` and ``from_pretrained`` keep both; for other networks a warning
        is issued.

        Args:
            mixture: by default the copy with the highest posterior becomes the output layer, and the network
                returns what it returned before the conversion (logits, for a classifier). With True, the
                whole mixture does; a classifier then returns log-probabilities.
        """
        refuse_copy(self)
        head = self.head
        self.place_weights()
        if self.averages is None:
            self._warn_of_training_weights()
        self.finite_statistics.restore()
        with torch.no_grad(), nullcontext() if self.averages is None else self.averages.shown():
            layer = head.mixture() if mixture else head.layer(int(head.averaging.weights.argmax()))
            layer.train(head.training)
            memo: dict[int, Any] = {id(head): layer}  # deepcopy then takes the layer for the head
            kept = (value for module in self.net.modules() for value in vars(module).values())
            computed = [x for x in kept if isinstance(x, Tensor) and x.grad_fn is not None]
            memo |= {id(x): x.detach().clone() for x in computed}  # torch copies none with a graph
            plain = copy.deepcopy(self.net, memo)
        if self._untied:
            declare_untied(plain, self.output_name)
        return plain

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state, as in torch. A state that does not fit raises an error and changes nothing.

        The state of the network before its conversion is accepted too: its output layer goes into every
        copy, and the posterior becomes uniform.
        """
        state, metadata = OrderedDict(state_dict), getattr(state_dict, "__dict__", {})
        state.__dict__.update(metadata)
        for name in names_of(self.net, self.head):
            self.head.adopt(state, f"{name}." if name else "")
        own, given = (
            {key: getattr(x, "shape", 0) for key, x in s.items()} for s in (self.state_dict(), state)
        )
        before = None if own == given else Snapshot(self.net, self.parameters())
        statistics = None if self.averages is None else self.averages.statistics
        kept = nullcontext() if statistics is None else statistics.kept_on_error()
        try:
            with kept:
                loaded = super().load_state_dict(state, strict, assign)
        except RuntimeError as error:
            if before is not None:
                before.restore()
            error.add_note(
                f"The state is of another model, or of another number of copies than {self.head.copies}"
            )
            raise
        finally:  # also where a refused load has written the weights again that were there
            if self.averages is not None:
                self.averages.loaded(self.training)
        return loaded

    def extra_repr(self) -> str:
        """Return the network's type, and the posterior as a row of bars, lowest rate first."""
        weights = self.head.averaging.weights
        bar = "(on meta)" if weights.is_meta else f"|{posterior_bar(weights)}|"
        return f"{type(self.net).__name__}, posterior: {bar}"


converted: weakref.WeakSet[Alrao] = weakref.WeakSet()
"""All models there are, so that an optimizer that is given parameters finds theirs."""


@torch.compiler.disable
def _uncompiled(net: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return the output of a network whose copies go through the rest of it; Spread then says why."""
    return net(*args, **kwargs)
