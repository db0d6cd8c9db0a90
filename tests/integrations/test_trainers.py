"""Trainers that build their optimizer themselves, `cls(params, lr=…)`: each one builds Auto, and trains."""

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from support.hf_models import (
    accelerate,
    arguments,
    check_same,
    classifier,
    examples,
    texts,
    trainer,
    transformers,
)
from support.lightning_modules import loader, pl, table
from support.tools import ROOT
from torch import nn

import alrao

pytestmark = [  # of Lightning itself
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
]

X, Y = table().tensors
X = X.float()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def train(net, optimizer, steps=200):
    """A loop that sets modes as trainers do; returns the loss at the start and that of the average."""
    first = F.cross_entropy(net(X), Y).item()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
    net.eval()
    return first, F.cross_entropy(net(X), Y).item()


def averaged(optimizer):
    """Whether the parameters hold the average, by its definition."""
    for p, state in optimizer.state.items():
        if "y" in state:
            beta = optimizer.param_groups[0]["beta"]
            average = state["x"] if "x" in state else (state["y"] - (1 - beta) * state["z"]) / beta
            torch.testing.assert_close(p.detach(), average.to(p.dtype), rtol=1e-3, atol=1e-5)
    return any("y" in state for state in optimizer.state.values())


# transformers.


def hf_trainer(folder, model, kind, options, **settings):
    settings = {"max_steps": 80, "lr_scheduler_type": "constant", **settings}
    made = transformers.Trainer(
        model, arguments(folder, **settings), train_dataset=examples(), eval_dataset=examples(),
        optimizer_cls_and_kwargs=(kind, options),
    )  # fmt: skip
    made.remove_callback(transformers.PrinterCallback)
    return made


def test_the_trainer_of_hugging_face_builds_auto_from_a_class(tmp_path):
    torch.manual_seed(0)
    made = hf_trainer(tmp_path, classifier(), alrao.Auto, {"lr": 1.0}, weight_decay=0.1, max_steps=200)
    before = made.evaluate()["eval_loss"]
    made.train()
    optimizer = made.optimizer.optimizer
    assert isinstance(optimizer, alrao.Auto)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert made.evaluate()["eval_loss"] < 0.8 * before
    assert averaged(optimizer)


def test_the_trainer_of_hugging_face_trains_an_alrao_model_as_with_one_that_is_passed(tmp_path):
    found = []
    for by_class in (True, False):
        torch.manual_seed(0)
        model = alrao.Alrao(classifier())
        options = {"steps": 80, "generator": torch.Generator().manual_seed(1)}
        if by_class:
            made = hf_trainer(tmp_path, model, alrao.Auto, options, weight_decay=0.1)
            made.train()
            names = {p: name for name, p in model.named_parameters()}
            groups = [[names[p] for p in group["params"]] for group in made.optimizer.param_groups]
        else:
            decays = ([model.get_parameter(name) for name in group] for group in groups)
            params = [{"params": p, "weight_decay": w} for p, w in zip(decays, (0.1, 0.0), strict=True)]
            optimizer = alrao.Auto(model, params=params, **options)
            constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
            made = trainer(tmp_path, model, optimizer, scheduler=constant, max_steps=80)
            made.train()
        assert made.optimizer.optimizer.model is model
        made.evaluate()
        assert averaged(made.optimizer.optimizer)
        found.append(model)
    check_same(*found)


def test_the_trainer_of_hugging_face_builds_auto_from_a_factory(tmp_path):
    class Factory:
        def __call__(self, model, **options):
            return alrao.Auto(model, **options)

    torch.manual_seed(0)
    net = classifier()
    made = hf_trainer(tmp_path, net, Factory, {"steps": 80})
    made.train()
    optimizer = made.optimizer.optimizer
    assert optimizer.model.net is net, "a factory is given the model"
    made.evaluate()
    assert averaged(optimizer)


@pytest.mark.parametrize("evaluates", ["no", "steps"])
def test_the_trainer_of_hugging_face_resumes_what_it_has_built(evaluates, tmp_path):
    found = []
    for folder in (None, "checkpoint-50"):
        torch.manual_seed(0)
        made = hf_trainer(
            tmp_path, classifier(), alrao.Auto, {"steps": 80}, save_strategy="steps", save_steps=50,
            eval_strategy=evaluates, eval_steps=50,
        )  # fmt: skip
        made.train(resume_from_checkpoint=folder and str(tmp_path / folder))
        made.optimizer.optimizer.eval()
        found.append(made.model)
    assert averaged(made.optimizer.optimizer)
    check_same(*found)


def test_adapters_without_biases_make_an_empty_group(tmp_path):
    peft = pytest.importorskip("peft", reason="LoRA needs peft")
    from support.small import TRANSFORMER

    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=False, **TRANSFORMER))
    net = peft.get_peft_model(net, peft.LoraConfig(task_type="CAUSAL_LM", r=4))
    made = transformers.Trainer(
        net, arguments(tmp_path, max_steps=60, lr_scheduler_type="constant"), train_dataset=texts(),
        optimizer_cls_and_kwargs=(alrao.Auto, {}),
    )  # fmt: skip
    made.remove_callback(transformers.PrinterCallback)
    made.train()
    assert [len(group["params"]) > 0 for group in made.optimizer.param_groups] == [True, False]


# timm.


@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_timms_factory_builds_auto_by_its_name(layer_decay):
    timm_optim = pytest.importorskip("timm.optim", reason="needs timm")
    from timm.models import VisionTransformer
    from timm.optim._optim_factory import default_registry

    default_registry.register(timm_optim.OptimInfo("alrao", alrao.Auto, has_betas=True))
    torch.manual_seed(0)
    net = VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3, in_chans=1
    )
    model = alrao.Alrao(net, 3)
    optimizer = timm_optim.create_optimizer_v2(
        model, "alrao", lr=1.0, weight_decay=0.05, layer_decay=layer_decay
    )
    assert optimizer.model is model
    assert {group["lr"] for group in optimizer.param_groups} == {1.0}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.05}
    assert len({optimizer.interval(i) for i in range(len(optimizer.param_groups))}) == (
        4 if layer_decay else 1
    )
    x, y = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    assert F.cross_entropy(model(x), y) < 0.7
    assert averaged(optimizer)


# Lightning's command line.


class OnCommandLine(pl.LightningModule):
    """A module as LightningCLI trains it: without configure_optimizers."""

    def __init__(self, converted: bool = False):
        super().__init__()
        self.model = alrao.Alrao(network()) if converted else network()
        self.modes = []

    def training_step(self, batch, index):
        return F.cross_entropy(self.model(batch[0].float()), batch[1])

    def validation_step(self, batch, index):
        self.modes.append(averaged(self.trainer.optimizers[0]))
        self.log("loss", F.cross_entropy(self.model(batch[0].float()), batch[1]))


@pytest.mark.parametrize("converted", [False, True])
def test_lightnings_command_line_builds_auto(converted, tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse", reason="LightningCLI needs jsonargparse[signatures]")
    from lightning.pytorch.cli import LightningCLI

    from alrao.integrations.lightning import AlraoCallback

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # of how Lightning calls it
    written = "--optimizer alrao.Auto --optimizer.lr 1.0 --optimizer.weight_decay 0.1 --trainer.max_epochs 90"
    written += f" --trainer.accelerator cpu --model.converted {converted}"
    monkeypatch.setattr(sys, "argv", ["train.py", *written.split()])
    quiet = ["enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"]
    cli = LightningCLI(
        OnCommandLine, run=False, save_config_callback=None, seed_everything_default=0,
        trainer_defaults={**dict.fromkeys(quiet, False), "callbacks": [AlraoCallback(log_posterior=False)]},
    )  # fmt: skip
    cli.trainer.fit(cli.model, loader(), loader(48))
    (optimizer,) = cli.trainer.optimizers
    assert isinstance(optimizer, alrao.Auto)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert (optimizer.model is cli.model.model) is converted
    assert cli.trainer.callback_metrics["loss"] < 0.6
    assert cli.model.modes[-1], "the average is validated"
    assert converted or optimizer.averages.evaluating, "and left for an export"


# skorch.


def test_skorch_builds_auto_for_its_own_net():
    skorch = pytest.importorskip("skorch", reason="needs alrao[skorch]")

    class Modes(skorch.callbacks.Callback):
        def on_batch_begin(self, net, training=None, **_):
            net.optimizer_.train() if training else net.optimizer_.eval()

        def on_train_end(self, net, **_):
            net.optimizer_.eval()

    net = skorch.NeuralNetClassifier(
        network(), criterion=nn.CrossEntropyLoss, optimizer=alrao.Auto, lr=1.0, max_epochs=80, batch_size=12,
        callbacks=[Modes], verbose=0,
    )  # fmt: skip
    net.fit(X.numpy(), Y.numpy())
    assert isinstance(net.optimizer_, alrao.Auto)
    assert net.history[-1, "valid_loss"] < 0.8 * net.history[0, "valid_loss"]
    assert averaged(net.optimizer_)


def test_skorchs_own_net_evaluates_an_alrao_model_without_a_callback():
    skorch = pytest.importorskip("skorch", reason="needs alrao[skorch]")
    net = skorch.NeuralNetClassifier(
        alrao.Alrao(network()), criterion=nn.CrossEntropyLoss, optimizer=alrao.Auto, lr=1.0, max_epochs=80,
        batch_size=12, verbose=0,
    )  # fmt: skip
    net.fit(X.numpy(), Y.numpy())
    assert net.predict(X.numpy()).shape == (48,)
    assert averaged(net.optimizer_)


# fastai.


@pytest.mark.slow
def test_fastais_wrapper_builds_auto_and_the_code_on_its_page_runs(tmp_path):
    if importlib.util.find_spec("fastai") is None:
        pytest.skip("needs fastai")
    script = ROOT / "tests/support/fastai_learner.py"
    command = [sys.executable, str(script), str(tmp_path), str(ROOT / "docs/how-to/fastai.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Accelerate.


@pytest.mark.parametrize("converted", [False, True])
def test_accelerate_passes_the_modes_on(converted):
    for name in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, name)._reset_state()
    model = alrao.Alrao(network()) if converted else network()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, alrao.Auto(model.parameters(), lr=1.0))
    for _ in range(200):
        prepared.train()
        optimizer.train()
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(prepared(X), Y))
        optimizer.step()
    prepared.eval()
    optimizer.eval()
    assert F.cross_entropy(prepared(X), Y) < 0.6
    assert averaged(optimizer.optimizer)


# pytorch_optimizer.


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_pytorch_optimizer_builds_auto_by_its_name(weight_decay, monkeypatch):
    package = pytest.importorskip("pytorch_optimizer", reason="needs pytorch_optimizer")
    monkeypatch.setitem(package.optimizer.OPTIMIZERS, "auto", alrao.Auto)
    model = alrao.Alrao(network())
    optimizer = package.create_optimizer(
        model, "Auto", lr=1.0, weight_decay=weight_decay, wd_ban_list=("bias",)
    )
    assert optimizer.model is model
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, weight_decay}
    first, last = train(model, optimizer)
    assert last < 0.6 * first
    assert averaged(optimizer)


# kohya's sd-scripts, diffusers' scripts and torchtune, as they call: they are no packages to import.


def test_scripts_for_diffusion_models_name_the_class_and_write_a_factor_into_groups():
    """`--optimizer_type alrao.AutoScheduleFree --learning_rate 1.0 --optimizer_args weight_decay=0.01 …`."""
    optimizer_type, lr, options = "alrao.AutoScheduleFree", 1.0, {"weight_decay": 0.01, "betas": (0.9, 0.99)}
    module, _, name = optimizer_type.rpartition(".")
    net = network()
    groups = [
        {"params": list(net[0].parameters()), "lr": 0.5},
        {"params": list(net[2].parameters()), "lr": lr},
    ]
    optimizer = getattr(importlib.import_module(module), name)(groups, lr=lr, **options)
    assert isinstance(optimizer, alrao.Auto)
    assert optimizer_type.lower().endswith("schedulefree"), "then saves are between eval() and train()"
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]
    optimizer.train()
    first, training = train(net, optimizer)
    optimizer.eval()
    assert averaged(optimizer)
    assert F.cross_entropy(net(X), Y) < 0.6 * first
    optimizer.train()
    assert F.cross_entropy(net(X), Y).item() == training


def test_torchtune_calls_the_component_of_its_configuration():
    """`config.instantiate(cfg.optimizer, model.parameters())` with `_component_: alrao.Auto, lr: 1.0`."""
    component = {"_component_": "alrao.Auto", "lr": 1.0, "weight_decay": 0.01, "betas": [0.5, 0.99]}
    module, _, name = component.pop("_component_").rpartition(".")
    net = network()
    for build in (
        lambda kind: kind(net.parameters(), **component),
        lambda kind: kind(params=net.parameters(), **component),
    ):
        optimizer = build(getattr(importlib.import_module(module), name))
        assert optimizer.param_groups[0]["lr"] == 1.0
        first, last = train(net, optimizer)
        assert last < first


def test_pyro_builds_an_optimizer_for_each_parameter():
    """`self.optim_objs[p] = pt_optim_constructor([p], **args)`; a state is loaded before the next step."""
    net = network()
    optimizers = {p: alrao.Auto([p]) for p in net.parameters()}
    first = F.cross_entropy(net(X), Y).item()
    for step in range(300):
        F.cross_entropy(net(X), Y).backward()
        if step == 150:
            states = [each.state_dict() for each in optimizers.values()]
            optimizers = {p: alrao.Auto([p]) for p in net.parameters()}
            for each, state in zip(optimizers.values(), states, strict=True):
                each.load_state_dict(state)
        for p, optimizer in optimizers.items():
            optimizer.step()
            p.grad = torch.zeros_like(p)  # as Pyro does
    for optimizer in optimizers.values():
        optimizer.eval()
        assert averaged(optimizer)
    assert F.cross_entropy(net(X), Y) < 0.6 * first


@pytest.mark.parametrize(
    "build",
    [
        lambda net: alrao.Auto(net.parameters(), lr=1.0),  # TabNet
        lambda net: alrao.Auto(params=net.parameters(), lr=1.0),  # neuralforecast
        lambda net: alrao.Auto(  # sentence-transformers
            [
                {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": 0.3},
                {"params": [p for p in net.parameters() if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=1.0,
        ),
    ],
    ids=["tabnet", "neuralforecast", "sentence-transformers"],
)
def test_calls_of_other_packages(build):
    assert "lr" in inspect.signature(alrao.Auto).parameters, "neuralforecast passes it then"
    net = network()
    optimizer = build(net)
    first, _ = train(net, optimizer)
    optimizer.eval()
    assert averaged(optimizer)
    assert F.cross_entropy(net(X), Y) < 0.6 * first


# The page.


def test_the_page_names_the_versions_that_are_tested():
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    text = (ROOT / "docs/how-to/trainers.md").read_text("utf-8")
    named = dict(re.findall(r"\| ([a-z_]+) (\d[\d.]*) \|", text))
    assert {
        "accelerate",
        "fastai",
        "lightning",
        "pytorch_optimizer",
        "skorch",
        "timm",
        "transformers",
    } <= set(named)
    assert not {package for package, version in named.items() if pins[package] != version}
