"""LoRA adapters of PEFT, trained by Alrao, saved and loaded as usual."""

import copy

import pytest
import torch
from support.hf_models import classifier, transformers
from support.small import TRANSFORMER

import alrao

peft = pytest.importorskip("peft", reason="LoRA needs peft")


def causal():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=False, **TRANSFORMER))


def tied():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=True, **TRANSFORMER))


def train(model, labels, steps=30, lr=(1e-5, 1e-2)):
    ids = torch.randint(1, 30, (16, 7), generator=torch.Generator().manual_seed(3))
    labels = ids if labels is None else labels
    optimizer = alrao.AdamW(model, lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, ids


def check_files(model, base, ids, folder):
    """The adapters of the collapsed network, loaded onto the untrained network, give the same outputs."""
    plain = model.eval().collapse()
    plain.save_pretrained(folder)
    again = peft.PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        expected = plain(input_ids=ids).logits
        assert torch.equal(again(input_ids=ids).logits, expected)
        torch.testing.assert_close(again.merge_and_unload()(input_ids=ids).logits, expected)


def test_a_sequence_classifier(tmp_path):
    net = classifier()
    base = copy.deepcopy(net)
    model = alrao.Alrao(peft.get_peft_model(net, peft.LoraConfig(task_type="SEQ_CLS", r=4)))
    assert model.output_name.startswith("base_model.model.classifier.modules_to_save")
    frozen = {name: p.clone() for name, p in model.net.named_parameters() if not p.requires_grad}
    losses, ids = train(model, torch.arange(16) % 3, lr=(1e-4, 1e-1))
    assert losses[-1] < 0.8 * losses[0]
    assert len(frozen) > 10
    assert all(torch.equal(model.net.get_parameter(name), value) for name, value in frozen.items())
    check_files(model, base, ids, tmp_path)


@pytest.mark.parametrize("make", [causal, pytest.param(tied, marks=[
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
    pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied"),
])])  # fmt: skip
def test_a_language_model_whose_output_layer_is_trained(make, tmp_path):
    net = make()
    base = copy.deepcopy(net)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, modules_to_save=["lm_head"])
    model = alrao.Alrao(peft.get_peft_model(net, config), keep_output=True)
    losses, ids = train(model, None)
    assert losses[-1] < 0.8 * losses[0]
    assert model.posterior.max() > 0.2
    check_files(model, base, ids, tmp_path)


def test_a_language_model_whose_output_layer_is_frozen(tmp_path):
    base = causal()
    net = copy.deepcopy(base)
    net = peft.get_peft_model(net, peft.LoraConfig(task_type="CAUSAL_LM", r=4))
    with pytest.warns(UserWarning, match=r"copies=1 (.|\n)*modules_to_save"):
        alrao.Alrao(copy.deepcopy(net))
    model = alrao.Alrao(net, copies=1)
    torch.testing.assert_close(model.head.weight[0], base.lm_head.weight)
    losses, ids = train(model, None)
    assert losses[-1] < losses[0]
    check_files(model, base, ids, tmp_path)
