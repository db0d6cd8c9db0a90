"""AlgoPerf, self-tuning: Auto on the plain network of each workload, with nothing to tune.

The five functions are those that AlgoPerf's runner calls. The network is the workload's own, without copies
of its output layer: workloads compute their losses themselves. ``prepare_for_eval``, whose time counts, puts
the averaged weights into the parameters; the next step puts the training weights back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn as dist_nn
from algoperf import spec

import alrao

BATCH_SIZES = {
    "criteo1tb": 262_144,
    "fastmri": 32,
    "imagenet_resnet": 1024,
    "imagenet_resnet_gelu": 512,
    "imagenet_resnet_silu": 512,
    "imagenet_vit": 1024,
    "imagenet_vit_glu": 512,
    "librispeech_conformer": 256,
    "librispeech_deepspeech": 256,
    "mnist": 16,
    "ogbg": 512,
    "wmt": 128,
}
"""Global batch sizes, those of AlgoPerf's own baselines."""


def init_optimizer_state(
    workload: spec.Workload,
    model_params: spec.ParameterContainer,
    model_state: spec.ModelAuxiliaryState,
    hyperparameters: spec.Hyperparameters,
    rng: spec.RandomState,
) -> spec.OptimizerState:
    """Return the optimizer: no learning rate, no schedule, no number of steps."""
    return {"optimizer": alrao.Auto(model_params)}


def update_params(
    workload: spec.Workload,
    current_param_container: spec.ParameterContainer,
    current_params_types: spec.ParameterTypeTree,
    model_state: spec.ModelAuxiliaryState,
    hyperparameters: spec.Hyperparameters,
    batch: dict[str, torch.Tensor],
    loss_type: spec.LossType,
    optimizer_state: spec.OptimizerState,
    eval_results: list[tuple[int, float]],
    global_step: int,
    rng: spec.RandomState,
    train_state: dict[str, Any] | None = None,
) -> spec.UpdateReturn:
    """Take a step at the training weights."""
    optimizer = optimizer_state["optimizer"]
    current_param_container.train()  # puts the training weights back after an evaluation
    optimizer.zero_grad()
    logits, new_model_state = workload.model_fn(
        params=current_param_container,
        augmented_and_preprocessed_input_batch=batch,
        model_state=model_state,
        mode=spec.ForwardPassMode.TRAIN,
        rng=rng,
        update_batch_norm=True,
    )
    losses = workload.loss_fn(
        label_batch=batch["targets"], logits_batch=logits, mask_batch=batch.get("weights")
    )
    total, count = losses["summed"], losses["n_valid_examples"]
    if dist.is_available() and dist.is_initialized():  # a mean over the examples of all processes
        total, count = dist_nn.all_reduce(total), dist_nn.all_reduce(count)
    (total / count).backward()
    optimizer.step()
    return optimizer_state, current_param_container, new_model_state


def prepare_for_eval(
    workload: spec.Workload,
    current_param_container: spec.ParameterContainer,
    current_params_types: spec.ParameterTypeTree,
    model_state: spec.ModelAuxiliaryState,
    hyperparameters: spec.Hyperparameters,
    loss_type: spec.LossType,
    optimizer_state: spec.OptimizerState,
    eval_results: list[tuple[int, float]],
    global_step: int,
    rng: spec.RandomState,
) -> spec.UpdateReturn:
    """Put the averaged weights into the parameters."""
    current_param_container.eval()
    return optimizer_state, current_param_container, model_state


def get_batch_size(workload_name: str) -> int:
    """Return the global batch size of a workload."""
    if workload_name not in BATCH_SIZES:
        raise ValueError(f"no batch size for {workload_name!r}: known are {', '.join(BATCH_SIZES)}")
    return BATCH_SIZES[workload_name]


def data_selection(
    workload: spec.Workload,
    input_queue: Iterator[dict[str, Any]],
    optimizer_state: spec.OptimizerState,
    current_param_container: spec.ParameterContainer,
    model_state: spec.ModelAuxiliaryState,
    hyperparameters: spec.Hyperparameters,
    global_step: int,
    rng: spec.RandomState,
) -> dict[str, Any]:
    """Return the next batch."""
    return next(input_queue)
