"""The submission to AlgoPerf, under a stand-in of its runner: its loop, its calls, its checkpoints."""

import enum
import importlib.util
import inspect
import sys
import types
from collections import OrderedDict
from io import BytesIO
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

PATH = Path(__file__).parents[2] / "examples" / "algoperf" / "submission.py"
COMMON = ["workload", "current_param_container", "current_params_types", "model_state", "hyperparameters"]
ARGUMENTS = {
    "init_optimizer_state": ["workload", "model_params", "model_state", "hyperparameters", "rng"],
    "update_params": [
        *COMMON, "batch", "loss_type", "optimizer_state", "eval_results", "global_step", "rng", "train_state",
    ],
    "prepare_for_eval": [*COMMON, "loss_type", "optimizer_state", "eval_results", "global_step", "rng"],
    "data_selection": [
        "workload", "input_queue", "optimizer_state", "current_param_container", "model_state",
        "hyperparameters", "global_step", "rng",
    ],
    "get_batch_size": ["workload_name"],
}  # fmt: skip
"""Of the functions that a submission has, as in algoperf/spec.py."""


class Workload:
    """The network and the loss of AlgoPerf's mnist, on scikit-learn's digits."""

    def __init__(self, mode):
        pixels, labels = load_digits(return_X_y=True)
        self.inputs, self.targets = torch.tensor(pixels).float() / 16, torch.tensor(labels)
        self.mode, self.model_params_types, self.loss_type = mode, None, None

    def init_model_fn(self, seed):
        torch.manual_seed(seed)
        layers = ("layer1", nn.Linear(64, 128)), ("sigmoid", nn.Sigmoid()), ("layer2", nn.Linear(128, 10))
        return nn.Sequential(OrderedDict(layers)), None

    def queue(self, seed, size):
        random = torch.Generator().manual_seed(seed)
        while True:
            which = torch.randint(1400, (size,), generator=random)
            batch = {"inputs": self.inputs[which], "targets": self.targets[which]}
            yield {**batch, "weights": torch.ones(size, dtype=torch.bool)}

    def model_fn(
        self, params, augmented_and_preprocessed_input_batch, model_state, mode, rng, update_batch_norm
    ):
        if mode == self.mode.EVAL:
            params.eval()
        with torch.set_grad_enabled(mode == self.mode.TRAIN):
            return params(augmented_and_preprocessed_input_batch["inputs"]), None

    def loss_fn(self, label_batch, logits_batch, mask_batch=None, label_smoothing=0.0):
        losses = F.cross_entropy(logits_batch, label_batch, reduction="none", label_smoothing=label_smoothing)
        losses *= mask_batch
        return {"summed": losses.sum(), "n_valid_examples": mask_batch.sum(), "per_example": losses}

    def eval_model(self, params):
        batch = {"inputs": self.inputs[1400:], "targets": self.targets[1400:]}
        logits, _ = self.model_fn(params, batch, None, self.mode.EVAL, None, update_batch_norm=False)
        return {"loss": F.cross_entropy(logits, batch["targets"]).item()}


@pytest.fixture
def submission(monkeypatch):
    """The submission, with a stand-in of the package that it imports."""
    names = [
        "Workload",
        "ParameterContainer",
        "ModelAuxiliaryState",
        "Hyperparameters",
        "RandomState",
        "OptimizerState",
    ]
    names += ["ParameterTypeTree", "LossType", "UpdateReturn"]
    spec = types.ModuleType("algoperf.spec")
    spec.__dict__.update(dict.fromkeys(names, object))
    spec.ForwardPassMode = enum.Enum("ForwardPassMode", ["TRAIN", "EVAL"])
    package = types.ModuleType("algoperf")
    package.spec = spec
    monkeypatch.setitem(sys.modules, "algoperf", package)
    monkeypatch.setitem(sys.modules, "algoperf.spec", spec)
    loader = importlib.util.spec_from_file_location("submission", PATH)
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    module.spec = spec
    return module


def run(submission, steps, every, saved=None, skip=0, compiled=False):
    """As the runner's ``train_once``: from a checkpoint, if there is one, to the last step."""
    workload = Workload(submission.spec.ForwardPassMode)
    queue = workload.queue(1, submission.get_batch_size("mnist"))
    params, model_state = workload.init_model_fn(2)
    params = torch.compile(params, backend="eager") if compiled else params
    state = submission.init_optimizer_state(workload, params, model_state, None, None)
    for _ in range(skip):
        next(queue)
    if saved is not None:
        params.load_state_dict(saved["model"])
        state["optimizer"].load_state_dict(saved["optimizer"])
    found, checkpoints = [], []
    for step in range(skip, steps):
        batch = submission.data_selection(workload, queue, state, params, model_state, None, step, None)
        common = {
            "workload": workload, "current_param_container": params, "model_state": model_state,
            "current_params_types": workload.model_params_types, "hyperparameters": None,
            "loss_type": workload.loss_type, "optimizer_state": state, "eval_results": found, "rng": None,
        }  # fmt: skip
        state, params, model_state = submission.update_params(
            **common, batch=batch, global_step=step, train_state={}
        )
        if (step + 1) % every == 0:
            state, params, model_state = submission.prepare_for_eval(**common, global_step=step + 1)
            found.append((step + 1, workload.eval_model(params)))
            states = {"model": params.state_dict(), "optimizer": state["optimizer"].state_dict()}
            checkpoints.append(saved_and_loaded(states))
    return found, checkpoints, params


def test_its_functions_have_the_arguments_of_the_specification(submission):
    for name, arguments in ARGUMENTS.items():
        assert list(inspect.signature(getattr(submission, name)).parameters) == arguments


def test_it_learns_and_is_evaluated_at_the_average(submission):
    found, _, params = run(submission, 400, 100)
    losses = [result["loss"] for _, result in found]
    assert losses[-1] < 0.4, "chance is 2.3"
    averaged = [p.clone() for p in params.parameters()]
    params.train()
    moved = [not torch.equal(p, x) for p, x in zip(params.parameters(), averaged, strict=True)]
    assert all(moved), "the weights that take the gradients are others"
    params.eval()
    assert all(torch.equal(p, x) for p, x in zip(params.parameters(), averaged, strict=True))


def test_the_runner_may_compile_the_network(submission):
    found, _, params = run(submission, 120, 60, compiled=True)
    plain, _, _ = run(submission, 120, 60)
    losses = [[result["loss"] for _, result in each] for each in (found, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    averaged = [p.clone() for p in params.parameters()]
    params.train()
    assert not any(torch.equal(p, x) for p, x in zip(params.parameters(), averaged, strict=True))


def test_the_swap_is_done_when_the_runner_evaluates(submission):
    """It is in ``prepare_for_eval``, whose time counts; the runner's own eval() changes no weight."""
    found, _, params = run(submission, 80, 80)
    averaged = [p.clone() for p in params.parameters()]
    assert not params.training
    params.eval()
    assert all(torch.equal(p, x) for p, x in zip(params.parameters(), averaged, strict=True))
    assert len(found) == 1


def test_it_continues_from_a_checkpoint_of_the_runner(submission):
    whole, checkpoints, _ = run(submission, 160, 80)
    again, _, _ = run(submission, 160, 80, checkpoints[0], skip=80)
    assert again == whole[1:]


def saved_and_loaded(state):
    """As torch.save and torch.load leave it."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_batch_sizes_are_known_or_refused(submission):
    assert submission.get_batch_size("imagenet_resnet_gelu") == 512
    with pytest.raises(ValueError, match="no batch size for 'cifar'"):
        submission.get_batch_size("cifar")
