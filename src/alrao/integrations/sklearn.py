"""scikit-learn estimators without a learning rate, an architecture or a scaling to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
    from sklearn.utils import check_random_state  # type: ignore[import-untyped]
    from sklearn.utils._param_validation import Interval, StrOptions  # type: ignore[import-untyped]
    from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
    from sklearn.utils.validation import (  # type: ignore[import-untyped]
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "alrao.integrations.sklearn needs scikit-learn 1.6 or newer: pip install 'alrao[sklearn]'"
    ) from error

from ..rates import Rate, RateDistribution
from ._tabular import Array, Scale, Table, Tabular, as_tensor, auto_batch, auto_hidden, held_out, train

__all__ = ["AlraoClassifier", "AlraoRegressor"]

CHUNK = 4096
"""The number of rows per forward pass in predictions."""


class _AlraoEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of both estimators: arguments and training."""

    network_: nn.Module | None
    _tabular: Tabular | None
    _x_scale: Scale
    _y_scale: Scale | None
    _target_shape: tuple[int, ...]

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": [
            StrOptions({"auto"}),
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "copies": [Interval(Integral, 1, None, closed="left")],
        "lr": [
            StrOptions({"auto"}),
            tuple,
            list,
            Interval(Real, 0, None, closed="neither"),
            RateDistribution,
        ],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "weight_decay": [None, Interval(Real, 0, None, closed="left")],
        "device": [str, torch.device],
        "network": [None, callable],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        hidden_layer_sizes: str | int | Sequence[int] = "auto",
        *,
        copies: int = 10,
        lr: str | Rate = "auto",
        batch_size: str | int = "auto",
        max_iter: int = 200,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 20,
        warm_start: bool = False,
        random_state: Any = None,
        weight_decay: float | None = None,
        device: Any = "cpu",
        network: Callable[[int, int], nn.Module] | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.copies = copies
        self.lr = lr
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.weight_decay = weight_decay
        self.device = device
        self.network = network
        self.verbose = verbose

    def _read(
        self, X: Any, y: Any, sample_weight: ArrayLike | None, reset: bool
    ) -> tuple[Array, NDArray[Any], Array]:
        """Validate the arguments of ``fit`` and drop the samples of weight 0."""
        self._validate_params()
        sizes = self.hidden_layer_sizes
        if not isinstance(sizes, str) and not all(
            isinstance(size, Integral) and int(size) >= 1 for size in np.atleast_1d(np.asarray(sizes, object))
        ):
            raise ValueError(f"hidden_layer_sizes must be 'auto' or ints in the range [1, inf), got {sizes}.")
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=np.float64,
            multi_output=True,
            y_numeric=isinstance(self, RegressorMixin),
        )
        if isinstance(self, ClassifierMixin):
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
        else:
            y = np.asarray(y, dtype=np.float64)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weights.any():
            raise ValueError("Sample weights must contain at least one non-zero number.")
        some = weights > 0
        weights = weights[some] / weights.max()
        return X[some], y[some], weights / weights.mean()

    def _learn(
        self, X: Array, y: NDArray[Any], weights: Array, outputs: int, *, again: bool, streaming: bool
    ) -> None:
        """Train on inputs and targets (class numbers, or values in columns)."""
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(np.iinfo(np.int32).max))
        x_scale, y_scale = Scale.of(X, weights), None
        if isinstance(self, RegressorMixin):
            y_scale = Scale.of(y, weights)
        tabular = self._tabular if again else None
        if tabular is None:
            hidden = self.hidden_layer_sizes
            sizes = auto_hidden(len(X)) if isinstance(hidden, str) else np.atleast_1d(hidden).tolist()
            tabular = Tabular(
                X.shape[1],
                outputs,
                sizes,
                classify=y_scale is None,
                copies=self.copies,
                lr=self.lr,
                seed=seed,
                weight_decay=self.weight_decay,
                device=self.device,
                network=self.network,
            )
        elif self.network is not None:  # whose first layer is not known
            x_scale = self._x_scale
            y_scale = y_scale and self._y_scale
        else:
            if streaming:
                x_scale = self._x_scale.merged(x_scale)
                y_scale = y_scale and self._y_scale and self._y_scale.merged(y_scale)
            of_targets = (self._y_scale, y_scale) if self._y_scale and y_scale else None
            tabular.rescale(self._x_scale, x_scale, of_targets)
        self._tabular, self._x_scale, self._y_scale = tabular, x_scale, y_scale
        targets = torch.from_numpy(y) if y_scale is None else as_tensor(y_scale.apply(y)).float()
        table = Table(as_tensor(x_scale.apply(X)).float(), targets, as_tensor(weights).float())
        table = table.to(tabular.device)
        batch = auto_batch(len(X)) if isinstance(self.batch_size, str) else int(self.batch_size)
        if streaming:
            curve: list[float] = getattr(self, "loss_curve_", []) if again else []
            self.loss_curve_ = [*curve, tabular.pass_over(table, batch)]
            self.n_iter_ = getattr(self, "n_iter_", 0) + 1 if again else 1
        else:
            held = held_out(y if y_scale is None else None, len(X), self.validation_fraction, rng)
            self.loss_curve_, self.best_validation_loss_ = train(
                tabular, table, held, batch=batch, max_iter=self.max_iter,
                patience=self.n_iter_no_change, verbose=bool(self.verbose),
            )  # fmt: skip
            self.n_iter_ = len(self.loss_curve_)
        self.network_ = tabular.plain()

    @property
    def input_mean_(self) -> Array:
        """The mean of each column, which ``network_`` expects to be subtracted."""
        check_is_fitted(self)
        return self._x_scale.mean

    @property
    def input_scale_(self) -> Array:
        """The divisor of each column that ``network_`` expects: its deviation, 1 if it is constant."""
        check_is_fitted(self)
        return self._x_scale.unit

    def _outputs(self, X: Any) -> Array:
        """Return the outputs of the network, one column each."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        assert self.network_ is not None
        x = as_tensor(self._x_scale.apply(X))
        with torch.inference_mode():
            return torch.cat([self.network_(rows) for rows in x.split(CHUNK)]).numpy()


class AlraoClassifier(ClassifierMixin, _AlraoEstimator):  # type: ignore[misc]
    """A classifier for tables of numbers with nothing to choose.

    A multi-layer perceptron with ReLU units on standardised inputs, sized to the data. It is trained with
    :class:`alrao.Auto` until the loss on a held-out part stops improving; the best weights are kept.

    Args:
        hidden_layer_sizes: units of the hidden layers; ``"auto"`` means two layers that grow with the data.
        copies: the number of copies of the head.
        lr: ``"auto"`` trains with :class:`alrao.Auto`. An interval of learning rates or a rate distribution
            trains with :class:`alrao.Adam` at these rates.
        batch_size: samples per step; ``"auto"`` means 64 to 256, growing with the data.
        max_iter: the largest number of iterations. An iteration is one pass over the data, or several passes
            for few samples.
        validation_fraction: the fraction held out for early stopping; with fewer than 10 samples, none is.
        n_iter_no_change: stop after this many iterations without improvement.
        warm_start: continue from the previous ``fit``.
        random_state: a seed or a random state, as in scikit-learn.
        weight_decay: decoupled weight decay; None means the optimizer's default, 0.3 for :class:`alrao.Auto`.
        device: where to train, such as ``"cuda"``. Predictions are computed on the CPU.
        network: a function that takes the numbers of inputs and of outputs, and returns a network to train
            in the place of the perceptron.
        verbose: print the losses of each iteration.

    Attributes:
        classes_: the labels.
        n_iter_: iterations of the last ``fit``.
        loss_curve_: the mean training loss of each iteration.
        best_validation_loss_: the loss of the kept weights on the held-out part.
        network_: the trained network, an ordinary :class:`torch.nn.Module` for standardised inputs; None if
            there was only one class.
        input_mean_, input_scale_: standardised inputs are ``(X - input_mean_) / input_scale_``.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from alrao.integrations.sklearn import AlraoClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(AlraoClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    classes_: NDArray[Any]

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to inputs ``X`` of shape (samples, features) and labels ``y`` of any type."""
        again = bool(self.warm_start and hasattr(self, "classes_"))
        X, y, weights = self._read(X, y, sample_weight, reset=not again)
        classes, numbers = np.unique(y, return_inverse=True)
        if again and not np.array_equal(classes, self.classes_):
            raise ValueError(
                "warm_start can only be used where `self.classes_` is the same as in the previous call to "
                f"fit. Previously got {self.classes_}, `y` has {classes}."
            )
        self.classes_ = classes
        self._fit(X, numbers, weights, again=again, streaming=False)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Make one pass over another part of the data; the first call needs all ``classes``."""
        again = hasattr(self, "classes_")
        if not again and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if (
            again
            and classes is not None
            and not np.array_equal(self.classes_, np.unique(np.asarray(classes)))
        ):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{self.classes_!r}"
            )
        X, y, weights = self._read(X, y, sample_weight, reset=not again)
        known = self.classes_ if again else np.unique(np.asarray(classes))
        strange = np.setdiff1d(np.unique(y), known)
        if len(strange):
            raise ValueError(f"`y` has classes that are not in `classes`: {strange}, not in {known}.")
        self.classes_ = known
        self._fit(X, np.searchsorted(known, y), weights, again=again, streaming=True)
        return self

    def _fit(self, X: Array, numbers: NDArray[Any], weights: Array, *, again: bool, streaming: bool) -> None:
        if len(self.classes_) == 1:
            self._tabular, self.network_, self.n_iter_ = None, None, 1
            return
        numbers = numbers.astype(np.int64)
        self._learn(X, numbers, weights, len(self.classes_), again=again, streaming=streaming)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each class, in the order of ``classes_``."""
        check_is_fitted(self)
        if self.network_ is None:
            return np.ones((len(validate_data(self, X, reset=False)), 1))
        return np.exp(self._log_proba(X))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return the logarithm of :meth:`predict_proba`."""
        check_is_fitted(self)
        return np.log(self.predict_proba(X)) if self.network_ is None else self._log_proba(X)

    def _log_proba(self, X: ArrayLike) -> Array:
        scores = self._outputs(X)
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]


class AlraoRegressor(RegressorMixin, _AlraoEstimator):  # type: ignore[misc]
    """A regressor for tables of numbers with nothing to choose.

    The network of :class:`AlraoClassifier` with one or several real outputs. Inputs and targets are
    standardised.

    Args:
        hidden_layer_sizes: this and all other arguments are as in :class:`AlraoClassifier`.
        copies: the number of copies of the head.
        lr: ``"auto"``, an interval of learning rates, or a rate distribution.
        batch_size: samples per step.
        max_iter: the largest number of iterations.
        validation_fraction: the fraction held out for early stopping.
        n_iter_no_change: stop after this many iterations without improvement.
        warm_start: continue from the previous ``fit``.
        random_state: a seed or a random state, as in scikit-learn.
        weight_decay: decoupled weight decay; None means the optimizer's default.
        device: where to train.
        network: a function from the numbers of inputs and of outputs to a network.
        verbose: print the losses of each iteration.

    Attributes:
        n_iter_: iterations of the last ``fit``.
        loss_curve_: the mean training loss of each iteration.
        best_validation_loss_: the mean squared error on the held-out part, in units of the target's variance.
        network_: the trained network, an ordinary :class:`torch.nn.Module` from standardised inputs to
            standardised outputs.
        input_mean_, input_scale_: standardised inputs are ``(X - input_mean_) / input_scale_``.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> from alrao.integrations.sklearn import AlraoRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> bool(AlraoRegressor(random_state=0).fit(X, y).score(X, y) > 0.3)
        True
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to inputs ``X`` of shape (samples, features) and targets ``y``, one column per output."""
        return self._fit(X, y, sample_weight, again=self.warm_start, streaming=False)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Make one pass over another part of the data."""
        return self._fit(X, y, sample_weight, again=True, streaming=True)

    def _fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, again: bool, streaming: bool
    ) -> Self:
        again = again and hasattr(self, "network_")
        X, y, weights = self._read(X, y, sample_weight, reset=not again)
        shape = y.shape[1:]
        if again and shape != self._target_shape:
            raise ValueError(f"y has the shape {shape} per sample, but was {self._target_shape} before.")
        self._target_shape = shape
        y = y.reshape(len(y), -1)
        self._learn(X, y, weights, y.shape[1], again=again, streaming=streaming)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the predictions, in the shape of ``y``."""
        outputs = self._outputs(X)
        assert self._y_scale is not None
        return (outputs * self._y_scale.unit + self._y_scale.mean).reshape(len(outputs), *self._target_shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
