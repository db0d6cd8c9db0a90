"""A callback for Lightning that logs the posterior and clips each copy of the head separately.

Needs ``pip install 'alrao[lightning]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

try:
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import LearningRateMonitor
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"alrao.integrations.lightning needs the package {error.name}, which is not installed: "
        "pip install 'alrao[lightning]'",
        name=error.name,
    ) from error

from ..auto import Auto
from ..model import Alrao
from ..optim import AlraoOptimizer
from ..plain import Plain
from ._posterior import interval_scalars, learning_rates, models_in, posterior_scalars

__all__ = ["AlraoCallback"]


class AlraoCallback(Callback):
    """Log the posterior of the Alrao model in a ``LightningModule``, and clip its gradients.

    The callback is optional: a module that returns ``alrao.Auto(self.model)`` from ``configure_optimizers``
    trains without it. It logs ``alrao/lr``, the learning rate of the first group, its factor included, which
    ``LearningRateMonitor`` then logs of each group; ``alrao/interval/low`` and ``…/high``, the interval;
    ``alrao/posterior/…``, the posterior of each copy of the head, named after its initial rate;
    ``alrao/rate``, the geometric mean rate under the posterior; and ``alrao/copies``, the effective number of
    copies (the exponential of the posterior's entropy). With several Alrao models in the module, their names
    come first. Of plain networks it logs the rate, and puts their training weights back after a
    validation, which manual optimization needs. Where ``LightningCLI`` has given ``Auto`` the parameters of
    plain networks, it shows the averaged weights to a validation, and at the end.

    ``Trainer(gradient_clip_val=…)`` clips one norm over all gradients, so a diverging copy would scale down
    the whole network; the callback refuses it, except for :class:`alrao.Auto`, whose steps do not depend on
    the scale of the gradients. ``gradient_clip_val`` of the callback clips the body and each copy separately,
    after gradients are accumulated and unscaled.

    Args:
        gradient_clip_val: the largest norm of a gradient; None disables clipping.
        norm_type: the order of the norm, as in :func:`torch.nn.utils.clip_grad_norm_`.
        log_posterior: log the posterior, every ``Trainer(log_every_n_steps=…)`` steps.

    Raises:
        MisconfigurationException: at the start of ``fit``, if the module contains neither an Alrao model nor
            an optimizer of alrao, if none of these trains its Alrao model, or if the trainer clips as well,
            unless every optimizer is :class:`Auto`.

    Example:
        >>> from alrao.integrations.lightning import AlraoCallback
        >>> callback = AlraoCallback(gradient_clip_val=1.0)  # Trainer(callbacks=[callback])
    """

    def __init__(
        self, *, gradient_clip_val: float | None = None, norm_type: float = 2.0, log_posterior: bool = True
    ) -> None:
        if gradient_clip_val is not None and not (_is_number(gradient_clip_val) and gradient_clip_val > 0):
            raise MisconfigurationException(
                f"gradient_clip_val must be a positive number or None (no clipping), got "
                f"{gradient_clip_val!r}"
            )
        self.gradient_clip_val = gradient_clip_val
        self.norm_type = norm_type
        self.log_posterior = log_posterior

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that an optimizer of alrao trains each Alrao model, and that the trainer does not clip."""
        name, models = type(pl_module).__name__, models_in(pl_module)
        ours = [each for each in trainer.optimizers if isinstance(each, AlraoOptimizer)]
        if not (models or ours):
            raise MisconfigurationException(
                f"AlraoCallback needs a LightningModule with an Alrao model or an optimizer of alrao, {name} "
                "contains none: set self.model = alrao.Alrao(net) in its __init__, or remove the callback"
            )
        trained = [each.model for each in ours]
        for place, model in models.items():
            if not any(model is each for each in trained):
                kinds = ", ".join(type(each).__name__ for each in trainer.optimizers) or "none"
                raise MisconfigurationException(
                    f"the Alrao model {place!r} of {name} must be trained by an optimizer of alrao, got "
                    f"{kinds}: return alrao.Auto(self.{place}) from configure_optimizers"
                )
        clips = trainer.gradient_clip_val
        for each in trainer.callbacks:  # type: ignore[attr-defined]
            if type(each) is LearningRateMonitor:
                each.__class__ = _RateMonitor
        own_way = type(pl_module).configure_gradient_clipping.__qualname__
        if all(isinstance(each, Auto) for each in trainer.optimizers):
            return
        if clips and own_way == "LightningModule.configure_gradient_clipping":  # not overridden by the user
            raise MisconfigurationException(
                f"Trainer(gradient_clip_val={clips!r}) clips one norm over all gradients, so a diverging "
                "copy of the head would scale down the whole network: remove it, and use "
                f"AlraoCallback(gradient_clip_val={clips!r})"
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Put the training weights back after a validation, which sets the mode without a call."""
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, AlraoOptimizer):
                optimizer.model.place_weights()
        for optimizer in _without_mode(trainer):
            optimizer.train()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put averaged weights into parameters that ``Auto`` was given without their network."""
        for optimizer in _without_mode(trainer):
            optimizer.eval()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do the same at the end, for a test and an export."""
        self.on_validation_start(trainer, pl_module)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Clip the gradients of the model."""
        if self.gradient_clip_val is not None and isinstance(optimizer, AlraoOptimizer):
            optimizer.model.clip_grad_norm_(self.gradient_clip_val, self.norm_type)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the posterior."""
        if not self.log_posterior:
            return
        models = models_in(pl_module)
        ours = [each for each in trainer.optimizers if isinstance(each, AlraoOptimizer)]
        plain = [each for each in ours if not isinstance(each.model, Alrao)]
        for i, optimizer in enumerate(plain):
            scalars = interval_scalars(optimizer, f"{i}/" if len(plain) > 1 else "")
            pl_module.log_dict(scalars, on_step=True, on_epoch=False)
        for place, model in models.items():
            prefix = f"{place}/" if len(models) > 1 else ""
            own = next((each for each in ours if each.model is model), None)
            scalars = posterior_scalars(model, own)
            scalars = {prefix + key: value for key, value in scalars.items()}
            pl_module.log_dict(scalars, on_step=True, on_epoch=False)


class _RateMonitor(LearningRateMonitor):
    """Logs learning rates, and not the factors that groups have as ``lr``."""

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        with _rates_in_groups(trainer):
            super().on_train_batch_start(trainer, *args, **kwargs)

    def on_train_epoch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        with _rates_in_groups(trainer):
            super().on_train_epoch_start(trainer, *args, **kwargs)


@contextmanager
def _rates_in_groups(trainer: Trainer) -> Iterator[None]:
    kept = []
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, AlraoOptimizer):
            for group, rate in zip(optimizer.param_groups, learning_rates(optimizer), strict=True):
                kept.append((group, group["lr"]))
                group["lr"] = rate
    try:
        yield
    finally:
        for group, factor in kept:
            group["lr"] = factor


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_mode(trainer: Trainer) -> list[Auto]:
    """Return the optimizers that see no mode, because LightningCLI gives them parameters only."""
    ours = [each for each in trainer.optimizers if isinstance(each, Auto)]
    return [each for each in ours if isinstance(each.model, Plain) and not each.model.modules]
