"""The networks of docs/compatibility.md: how to build each one, small, with random weights, and its batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alrao_lab.zoo.vision import torchvision  # before timm and transformers, which import it

CLASSES = 10
ROWS = 4
IMAGES = 2
TOKENS = 12
SYMBOLS = 64

Batch = dict[str, Any]


@dataclass
class Candidate:
    """A network and the loss of one fixed batch."""

    package: str
    kind: str
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[nn.Module], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    output: str | None = None

    @property
    def key(self) -> str:
        """The name in the kept results."""
        return f"{self.package}/{self.kind}/{self.name}"


def candidates() -> Iterator[Candidate]:
    """Return all networks, the small packages first."""
    yield from _transformers()
    yield from _timm()
    yield from _torchvision()


# Images.


def _images(size: int, channels: int = 3) -> Batch:
    return {"x": torch.randn(IMAGES, channels, size, size), "y": torch.arange(IMAGES)}


def _image_loss(model: nn.Module, batch: Batch) -> Tensor:
    out = model(batch["x"])
    out = getattr(out, "logits", out)  # auxiliary classifiers stay without a loss
    return F.cross_entropy(out, batch["y"])


BFLOAT16 = ("vit_h_14", "regnet_y_128gf")
"""Networks of more than 600 million parameters, which need 10 GB in float32."""


def _torchvision() -> Iterator[Candidate]:
    models = torchvision.models
    fixed = {"inception_v3": 299, "vit_h_14": 28}
    for name in models.list_models(module=models):
        options: dict[str, Any] = {"num_classes": CLASSES}
        size = fixed.get(name, 64)
        if name in ("googlenet", "inception_v3"):
            options["init_weights"] = False
        if name.startswith("vit_"):
            options["image_size"] = size
        if name == "maxvit_t":
            size = 224  # a fixed one

        kind = torch.bfloat16 if name in BFLOAT16 else torch.float32

        def build(name: str = name, options: dict[str, Any] = options, kind: torch.dtype = kind) -> nn.Module:
            return models.get_model(name, weights=None, **options).to(kind)

        def batch(_: nn.Module, size: int = size, kind: torch.dtype = kind) -> Batch:
            images = _images(size)
            return images | {"x": images["x"].to(kind)}

        yield Candidate("torchvision", "classifier", name, build, batch, _image_loss)
    for name in models.list_models(module=models.segmentation):

        def segmenter(name: str = name) -> nn.Module:
            return models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)

        def maps(_: nn.Module) -> Batch:
            return {"x": torch.randn(2, 3, 64, 64), "y": torch.arange(64 * 64 * 2).view(2, 64, 64) // 999}

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return F.cross_entropy(model(batch["x"])["out"], batch["y"])

        yield Candidate("torchvision", "segmentation", name, segmenter, maps, loss)


TIMM = (
    "starnet_s050 mobilenetv3_small_050 tinynet_e mobilevit_xxs repghostnet_050 edgenext_xx_small "
    "ghostnet_050 ese_vovnet19b_slim_dw deit_tiny_distilled_patch16_224 mobilenetv4_conv_small_050 "
    "efficientnet_cc_b0_4e efficientvit_b0 efficientvit_m0 regnetx_002 iformer_t fasternet_t0 "
    "cs3darknet_focus_s lcnetv2_small xcit_nano_12_p8_224 swiftformer_xs inception_next_atto "
    "efficientformerv2_s0 fastvit_t8 convnext_atto_rms pvt_v2_b0 rexnet_100 mobileone_s1 hardcorenas_b "
    "hgnetv2_b0 repvit_m1 cpubone_nano tiny_vit_5m_224 coat_tiny vit_tiny_patch16_dinov3_qkvb "
    "convit_tiny deit_tiny_patch16_224 vit_tiny_patch16_224 efficientvim_m1 shvit_s1 "
    "vit_tiny_r_s16_p8_224 mambaout_femto crossvit_tiny_240 densenet121 maxvit_pico_rw_256 halonet_h1 "
    "nf_regnet_b0 dpn48b levit_128 resnest14d visformer_tiny pit_xs_224 csatv2 hrnet_w18_small "
    "resnetv2_18 resnet18 legacy_seresnet18 efficientformer_l1 poolformer_s12 skresnet18 gcvit_xxtiny "
    "cait_xxs24_224 gmixer_12_224 lowformer_b0 dla34 nest_tiny convmixer_768_32 legacy_xception "
    "vit_srelpos_small_patch16_224 inception_v3 vitamin_small_224 res2next50 rdnet_tiny "
    "tnt_s_legacy_patch16_224 mvitv2_tiny twins_svt_small xception41p volo_d1_224 sam2_hiera_tiny "
    "hiera_tiny_224 sequencer2d_s swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 "
    "swinv2_tiny_window8_256 davit_tiny focalnet_tiny_srf selecsls42 tresnet_m nextvit_small "
    "inception_v4 inception_resnet_v2 mobilenetv5_base pnasnet5large nasnetalarge "
    "samvit_base_patch16_224 beit_base_patch16_224 naflexvit_base_patch16_gap qwen3_vit_88m vgg11 "
)
"""The smallest model of each module of timm, without those of more than 150 million parameters."""

TIMM_SMALLER = (
    "tnt_s_legacy_patch16_224 mvitv2_tiny twins_svt_small volo_d1_224 hiera_tiny_224 sequencer2d_s "
    "swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256 samvit_base_patch16_224 "
    "beit_base_patch16_224 naflexvit_base_patch16_gap qwen3_vit_88m"
)
"""Those built for images of 64 pixels by ``img_size``, which takes less time."""


def _timm() -> Iterator[Candidate]:
    smaller = TIMM_SMALLER.split()
    for name in TIMM.split():

        def build(name: str = name) -> nn.Module:
            import timm

            options = {"img_size": 64} if name in smaller else {}
            return timm.create_model(name, num_classes=CLASSES, **options)

        def batch(net: nn.Module, name: str = name) -> Batch:
            if name in smaller:
                return _images(64)
            config: Any = getattr(net, "net", net).default_cfg
            fixed = config.get("fixed_input_size")
            size = config["input_size"][1]
            return _images(size if fixed else min(size, 96), config["input_size"][0])

        yield Candidate("timm", "classifier", name, build, batch, _image_loss)


# Text, with the loss that the model computes.

SMALL = {
    "vocab_size": SYMBOLS, "hidden_size": 32, "d_model": 32, "dim": 32, "n_embd": 32, "embedding_size": 16,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4,
    "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "hidden_dim": 48, "n_inner": 48, "d_ff": 48, "d_kv": 8,
    "d_inner": 48,
    "ffn_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "max_seq_len": 64, "n_positions": 64, "rotary_dim": 4, "word_embed_proj_dim": 32, "state_size": 4,
    "time_step_rank": 4,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 0, "attention_window": 4, "attention_types": [[["global", "local"], 1]],
    "num_labels": CLASSES, "block_size": 4, "num_random_blocks": 1, "attention_type": "original_full",
    "image_size": 32, "patch_size": 8, "embed_dim": 16, "depths": [1, 1], "window_size": 2,
    "hidden_sizes": [16, 32], "num_stages": 2, "embedding_dim": 32, "global_attn_every_n_layers": 2,
    "sliding_window": 8, "hidden_dropout": 0.0,
}  # fmt: skip

TEXT = {
    "SequenceClassification": "Albert Bart Bert BigBird Bloom Camembert Deberta DebertaV2 DistilBert Electra "
    "GPT2 Llama Longformer MPNet ModernBert OPT Qwen2 Roberta T5 XLMRoberta XLNet",
    "TokenClassification": "Bert DebertaV2 Electra GPT2",
    "CausalLM": "Bloom Cohere Falcon GPTNeo GPTNeoX GPTJ Gemma Gemma2 GptOss Granite Llama Mamba Mistral "
    "Mixtral OPT Olmo2 Phi Phi3 Qwen2 Qwen3 StableLm",
    "LMHeadModel": "GPT2 Bert",
    "MaskedLM": "Albert Bert DistilBert Electra ModernBert Roberta",
    "QuestionAnswering": "Albert Bert DistilBert Electra Roberta",
    "ConditionalGeneration": "Bart T5 BigBirdPegasus",
    "ImageClassification": "Beit ConvNext ConvNextV2 DeiT Dinov2 MobileNetV2 ResNet Segformer Swin ViT",
    "SemanticSegmentation": "Beit Segformer MobileNetV2",
}


def _transformers() -> Iterator[Candidate]:
    for task, names in TEXT.items():
        for name in names.split():
            kind = f"{name}{task}" if task == "LMHeadModel" else f"{name}For{task}"

            def build(kind: str = kind) -> nn.Module:
                import transformers

                model_type = getattr(transformers, kind)
                config_type = model_type.config_class
                known = set(inspect.signature(config_type.__init__).parameters) | set(dir(config_type()))
                known |= {"num_labels"}
                small = {key: value for key, value in SMALL.items() if key in known}
                small |= _SPECIAL.get(config_type.__name__, {})
                small = {key: value for key, value in small.items() if value is not None}
                small |= {"num_labels": 2} if kind.endswith("QuestionAnswering") else {}
                small |= {"decoder_start_token_id": 0} if config_type.__name__ == "T5Config" else {}
                small |= {"is_decoder": True} if kind == "BertLMHeadModel" else {}
                return model_type(config_type(**small))

            kinds = {"ImageClassification": "classifier", "SequenceClassification": "classifier"}
            yield Candidate(
                "transformers",
                kinds.get(task, "other"),
                kind,
                build,
                lambda _, task=task: _text(task),
                _own_loss,
            )


_SPECIAL: dict[str, dict[str, Any]] = {
    "XLNetConfig": {"max_position_embeddings": None},
    "FalconConfig": {"head_dim": None},
    "SegformerConfig": {
        "num_attention_heads": [1, 2, 4, 8],
        "hidden_sizes": [8, 16, 32, 64],
        "depths": [1] * 4,
    },
    "SwinConfig": {"num_heads": [2, 2], "patch_size": 4},
    "BeitConfig": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
}
"""What these configurations need; None leaves a key out."""


def _text(task: str) -> Batch:
    generator = torch.Generator().manual_seed(0)
    if task in ("ImageClassification", "SemanticSegmentation"):
        images = torch.randn(ROWS, 3, 32, 32, generator=generator)
        dense = torch.arange(ROWS * 32 * 32).view(ROWS, 32, 32) % CLASSES
        return {"pixel_values": images, "labels": torch.arange(ROWS) if task.startswith("Im") else dense}
    tokens = torch.randint(3, SYMBOLS, (ROWS, TOKENS), generator=generator)
    tokens[:, -1] = 2
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if task == "SequenceClassification":
        return batch | {"labels": torch.arange(ROWS)}
    if task == "TokenClassification":
        return batch | {"labels": tokens % CLASSES}
    if task == "QuestionAnswering":
        return batch | {"start_positions": torch.arange(ROWS), "end_positions": torch.arange(ROWS) + 3}
    return batch | {"labels": tokens}


def _own_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss
