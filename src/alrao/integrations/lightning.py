"""A callback for Lightning: logs the posterior of the copies, and clips each of them on its own.

Needs ``pip install 'alrao[lightning]'``.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

try:
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"alrao.integrations.lightning needs the package {error.name}, which is not installed: "
        "pip install 'alrao[lightning]'",
        name=error.name,
    ) from error

from ..optim import AlraoOptimizer
from ._posterior import models_in, posterior_scalars

__all__ = ["AlraoCallback"]


class AlraoCallback(Callback):
    """Logs what the Alrao model in a ``LightningModule`` believes, and clips its gradients as they must be.

    A module that returns ``alrao.SGD(self.model)`` from ``configure_optimizers`` trains without it. With it,
    the logger gets ``alrao/posterior/…``, the probability of each copy of the output layer, named after its
    rate at the start; ``alrao/rate``, the mean rate under the posterior (geometric); ``alrao/copies``, how
    many copies share the posterior. With several Alrao models in the module, their names come first.

    ``Trainer(gradient_clip_val=…)`` clips one norm over everything, in which the wildest copy holds back the
    whole network: it is refused here. ``gradient_clip_val`` of this callback clips the body and each copy on
    its own, after gradients are accumulated and unscaled.

    Args:
        gradient_clip_val: the largest norm of a gradient that stays as it is; None clips nothing.
        norm_type: which norm, as in :func:`torch.nn.utils.clip_grad_norm_`.
        log_posterior: whether to log; as often as ``Trainer(log_every_n_steps=…)`` says.

    Raises:
        MisconfigurationException: at the start of ``fit``, if there is no Alrao model in the module, if no
            optimizer of this library trains it, or if the trainer clips, too.

    Example:
        >>> from alrao.integrations.lightning import AlraoCallback
        >>> callback = AlraoCallback(gradient_clip_val=1.0)  # Trainer(callbacks=[callback])
    """

    def __init__(
        self, *, gradient_clip_val: float | None = None, norm_type: float = 2.0, log_posterior: bool = True
    ) -> None:
        if gradient_clip_val is not None and not (_is_number(gradient_clip_val) and gradient_clip_val > 0):
            raise MisconfigurationException(
                f"gradient_clip_val must be a positive number, got {gradient_clip_val!r}: None clips nothing"
            )
        self.gradient_clip_val = gradient_clip_val
        self.norm_type = norm_type
        self.log_posterior = log_posterior

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make sure that there is an Alrao model, trained by one of its optimizers, and clipped only here."""
        name, models = type(pl_module).__name__, models_in(pl_module)
        if not models:
            raise MisconfigurationException(
                f"AlraoCallback is for a LightningModule with an Alrao model in it, and {name} has none: "
                "self.model = alrao.Alrao(net) in its __init__, or leave the callback out"
            )
        trained = [each.model for each in trainer.optimizers if isinstance(each, AlraoOptimizer)]
        for place, model in models.items():
            if not any(model is each for each in trained):
                kinds = ", ".join(type(each).__name__ for each in trainer.optimizers) or "none"
                raise MisconfigurationException(
                    f"the Alrao model {place!r} of {name} must be trained by an optimizer of alrao, got "
                    f"{kinds}: return alrao.SGD(self.{place}) from configure_optimizers"
                )
        clips = trainer.gradient_clip_val
        own_way = type(pl_module).configure_gradient_clipping.__qualname__
        if clips and own_way == "LightningModule.configure_gradient_clipping":  # not the user's
            raise MisconfigurationException(
                f"Trainer(gradient_clip_val={clips!r}) clips one norm over everything, so that the wildest "
                "copy of the output layer holds back the whole network: leave it out, and use "
                f"AlraoCallback(gradient_clip_val={clips!r})"
            )

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Clip the gradients of the model that is about to be moved."""
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
        for place, model in models.items():
            prefix = f"{place}/" if len(models) > 1 else ""
            optimizer = next((each for each in ours if each.model is model), None)
            scalars = posterior_scalars(model, optimizer)
            scalars = {prefix + key: value for key, value in scalars.items()}
            pl_module.log_dict(scalars, on_step=True, on_epoch=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
