"""The Hugging Face Trainer with Alrao models: gradients of the copies, clipping, checkpoints, files."""

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import accelerate
import pytest
import torch
from safetensors.torch import load_file
from support.hf_models import (
    COPIES,
    ROWS,
    Watch,
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
