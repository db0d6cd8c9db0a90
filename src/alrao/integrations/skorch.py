"""The nets of skorch without a learning rate: ``AlraoNetClassifier`` and its relatives.

Needs ``pip install 'alrao[skorch]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

try:
    from skorch import (  # type: ignore[import-untyped]
        NeuralNet,
        NeuralNetBinaryClassifier,
        NeuralNetClassifier,
        NeuralNetRegressor,
        callbacks,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"alrao.integrations.skorch needs the package {error.name}, which is not installed: "
        "pip install 'alrao[skorch]'",
        name=error.name,
    ) from error

from ..auto import Auto
from ..losses import MixtureBCELoss, MixtureMSELoss
from ..model import Alrao
from ..optim import AlraoOptimizer
from ..tensors import LogProbs
from ..trainable import unwrap
from ..warn import warn

__all__ = [
    "AlraoNet",
    "AlraoNetBinaryClassifier",
    "AlraoNetClassifier",
    "AlraoNetRegressor",
    "GradientNormClipping",
]

RATES = ("lr", "optimizer__lr")
"""The parameters of a net that contain an interval of rates."""


class AlraoNet(NeuralNet):  # type: ignore[misc]
    """:class:`skorch.NeuralNet` without a learning rate to choose.

    - The module is converted by :class:`alrao.Alrao`. Pass its arguments with the prefix ``alrao__``
      (``alrao__copies=5``). An Alrao model is used as it is.
    - The optimizer is one of alrao's, by default :class:`alrao.Auto`. ``optimizer__param_groups`` works, with
      the parameter names of the module before the conversion.
    - ``lr`` is an interval of rates or a rate distribution, for optimizers other than Auto. None, the
      default, means the optimizer's default.
    - The module is in evaluation mode at the end of every epoch. Callbacks that save it, and ``module_``
      after ``fit``, therefore have Auto's averaged weights.
    - The output is log-probabilities. skorch therefore does not take their logarithm for ``NLLLoss``, and
      ``predict_proba`` returns probabilities with every criterion.

    A module given as an instance is not modified; a copy of it is trained.

    To adapt your own net class: ``class MyAlraoNet(AlraoNet, MyNet)``.

    Args:
        module: a network, as a class or an instance.
        *args: the criterion, as in skorch.
        optimizer: an optimizer of alrao.
        lr: an interval of learning rates or a rate distribution, for optimizers other than Auto.
        **kwargs: as in skorch; those with the prefix ``alrao__`` are passed to :class:`alrao.Alrao`.
    """

    prefixes_: ClassVar[list[str]] = [*NeuralNet.prefixes_, "alrao"]

    alrao_likelihood: ClassVar[str | None] = None
    """The default of ``alrao__likelihood``."""

    def __init__(self, module: Any, *args: Any, optimizer: Any = Auto, lr: Any = None, **kwargs: Any) -> None:
        super().__init__(module, *args, optimizer=optimizer, lr=lr, **kwargs)

    # Training.

    def initialize_module(self) -> Self:
        """Build the module and convert it to an Alrao model."""
        super().initialize_module()
        module: Any = self.module_  # type: ignore[has-type]
        if not isinstance(module, Alrao):
            if module is self.module:
                module = deepcopy(module)
            options = {"likelihood": self.alrao_likelihood, **self.get_params_for("alrao")}
            self.module_ = Alrao(module, **options)
        return self

    def initialize_optimizer(self, *args: Any, **kwargs: Any) -> Self:
        """Build the optimizer, with the groups of ``optimizer__param_groups``."""
        kind: Any = self.optimizer
        if isinstance(kind, type) and not issubclass(kind, AlraoOptimizer):
            raise TypeError(
                f"optimizer must be one of alrao's, such as alrao.SGD or alrao.Adam, got {kind.__name__}: "
                f"pass functools.partial(alrao.PerFeature, {kind.__name__})"
            )
        named = self.get_all_learnable_params()
        (groups,), options = self.get_params_for_optimizer("optimizer", named)
        if options["lr"] is None:
            del options["lr"]
        elif kind is Auto:
            raise ValueError(
                f"Auto finds the rates itself, got lr={options['lr']!r}: leave lr out, or pass "
                "optimizer=alrao.SGD or another optimizer of alrao with it"
            )
        self.optimizer_ = kind(self.module_, params=groups, **options)
        return self

    def get_all_learnable_params(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters with their names in the module before the conversion."""
        own = {p: name for name, p in unwrap(self.module_).net.named_parameters()}
        for name, p in super().get_all_learnable_params():
            yield own.get(p, name), p

    def set_params(self, **kwargs: Any) -> Self:
        """Set parameters, as in skorch.

        On an initialized net, a new ``lr`` rebuilds the optimizer and draws new rates; an option with the
        prefix ``alrao__`` rebuilds the module as well.
        """
        if not self.initialized_:
            return super().set_params(**kwargs)
        self._check_factors(kwargs)
        ours = {key: value for key, value in kwargs.items() if key in RATES or key.startswith("alrao__")}
        super().set_params(**{key: value for key, value in kwargs.items() if key not in ours})
        for key, value in ours.items():
            setattr(self, key, value)
        if any(key not in RATES for key in ours):
            self._initialize_module(reason=self._format_reinit_msg("module", ours))
            self._initialize_criterion(reason=self._format_reinit_msg("criterion"))
        if ours:
            self._initialize_optimizer(reason=self._format_reinit_msg("optimizer", ours))
        return self

    def _check_factors(self, kwargs: dict[str, Any]) -> None:
        # skorch writes these into the groups, where alrao has a factor on the drawn rates.
        for key, value in kwargs.items():
            if key.startswith("optimizer__param_groups__") and key.endswith("__lr"):
                try:
                    float(value)
                except (TypeError, ValueError):
                    raise ValueError(
                        f"the lr of a group of a running optimizer is a factor on its drawn rates, a number, "
                        f"got {key}={value!r}: set lr to draw other rates, or initialize the net again with "
                        "optimizer__param_groups"
                    ) from None

    def initialize_callbacks(self) -> Self:
        """Build the callbacks, and warn if one clips all copies together."""
        super().initialize_callbacks()
        for name, callback in self.callbacks_:
            if (
                isinstance(callback, callbacks.GradientNormClipping)
                and not isinstance(callback, GradientNormClipping)
                and callback.gradient_clip_value is not None
            ):
                warn(
                    f"the callback {name!r} clips one norm over all gradients, so a diverging copy of the "
                    "head would scale down the whole network: use the GradientNormClipping of "
                    "alrao.integrations.skorch"
                )
        return self

    def on_epoch_end(self, net: Any, *args: Any, **kwargs: Any) -> None:
        """Put the module into evaluation mode, so that callbacks see the weights that are evaluated."""
        super().on_epoch_end(net, *args, **kwargs)
        self._set_training(False)

    # Losses and predictions.

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a batch; ``NLLLoss`` receives log-probabilities unchanged."""
        if isinstance(self._plain_criterion(), nn.NLLLoss) and isinstance(y_pred, LogProbs):
            return NeuralNet.get_loss(self, y_pred, y_true, *args, **kwargs)
        return super().get_loss(y_pred, y_true, *args, **kwargs)

    def _get_predict_nonlinearity(self) -> Any:
        nonlinearity = super()._get_predict_nonlinearity()
        if self.predict_nonlinearity != "auto":
            return nonlinearity
        if isinstance(self._plain_criterion(), MixtureBCELoss):
            return _probabilities
        return lambda y: y.exp() if isinstance(y, LogProbs) else nonlinearity(y)

    def _plain_criterion(self) -> Any:
        return getattr(self.criterion_, "_orig_mod", self.criterion_)  # not the compiled wrapper


def _probabilities(logits: Tensor) -> Tensor:
    yes = logits.sigmoid()
    return yes if yes.ndim > 1 else torch.stack([1 - yes, yes], 1)


class AlraoNetClassifier(AlraoNet, NeuralNetClassifier):  # type: ignore[misc]
    """:class:`skorch.NeuralNetClassifier` without a learning rate to choose; see :class:`AlraoNet`.

    The module returns logits, without a softmax at its end. ``NLLLoss``, the default criterion, and
    ``CrossEntropyLoss`` give the same loss.

    Args:
        module: a network, as a class or an instance.
        optimizer: an optimizer of alrao.
        lr: an interval of learning rates or a rate distribution, for optimizers other than Auto.
        **kwargs: as in skorch; those with the prefix ``alrao__`` are passed to :class:`alrao.Alrao`.

    Example:
        >>> import numpy, torch
        >>> from sklearn.datasets import load_iris
        >>> from alrao.integrations.skorch import AlraoNetClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> module = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
        >>> options = {"max_epochs": 30, "batch_size": 16, "iterator_train__shuffle": True, "verbose": 0}
        >>> net = AlraoNetClassifier(module, **options)
        >>> bool(net.fit(X.astype(numpy.float32), y).score(X.astype(numpy.float32), y) > 0.8)
        True
    """

    alrao_likelihood = "categorical"


class AlraoNetBinaryClassifier(AlraoNet, NeuralNetBinaryClassifier):  # type: ignore[misc]
    """:class:`skorch.NeuralNetBinaryClassifier` without a learning rate to choose; see :class:`AlraoNet`.

    The module returns one logit per sample. The criterion is ``BCEWithLogitsLoss`` or
    :class:`alrao.MixtureBCELoss`; both give the same loss.

    Args:
        module: a network, as a class or an instance.
        optimizer: an optimizer of alrao.
        lr: an interval of learning rates or a rate distribution, for optimizers other than Auto.
        **kwargs: as in skorch; those with the prefix ``alrao__`` are passed to :class:`alrao.Alrao`.
    """

    alrao_likelihood = "bernoulli"


class AlraoNetRegressor(AlraoNet, NeuralNetRegressor):  # type: ignore[misc]
    """:class:`skorch.NeuralNetRegressor` without a learning rate to choose; see :class:`AlraoNet`.

    The criterion is :class:`alrao.MixtureMSELoss`; with one copy it is the squared error.

    Args:
        module: a network, as a class or an instance.
        criterion: :class:`alrao.MixtureMSELoss`.
        optimizer: an optimizer of alrao.
        lr: an interval of learning rates or a rate distribution, for optimizers other than Auto.
        **kwargs: as in skorch; those with the prefix ``alrao__`` are passed to :class:`alrao.Alrao`.
    """

    alrao_likelihood = "gaussian"

    def __init__(self, module: Any, *args: Any, criterion: Any = MixtureMSELoss, **kwargs: Any) -> None:
        super().__init__(module, *args, criterion=criterion, **kwargs)


class GradientNormClipping(callbacks.GradientNormClipping):  # type: ignore[misc]
    """skorch's callback of the same name, which clips the body and each copy of the head separately.

    Args:
        gradient_clip_value: the largest norm of a gradient; None disables clipping.
        gradient_clip_norm_type: the order of the norm, as in :func:`torch.nn.utils.clip_grad_norm_`.
    """

    def on_grad_computed(self, net: Any, named_parameters: Any, **kwargs: Any) -> None:
        """Clip the gradients of a batch."""
        if self.gradient_clip_value is not None:
            unwrap(net.module_).clip_grad_norm_(self.gradient_clip_value, self.gradient_clip_norm_type)
