"""A callback for the Hugging Face ``Trainer``, which clips each copy of the output layer on its own.

Importing it also teaches the library what the features of transformers' ``Conv1D`` (GPT-2) are. Needs
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

from ..features import register_features
from ..finite import zero_unusable
from ..model import Alrao, unwrap
from ..optim import AlraoOptimizer
from ..warn import warn
from ._posterior import unprepared

__all__ = ["AlraoCallback"]


@register_features(Conv1D)
def _columns(layer: nn.Module) -> dict[str, int]:
    # A linear layer whose weight is stored as (inputs, outputs).
    return {"weight": 1, "bias": 0}


class AlraoCallback(TrainerCallback):
    """Clips the gradients of an Alrao model as they must be, and makes sure that the ``Trainer`` trains it.

    ``TrainingArguments(max_grad_norm=1.0)``, the default, clips one norm over everything, in which the
    wildest copy of the output layer holds back the whole network: set it to 0, and this callback clips the
    body and each copy on its own. Even then the ``Trainer`` asks for the norm of all gradients, in a way that
    spoils all of them where one is not finite; entries that are not are dropped before (not with ``fp16``,
    where the loss scaler looks for them).

    While it trains, ``state_dict()`` names a parameter that several layers share (the embedding of T5) once:
    the ``Trainer`` cannot save the checkpoint of a model that is not of transformers otherwise.

    Args:
        max_grad_norm: the largest norm of a gradient that stays as it is; None clips nothing.

    Raises:
        ValueError: at the start of training, if the model or the optimizer is none of this library's, if the
            trainer clips, too, if it is to smooth the labels of a causal language model, which it does not
            recognise inside of an Alrao model, or if processes that train together have drawn different
            rates.

    Example:
        >>> from alrao.integrations.huggingface import AlraoCallback
        >>> callback = AlraoCallback(max_grad_norm=1.0)  # Trainer(…, callbacks=[callback])
    """

    def __init__(self, max_grad_norm: float | None = 1.0) -> None:
        number = isinstance(max_grad_norm, int | float) and not isinstance(max_grad_norm, bool)
        if max_grad_norm is not None and not (number and max_grad_norm > 0):
            raise ValueError(
                f"max_grad_norm must be a positive number, got {max_grad_norm!r}: None clips nothing"
            )
        self.max_grad_norm = max_grad_norm
        self._hooks: list[Any] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the settings, and watch the gradients."""
        model = _model(kwargs.get("model"))
        optimizer = unprepared(kwargs.get("optimizer"))
        if not isinstance(optimizer, AlraoOptimizer) or optimizer.model is not model:
            raise ValueError(
                f"the optimizer must be one of alrao's, for this model, got {type(optimizer).__name__}: "
                "Trainer(model, args, optimizers=(alrao.AdamW(model), None))"
            )
        if args.max_grad_norm and args.max_grad_norm > 0:
            raise ValueError(
                f"TrainingArguments(max_grad_norm={args.max_grad_norm!r}) clips one norm over everything, so "
                "that the wildest copy of the output layer holds back the whole network: set max_grad_norm=0 "
                f"there, and AlraoCallback(max_grad_norm={args.max_grad_norm!r})"
            )
        name = type(model.net).__name__
        if args.label_smoothing_factor and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            raise ValueError(
                f"with label_smoothing_factor={args.label_smoothing_factor!r} the Trainer goes by the name "
                f"of the model's class to shift the labels, and does not see that a {name} is inside: "
                "leave it out, and pass Trainer(compute_loss_func=…) with a smoothed, shifted loss"
            )
        if args.eval_strategy != "no" and args.label_names is None:
            warn(
                "the Trainer does not see which inputs of an Alrao model are labels, and would evaluate "
                "without a loss: set TrainingArguments(label_names=['labels'])"
            )
        _check_processes(optimizer)
        self._unhook()  # a run before may have ended in an error
        self._hooks = [model.register_state_dict_post_hook(_name_once)]
        if not args.fp16:
            trained = [p for p in model.parameters() if p.requires_grad]
            self._hooks += [p.register_post_accumulate_grad_hook(_drop_wild) for p in trained]

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clip, once all gradients of a step are there."""
        if self.max_grad_norm is not None:
            _model(kwargs.get("model")).clip_grad_norm_(self.max_grad_norm)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the model as it was."""
        self._unhook()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _model(model: Any) -> Alrao:
    try:
        return unwrap(model)
    except TypeError:
        raise ValueError(
            f"AlraoCallback is for an Alrao model, got {type(model).__name__}: Trainer(alrao.Alrao(net), …), "
            "or leave the callback out"
        ) from None


def _drop_wild(parameter: Tensor) -> None:
    grad = parameter.grad
    if grad is not None and not grad.is_sparse:
        grad.copy_(zero_unusable(grad))


def _name_once(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    # safetensors refuses a file in which two names stand for the same memory.
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
            f"the {len(seeds)} processes have drawn different learning rates, because the optimizer was made "
            "before they knew of each other: make TrainingArguments first, then the optimizer"
        )
