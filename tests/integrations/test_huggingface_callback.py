"""The callback for the Hugging Face Trainer: clipping of each copy, and what it refuses."""

import doctest
import importlib
import math
import sys

import pytest
import torch
from support.hf_models import COPIES, Watch, check_same, classifier, texts, trainer, transformers
from support.small import TRANSFORMER

import alrao
from alrao.integrations import huggingface as leaf
from alrao.integrations.huggingface import AlraoCallback


def test_each_copy_is_clipped_on_its_own(tmp_path):
    torch.manual_seed(0)
    model = alrao.Alrao(classifier(), COPIES)
    with torch.no_grad():
        model.head.weight[0] *= 300  # one is wild
    before, after = Watch(), Watch()
    trainer(tmp_path, model, callbacks=[before, AlraoCallback(0.1), after], max_steps=1).train()
    names = [name for name in before.seen if not name.startswith("classifier")]
    parts = [(names, slice(None))]
    parts += [(["classifier.weight", "classifier.bias"], copy) for copy in range(COPIES)]
    factors = []
    for names, copy in parts:
        raw, clipped = (
            torch.cat([watch.seen[name][copy].flatten() for name in names]) for watch in (before, after)
        )
        factors.append(min(1.0, 0.1 / raw.norm().item()))
        torch.testing.assert_close(clipped, raw * factors[-1], rtol=1e-3, atol=1e-7)
    assert len(set(factors)) == 1 + COPIES


def test_a_gradient_that_is_not_finite_spoils_no_other(tmp_path):
    def trained(folder, bad):
        torch.manual_seed(0)
        model = alrao.Alrao(classifier(), COPIES)
        dense = model.net.bert.pooler.dense.weight
        dense.register_hook(lambda grad: grad.index_fill(0, torch.tensor([2]), bad))
        trainer(folder, model, callbacks=[AlraoCallback()], num_train_epochs=1).train()
        return model

    expected = trained(tmp_path / "a", 0.0)
    assert not expected.net.bert.pooler.dense.weight._post_accumulate_grad_hooks  # all removed
    for i, bad in enumerate((math.inf, math.nan, 1e30)):
        check_same(trained(tmp_path / str(i), bad), expected)


def test_clipping_by_the_trainer_is_refused(tmp_path):
    model = alrao.Alrao(classifier(), COPIES)
    before = model.head.weight.clone()
    with pytest.raises(
        ValueError, match=r"set max_grad_norm=0 there, and use AlraoCallback\(max_grad_norm=1\.0\)"
    ):
        trainer(tmp_path, model, callbacks=[AlraoCallback()], max_grad_norm=1.0).train()
    assert torch.equal(model.head.weight, before)


def test_smoothed_labels_that_the_trainer_would_not_shift_are_refused(tmp_path):
    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TRANSFORMER))
    model = alrao.Alrao(net, COPIES)
    optimizer = alrao.AdamW(model)
    options = {"callbacks": [AlraoCallback()], "data": texts(), "max_steps": 1}
    with pytest.raises(ValueError, match=r"a LlamaForCausalLM inside.*compute_loss_func"):
        trainer(tmp_path, model, optimizer, label_smoothing_factor=0.1, **options).train()
    trainer(tmp_path, model, optimizer, **options).train()
    model = alrao.Alrao(classifier(), COPIES)  # whose labels are not shifted
    trainer(tmp_path, model, callbacks=[AlraoCallback()], max_steps=1, label_smoothing_factor=0.1).train()


@pytest.mark.parametrize("kind", ["converted", "plain", "parameters"])
def test_the_log_has_the_rate_and_files_have_the_averages(kind, tmp_path):
    torch.manual_seed(0)
    model = alrao.Alrao(classifier(), COPIES) if kind == "converted" else classifier()
    optimizer = alrao.Auto(model.parameters() if kind == "parameters" else model, steps=40)
    options = {"lr_scheduler_type": "constant", "max_grad_norm": 1.0, "save_strategy": "steps"}
    fit = trainer(
        tmp_path, model, optimizer, callbacks=[AlraoCallback()], max_steps=30, save_steps=20, **options
    )
    fit.train()
    rates = [line["learning_rate"] for line in fit.state.log_history if "learning_rate" in line]
    assert rates[0] < 1e-5 < 1e-3 < rates[-1] == optimizer.param_groups[0]["d"] < 0.1
    assert type(fit.lr_scheduler) is torch.optim.lr_scheduler.LambdaLR, "as it was"
    assert optimizer.averages.evaluating, "for an export"
    state = torch.load(tmp_path / "checkpoint-20" / "optimizer.pt", weights_only=True)
    assert state["param_groups"][0]["auto"]["evaluating"]
    assert "y" in state["state"][0]
    assert math.isfinite(fit.evaluate()["eval_loss"])


def test_the_log_has_the_middle_of_an_interval(tmp_path):
    torch.manual_seed(0)
    model = alrao.Alrao(classifier(), COPIES)
    fit = trainer(
        tmp_path, model, alrao.AdamW(model, lr=(1e-4, 1e-2)), callbacks=[AlraoCallback()], max_steps=4
    )
    fit.train()
    rates = [line["learning_rate"] for line in fit.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])  # the default is linear


def test_a_schedule_on_top_of_auto_is_warned_of(tmp_path):
    model = alrao.Alrao(classifier(), COPIES)
    fit = trainer(tmp_path, model, alrao.Auto(model), callbacks=[AlraoCallback()], max_steps=2)
    with pytest.warns(
        UserWarning, match=r"needs no schedule: set TrainingArguments\(lr_scheduler_type='const"
    ):
        fit.train()


def test_an_optimizer_of_torch_is_refused(tmp_path):
    model = alrao.Alrao(classifier(), COPIES)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"got AdamW: pass Trainer\(model, args, optimizers=\(alrao\.Auto"):
        trainer(tmp_path, model, optimizer, callbacks=[AlraoCallback()]).train()


def test_the_optimizer_that_the_trainer_makes_is_noticed_without_the_callback(tmp_path):
    model = alrao.Alrao(classifier(), COPIES)
    fit = trainer(tmp_path, model, optimizer=False, max_steps=6)
    fit.optimizer = None  # the Trainer then makes a fused AdamW
    with pytest.warns(UserWarning, match="not by an optimizer of alrao"):
        fit.train()


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    model, other = (alrao.Alrao(classifier(), COPIES) for _ in range(2))
    with pytest.raises(ValueError, match="built for this model"):
        trainer(tmp_path, model, alrao.AdamW(other), callbacks=[AlraoCallback()]).train()


def test_the_trainer_finds_the_labels_of_an_alrao_model(tmp_path):
    model = alrao.Alrao(classifier(), COPIES)
    fit = trainer(tmp_path, model, callbacks=[AlraoCallback()], max_steps=1, label_names=None)
    fit.train()
    assert math.isfinite(fit.evaluate()["eval_loss"])


@pytest.mark.parametrize("value", [0, -1, "1", True, math.nan])
def test_a_norm_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="max_grad_norm must be a positive number"):
        AlraoCallback(value)


def test_without_transformers_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", None)
    monkeypatch.delitem(sys.modules, "alrao.integrations.huggingface")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'alrao\[huggingface\]'"):
        importlib.import_module("alrao.integrations.huggingface")


def test_doctests():
    assert doctest.testmod(leaf).failed == 0
