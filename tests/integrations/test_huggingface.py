"""The Hugging Face Trainer: copies and plain networks, clipping of each copy, checkpoints, refusals."""

import doctest
import importlib
import math
import re
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.accelerate_runs import data
from support.hf_models import (
    COPIES,
    ROWS,
    Watch,
    accelerate,
    check_same,
    classifier,
    examples,
    texts,
    tokens,
    trainer,
    transformers,
)
from support.small import TRANSFORMER
from torch import nn

import alrao
from alrao.contrib.zoom import Zoom
from alrao.heads import vocabulary
from alrao.integrations import huggingface as leaf
from alrao.integrations.huggingface import AlraoCallback
from alrao.tensors import LazyLogProbs


def spread(model):
    """A posterior that is not uniform, and copies that differ."""
    model.head.averaging.update(torch.tensor([0.0, -1.0, 0.5, -0.3]))
    return model


# The loss is inside of the model, and the Trainer calls it in its own way.


def first_gradients(folder, model, optimizer, accumulate, *callbacks):
    watch = Watch()
    trainer(
        folder, model, optimizer, callbacks=[*callbacks, watch], max_steps=1,
        per_device_train_batch_size=ROWS // accumulate, gradient_accumulation_steps=accumulate,
    ).train()  # fmt: skip
    return watch.seen


def with_output(body, weight, bias):
    """An ordinary model of transformers, made of a body and an output layer."""
    plain = classifier()
    plain.load_state_dict({**body, "classifier.weight": weight, "classifier.bias": bias})
    return plain


def converted():
    """A model, its body before training, and its copies one by one."""
    model = spread(alrao.Alrao(classifier(), COPIES))
    values = {name: value.detach().clone() for name, value in model.net.named_parameters()}
    copies = list(zip(values.pop("classifier.weight"), values.pop("classifier.bias"), strict=True))
    return model, values, copies


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_copy_gets_the_gradient_that_it_gets_alone_in_the_trainer(tmp_path, accumulate):
    model, body, copies = converted()
    unclipped = AlraoCallback(max_grad_norm=None)
    ours = first_gradients(tmp_path, model, alrao.AdamW(model), accumulate, unclipped)
    for copy, (weight, bias) in enumerate(copies):
        plain = with_output(body, weight, bias)
        alone = first_gradients(tmp_path, plain, torch.optim.SGD(plain.parameters()), accumulate)
        for name in ("classifier.weight", "classifier.bias"):
            torch.testing.assert_close(ours[name][copy], alone[name], rtol=1e-4, atol=1e-7)


def test_the_body_gets_the_gradient_of_the_mixture(tmp_path):
    model, body, copies = converted()
    posterior = model.posterior.clone()
    ours = first_gradients(tmp_path, model, alrao.AdamW(model), 1, AlraoCallback(max_grad_norm=None))
    plain = with_output(body, *copies[0])
    features = plain.bert(input_ids=tokens()).pooler_output
    mixture = sum(
        a * nn.functional.linear(features, weight, bias).softmax(-1)
        for a, (weight, bias) in zip(posterior, copies, strict=True)
    )
    labels = [example["labels"] for example in examples()]
    (-mixture[range(ROWS), labels].log().mean()).backward()
    for name, parameter in plain.bert.named_parameters():
        torch.testing.assert_close(ours[f"bert.{name}"], parameter.grad, rtol=1e-3, atol=1e-7)


def test_one_copy_at_one_rate_is_what_the_trainer_itself_trains(tmp_path):
    torch.manual_seed(3)
    plain = classifier()
    torch.manual_seed(3)
    model = alrao.Alrao(classifier(), 1, keep_output=True)
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    ours = alrao.AdamW(model, lr=1e-2, weight_decay=0.1)
    for net, optimizer in ((plain, theirs), (model, ours)):
        trainer(tmp_path, net, optimizer, num_train_epochs=2, warmup_steps=3).train()  # a linear schedule
    for name, value in model.collapse().state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_it_learns_and_is_evaluated(tmp_path):
    torch.manual_seed(0)
    model = alrao.Alrao(classifier(), 10)
    fit = trainer(
        tmp_path, model, alrao.AdamW(model, lr=(1e-6, 1e-2)), callbacks=[AlraoCallback()],
        num_train_epochs=40, eval_strategy="epoch", lr_scheduler_type="constant",
    )  # fmt: skip
    fit.train()
    losses = [row["eval_loss"] for row in fit.state.log_history if "eval_loss" in row]
    assert losses[-1] < 0.7 < 0.9 < losses[0]
    prediction = fit.predict(examples())
    assert prediction.predictions.shape == (ROWS, 3)
    torch.testing.assert_close(torch.tensor(prediction.predictions).exp().sum(1), torch.ones(ROWS))
    expected = -prediction.predictions[range(ROWS), prediction.label_ids].mean()
    assert prediction.metrics["test_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("evaluates", ["no", "epoch"])
@pytest.mark.parametrize("way", ["AdamW", "Zoom", "Auto"])
def test_a_resumed_run_ends_with_the_same_bits(way, evaluates, tmp_path):
    def started(seed, folder):
        torch.manual_seed(seed)
        model = alrao.Alrao(classifier(dropout=0.1), COPIES)
        optimizer, chain = alrao.AdamW(model), None
        if way == "Auto":
            optimizer = alrao.Auto(model, steps=20)  # six steps of search, then averages
        if way == "Zoom":
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
            chain = torch.optim.lr_scheduler.ChainedScheduler([Zoom(optimizer, 12, every=3), cosine])
        return trainer(
            folder, model, optimizer, scheduler=chain,
            callbacks=[AlraoCallback()], num_train_epochs=4, save_strategy="epoch", seed=7,
            eval_strategy=evaluates, lr_scheduler_type="constant" if way == "Auto" else "linear",
        )  # fmt: skip

    whole = started(1, tmp_path / "whole")
    whole.train()
    resumed = started(2, tmp_path / "again")  # other weights and rates, until they are loaded
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-8"))
    assert resumed.state.global_step == 16
    check_same(resumed.model, whole.model)
    check_same(resumed.model.train(), whole.model.train())
    ours, theirs = (fit.optimizer.optimizer for fit in (resumed, whole))
    for one, two in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours.rates(one), theirs.rates(two))


@pytest.mark.filterwarnings("ignore:the weights of the output layer:UserWarning")
def test_a_model_that_shares_weights_between_its_layers_is_saved_and_resumed(tmp_path):
    def started(seed, folder):
        torch.manual_seed(seed)
        model = alrao.Alrao(list(language_models())[3], COPIES)
        return trainer(
            folder, model, callbacks=[AlraoCallback()], data=texts(), num_train_epochs=2,
            save_strategy="epoch", seed=7,
        )  # fmt: skip

    whole = started(1, tmp_path / "whole")
    names = set(whole.model.state_dict())
    whole.train()
    assert set(whole.model.state_dict()) == names  # all of them again
    resumed = started(2, tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    check_same(resumed.model, whole.model)
    assert resumed.model.encoder.embed_tokens.weight is resumed.model.shared.weight


# Auto.


def started_with_auto(folder, *callbacks, **options):
    torch.manual_seed(0)
    model = alrao.Alrao(classifier(), 10)
    settings = {"num_train_epochs": 30, "lr_scheduler_type": "constant", **options}
    optimizer = alrao.Auto(model, steps=167)  # a search of 50 steps, whatever is learned
    return trainer(folder, model, optimizer, callbacks=callbacks, **settings)


@pytest.mark.parametrize("callbacks", [[], [AlraoCallback()]], ids=["alone", "callback"])
def test_auto_learns_with_the_trainers_own_clipping(callbacks, tmp_path):
    fit = started_with_auto(tmp_path, *callbacks, max_grad_norm=1.0, eval_strategy="epoch")
    fit.train()
    losses = [row["eval_loss"] for row in fit.state.log_history if "eval_loss" in row]
    assert losses[-1] < 0.5 < 0.9 < losses[0]
    optimizer = fit.optimizer.optimizer
    assert optimizer.state[fit.model.head.weight]["k"] == 120 - 50
    averaged = torch.lerp(optimizer.state[fit.model.head.weight]["z"], fit.model.train().head.weight, 1 / 0.5)
    torch.testing.assert_close(fit.model.eval().head.weight, averaged)
    assert fit.evaluate()["eval_loss"] == pytest.approx(losses[-1], rel=1e-5)


def test_the_best_model_is_loaded_at_the_end_and_stays(tmp_path):
    fit = started_with_auto(
        tmp_path, AlraoCallback(), num_train_epochs=20, eval_strategy="epoch", save_strategy="epoch",
        load_best_model_at_end=True, metric_for_best_model="accuracy", save_total_limit=2,
    )  # fmt: skip
    seen = iter([0.1] * 15 + [0.9] + [0.2] * 10)  # the sixteenth epoch is the best
    fit.compute_metrics = lambda prediction: {"accuracy": next(seen)}
    fit.train()
    assert fit.state.best_global_step == 64
    losses = [row["eval_loss"] for row in fit.state.log_history if "eval_loss" in row]
    fit.model.train()
    assert fit.evaluate()["eval_loss"] == pytest.approx(losses[15], rel=1e-5)
    assert abs(losses[15] - losses[-1]) > 1e-4


def test_files_have_the_averaged_weights_without_an_evaluation_too(tmp_path):
    fit = started_with_auto(tmp_path, AlraoCallback(), num_train_epochs=15, save_strategy="epoch")
    fit.train()
    fit.save_model(tmp_path / "last")
    expected = {name: value.clone() for name, value in fit.model.eval().state_dict().items()}
    assert not torch.equal(fit.model.train().head.weight, expected["classifier.weight"])
    for folder in ("last", "checkpoint-60"):
        found = load_file(tmp_path / folder / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_regression_by_a_loss_of_its_own(tmp_path):
    torch.manual_seed(0)
    net = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=1, **TRANSFORMER))
    model = alrao.Alrao(net, COPIES, likelihood="gaussian")
    fit = trainer(
        tmp_path, model, alrao.AdamW(model, lr=(1e-6, 1e-2)), callbacks=[AlraoCallback()],
        data=[{"input_ids": row, "labels": row[0] / 10 - 1.5} for row in tokens()], num_train_epochs=40,
    )  # fmt: skip
    mixture = alrao.MixtureMSELoss()
    fit.compute_loss_func = lambda outputs, labels, **_: mixture(outputs.logits, labels[:, None])
    fit.train()
    losses = [row["loss"] for row in fit.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] / 2
    assert model.posterior.max() > 0.5


# What comes out.


def test_a_collapsed_classifier_is_an_ordinary_one(tmp_path):
    torch.manual_seed(0)
    model = alrao.Alrao(classifier(), COPIES)
    trainer(tmp_path, model, callbacks=[AlraoCallback()], num_train_epochs=2).train()
    plain = model.eval().collapse()
    plain.save_pretrained(tmp_path / "plain")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").eval()
    assert type(loaded) is transformers.BertForSequenceClassification
    with torch.no_grad():
        found, expected = loaded(input_ids=tokens()).logits, plain(input_ids=tokens()).logits
        features = model.net.bert(input_ids=tokens()).pooler_output
    assert torch.equal(found, expected)
    best = model.posterior.argmax()
    by_hand = nn.functional.linear(features, model.head.weight[best], model.head.bias[best])
    torch.testing.assert_close(found, by_hand.detach())


def language_models():
    yield transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=True, **TRANSFORMER))
    yield transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=30, n_positions=16)
    )
    yield transformers.BertForMaskedLM(transformers.BertConfig(tie_word_embeddings=True, **TRANSFORMER))
    yield transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=30, decoder_start_token_id=0
        )
    )


@pytest.mark.parametrize("which", range(4), ids=["llama", "gpt2", "bert", "t5"])
def test_a_collapsed_language_model_stays_untied(which, tmp_path):
    net = list(language_models())[which]
    embedding = net.get_input_embeddings()
    assert net.get_output_embeddings().weight is embedding.weight  # tied, before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the untying, and of layers without a rule
        model = alrao.Alrao(net, 2)
        optimizer = alrao.AdamW(model, lr=(1e-3, 1e-1))
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=tokens(), labels=tokens()).loss.backward()
        optimizer.step()
    plain = model.eval().collapse()
    assert net.config.tie_word_embeddings is True  # the user's, as it was
    assert plain.config.tie_word_embeddings is False
    plain.save_pretrained(tmp_path)
    loaded, report = type(net).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    out, embedded = loaded.get_output_embeddings().weight, loaded.get_input_embeddings().weight
    assert torch.equal(out, plain.get_output_embeddings().weight)
    assert torch.equal(embedded, plain.get_input_embeddings().weight)
    assert not torch.equal(out, embedded)
    with torch.no_grad():
        found, expected = (each.eval()(input_ids=tokens(), labels=tokens()) for each in (loaded, plain))
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)


def test_a_model_that_was_not_tied_keeps_its_configuration():
    model = alrao.Alrao(classifier(), COPIES)
    assert model.collapse().config.tie_word_embeddings == model.config.tie_word_embeddings


def test_the_features_of_conv1d_are_its_outputs():
    net = list(language_models())[1]
    with pytest.warns(UserWarning, match="tied to"):
        model = alrao.Alrao(net, 2)
    optimizer = alrao.SGD(model)  # no warning that it has no rule
    layer = net.transformer.h[0].mlp.c_fc  # 16 inputs, 64 outputs
    weight, bias = optimizer.rates(layer.weight), optimizer.rates(layer.bias)
    assert weight.shape == (1, 64)
    assert torch.equal(weight.flatten(), bias)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("name", ["GPT2", "Llama", "DebertaV2"])
def test_classifiers_that_pick_a_position_or_gather_rows(name):
    options = {"num_labels": 3, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    if name == "DebertaV2":
        options["pooler_hidden_size"] = TRANSFORMER["hidden_size"]
    config = getattr(transformers, f"{name}Config")(**options, **TRANSFORMER)
    model = alrao.Alrao(getattr(transformers, f"{name}ForSequenceClassification")(config), COPIES)
    optimizer = alrao.SGD(model)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(input_ids=tokens(), labels=tokens()[:, 0] % 3).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < losses[0] - 0.02


# A causal language model with a large output, which computes the loss inside.

WORDS = 30


def causal_gradients(monkeypatch, at_least):
    monkeypatch.setattr(vocabulary, "LARGE", at_least)
    monkeypatch.setattr(vocabulary, "CHUNK", 100)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = alrao.Alrao(transformers.GPT2LMHeadModel(config), 4)
    words = torch.arange(24).view(3, 8) * 7 % WORDS
    labels = words.masked_fill(words < 5, -100)
    out = model(input_ids=words, labels=labels)
    assert isinstance(out.logits, LazyLogProbs) == (at_least == 1)
    out.loss.backward()
    return [out.loss.detach(), *(p.grad for p in model.parameters()), model.head.evidence.grad]


def test_the_loss_inside_a_model_works_in_chunks(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(LazyLogProbs, "computed", None)  # the loss needs no numbers of the whole output
        lazily = causal_gradients(patch, 1)
    for ours, expected in zip(lazily, causal_gradients(monkeypatch, 10**9), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning")  # the Trainer's default
def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "integrations" / "huggingface.md"
    code, loss, loop = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    assert code.count('"…"') == 1
    monkeypatch.chdir(tmp_path)
    classifier().save_pretrained("pretrained")
    names = {"train": examples(), "test": examples()}
    exec(compile(code.replace("…", "pretrained"), str(page), "exec"), names)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained("folder/plain")
    assert type(plain) is transformers.BertForSequenceClassification
    assert names["trainer"].state.global_step > 0
    assert names["trainer"].optimizer.optimizer.search.steps == names["trainer"].state.global_step
    exec(compile(loss, str(page), "exec"), names)
    numbers = alrao.Alrao(nn.Linear(4, 1), likelihood="gaussian")
    outputs = SimpleNamespace(logits=numbers(torch.randn(8, 4)))
    assert names["compute_loss"](outputs, torch.randn(8)).isfinite()
    for name in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, name)._reset_state()
    names["net"] = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names["loader"] = [(torch.randn(8, 4), torch.randint(3, (8,)))] * 3
    exec(compile(loop, str(page), "exec"), names)
    assert names["optimizer"].optimizer.search.steps == 3


# The callback.


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


# Plain networks under Auto.


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def auto(net):
    torch.manual_seed(1)
    return alrao.Auto(net, steps=14)


def train(net, optimizer, loader, backward=lambda loss: loss.backward()):
    for _ in range(2):
        net.train()
        for x, _ in loader:
            backward(F.l1_loss(net(x), x[:, :3].sin()))
            optimizer.step()
            optimizer.zero_grad()
        net.eval()


def test_accelerate_trains_a_plain_network_as_a_loop_does():
    net, twin = network(), network()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer, loader = accelerator.prepare(net, auto(net), data())
    train(prepared, optimizer, loader, accelerator.backward)
    other = auto(twin)
    train(twin, other, data())
    assert all(map(torch.equal, net.parameters(), twin.parameters()))
    net.train()
    assert not all(map(torch.equal, net.parameters(), twin.parameters())), "twin shows the average"


def test_the_trainer_trains_a_plain_network_and_evaluates_its_average(tmp_path):
    torch.manual_seed(0)
    net = classifier()
    optimizer = auto(net)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    made = trainer(tmp_path, net, optimizer, scheduler=constant, max_steps=12)
    made.train()
    net.train()
    twin = deepcopy(net).eval()
    with torch.no_grad():
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            if "z" in optimizer.state[p]:
                q.copy_((p - 0.5 * optimizer.state[p]["z"]) / 0.5)  # by definition
        rows = examples()
        inputs, labels = torch.stack([row["input_ids"] for row in rows]), [row["labels"] for row in rows]
        expected = twin(inputs, labels=torch.tensor(labels)).loss.item()
        ours = net.eval()(inputs, labels=torch.tensor(labels)).loss.item()
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)
    assert ours == pytest.approx(expected, rel=1e-4)
    assert {state["k"] for state in optimizer.state.values() if "k" in state} == {8}
