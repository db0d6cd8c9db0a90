"""A callback for the Hugging Face ``Trainer`` that logs the learning rate and saves averaged weights.

Importing this module also registers the features of transformers' ``Conv1D`` (GPT-2). Needs
``pip install 'alrao[huggingface]'``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.pytorch_utils import Conv1D
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"alrao.integrations.huggingface needs the package {error.name or 'transformers'}, which is not "
        f"installed or does not load ({error}): pip install 'alrao[huggingface]'",
        name=error.name,
    ) from error

from ..auto import Auto
from ..features import register_features
from ..finite import zero_unusable
from ..optim import AlraoOptimizer
from ..trainable import find_alrao
from ..warn import warn
from ._posterior import learning_rates, unprepared

__all__ = ["AlraoCallback"]


@register_features(Conv1D)
def _columns(layer: nn.Module) -> dict[str, int]:
    # A linear layer whose weight is stored as (inputs, outputs).
    return {"weight": 1, "bias": 0}


class AlraoCallback(TrainerCallback):
    """Log the learning rate, save the weights to evaluate, clip each copy, and check the settings.

    ``learning_rate`` in the ``Trainer``'s log is the rate that :class:`alrao.Auto` uses, or the middle of
    another optimizer's interval, times the schedule's factor; without the callback it is the factor. The
    model may be an :class:`alrao.Alrao` model, or a plain network under :class:`alrao.Auto`.

    ``TrainingArguments(max_grad_norm=1.0)``, the default, clips one norm over all gradients. The steps of
    :class:`alrao.Auto` do not depend on the scale of the gradients, so with it the default may stay, and the
    ``Trainer`` clips. With other optimizers a diverging copy would scale down the whole network: set it to 0,
    and this callback clips instead. The ``Trainer`` computes the norm in a way that makes all gradients
    non-finite if one is. The callback therefore drops non-finite entries first (except with ``fp16``, where
    the loss scaler needs them).

    Checkpoints are saved in evaluation mode, and the model is in it after the training, so that files have
    Auto's averaged weights.

    During training, ``state_dict()`` lists a parameter that several layers share (the embedding of T5) only
    once: the ``Trainer`` could not save the checkpoint otherwise.

    Args:
        max_grad_norm: the largest norm of a gradient; None disables clipping.

    Raises:
        ValueError: at the start of training, if the optimizer is not one of alrao's for this model, if the
            trainer clips as well, if it smooths the labels of a causal language model (which it cannot
            recognise inside an Alrao model), or if the processes have drawn different rates.

    Example:
        >>> from alrao.integrations.huggingface import AlraoCallback
        >>> callback = AlraoCallback(max_grad_norm=1.0)  # Trainer(…, callbacks=[callback])
    """

    def __init__(self, max_grad_norm: float | None = 1.0) -> None:
        number = isinstance(max_grad_norm, int | float) and not isinstance(max_grad_norm, bool)
        if max_grad_norm is not None and not (number and max_grad_norm > 0):
            raise ValueError(
                f"max_grad_norm must be a positive number or None (no clipping), got {max_grad_norm!r}"
            )
        self.max_grad_norm = self._clips = max_grad_norm
        self._hooks: list[Any] = []
        self._scheduler: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the settings and register the hooks."""
        model = find_alrao(kwargs.get("model"))
        optimizer = unprepared(kwargs.get("optimizer"))
        if not isinstance(optimizer, AlraoOptimizer) or model not in (None, optimizer.model):
            raise ValueError(
                f"the Trainer needs an optimizer of alrao, built for this model, got "
                f"{type(optimizer).__name__}: pass Trainer(model, args, optimizers=(alrao.Auto(model), None))"
            )
        self._optimizer = optimizer
        self._clips = self.max_grad_norm
        if args.max_grad_norm and args.max_grad_norm > 0 and isinstance(optimizer, Auto):
            self._clips = None  # the Trainer does
        elif args.max_grad_norm and args.max_grad_norm > 0:
            raise ValueError(
                f"TrainingArguments(max_grad_norm={args.max_grad_norm!r}) clips one norm over all gradients, "
                "so a diverging copy of the head would scale down the whole network: set max_grad_norm=0 "
                f"there, and use AlraoCallback(max_grad_norm={args.max_grad_norm!r})"
            )
        scheduler = kwargs.get("lr_scheduler")
        last = [factor(state.max_steps) for factor in getattr(scheduler, "lr_lambdas", ())]
        if isinstance(optimizer, Auto) and last and min(last) < 0.5:
            warn(
                f"the schedule of the Trainer, by default a linear one, lowers the rate that Auto finds to "
                f"{min(last):.3g} of it. Auto averages the weights and needs no schedule: set "
                "TrainingArguments(lr_scheduler_type='constant')"
            )
        name = type(model.net).__name__ if model is not None else ""
        if args.label_smoothing_factor and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            raise ValueError(
                f"label_smoothing_factor={args.label_smoothing_factor!r} does not work with a {name} inside "
                "an Alrao model, because the Trainer shifts the labels only for model classes that it knows: "
                "remove it, and pass Trainer(compute_loss_func=…) with a smoothed, shifted loss"
            )
        _check_processes(optimizer)
        self._unhook()  # an earlier run may have ended with an error
        self._scheduler = _show_rates(scheduler, optimizer)
        if model is None:
            return
        self._hooks = [model.register_state_dict_post_hook(_list_shared_once)]
        if not args.fp16:
            trained = [p for p in model.parameters() if p.requires_grad]
            self._hooks += [p.register_post_accumulate_grad_hook(_drop_non_finite) for p in trained]

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clip the accumulated gradients."""
        if self._clips is not None:
            self._optimizer.model.clip_grad_norm_(self._clips)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the model into evaluation mode if a checkpoint is due; the next step puts it back."""
        if control.should_save:
            self._show_averages(kwargs.get("model"))

    on_epoch_end = on_step_end

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the model into evaluation mode and remove the hooks."""
        self._show_averages(kwargs.get("model"))
        self._unhook()

    def _show_averages(self, model: Any) -> None:
        model.eval()
        if isinstance(self._optimizer, Auto):  # it may have been built from parameters, and see no mode
            self._optimizer.eval()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._scheduler is not None:
            self._scheduler.__class__ = type(self._scheduler).__base__
            self._scheduler = None


def _show_rates(scheduler: Any, optimizer: AlraoOptimizer) -> Any:
    """Let a scheduler return the rates, where the Trainer reads what it logs, and return it."""
    if scheduler is None:
        return None
    kind = type(scheduler)
    # Not an attribute of the object, which would be saved with the scheduler's state.
    rates = {"get_last_lr": lambda self: learning_rates(optimizer)}
    scheduler.__class__ = type(kind.__name__, (kind,), rates)
    return scheduler


def _drop_non_finite(parameter: Tensor) -> None:
    grad = parameter.grad
    if grad is not None and not grad.is_sparse:
        grad.copy_(zero_unusable(grad))


def _list_shared_once(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    # safetensors cannot save two names for the same memory.
    for named in (module.named_parameters, module.named_buffers):
        first = {name for name, _ in named()}
        for name, _ in named(remove_duplicate=False):
            if name not in first:
                state.pop(prefix + name, None)


def _check_processes(optimizer: AlraoOptimizer) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        return
    seeds: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seeds, optimizer.param_groups[0]["seed"])
    if len(set(seeds)) > 1:
        raise ValueError(
            f"the {len(seeds)} processes have drawn different learning rates, because the optimizer was "
            "built before torch.distributed was initialised: build TrainingArguments first, then the "
            "optimizer"
        )
