"""A causal language model of Hugging Face, which computes the loss inside, with a large output."""

import torch
from support.hf_models import transformers

import alrao
from alrao.heads import chunked, large
from alrao.tensors import LazyLogProbs

WORDS = 30


def gradients(monkeypatch, at_least):
    monkeypatch.setattr(large, "LARGE", at_least)
    monkeypatch.setattr(chunked, "CHUNK", 100)
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
        lazily = gradients(patch, 1)
    for ours, expected in zip(lazily, gradients(monkeypatch, 10**9), strict=True):
        torch.testing.assert_close(ours, expected)
