"""Small models of Hugging Face, made from a configuration, and what trains them: shared by tests."""

import pytest
import torch

import alrao
from support.small import TRANSFORMER
from support.vision import torchvision  # noqa: F401  before transformers imports it

pytest.importorskip("transformers", reason="needs alrao[huggingface]")
pytest.importorskip("accelerate", reason="needs alrao[huggingface]")

import accelerate  # noqa: F401  for those who import it from here, in this order
import transformers

ROWS, COPIES = 32, 4


def classifier(dropout=0.0):
    config = transformers.BertConfig(
        num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **TRANSFORMER
    )
    return transformers.BertForSequenceClassification(config)


def tokens():
    return torch.randint(1, 30, (ROWS, 7), generator=torch.Generator().manual_seed(5))


def examples():
    return [{"input_ids": row, "labels": int(row[0] % 3)} for row in tokens()]


def arguments(folder, **options):
    quiet = {
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    ours = {"max_grad_norm": 0, "label_names": ["labels"], "per_device_train_batch_size": 8}
    return transformers.TrainingArguments(str(folder), **{**quiet, **ours, **options})


def trainer(folder, model, optimizer=None, *, scheduler=None, callbacks=(), data=None, **options):
    optimizer = alrao.AdamW(model) if optimizer is None else optimizer
    made = transformers.Trainer(
        model, arguments(folder, **options), train_dataset=examples() if data is None else data,
        eval_dataset=examples(), optimizers=(optimizer, scheduler), callbacks=list(callbacks),
    )  # fmt: skip
    made.remove_callback(transformers.PrinterCallback)
    return made


def texts():
    return [{"input_ids": row, "labels": row.clone()} for row in tokens()]


class Watch(transformers.TrainerCallback):
    """Remembers the gradients of the first step, as they are when the callbacks before it are done."""

    seen = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.seen is None:
            net = model.net if isinstance(model, alrao.Alrao) else model
            self.seen = {name: p.grad.clone() for name, p in net.named_parameters()}


def check_same(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name
