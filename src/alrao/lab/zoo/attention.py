"""Small Transformers: for images, and for text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks import scaled

__all__ = ["TransformerLM", "VisionTransformer"]

HEADS = 4


def _encoder(size: int, layers: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        size, HEADS, 2 * size, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(size), enable_nested_tensor=False)
    for parameter in encoder.parameters():  # the layers are copies of one: let each be its own
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return encoder


def _size(size: int, width: float) -> int:
    return HEADS * max(1, scaled(size, width) // HEADS)


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, pre-normalised attention layers, and the mean over the tokens.

    Args:
        classes: how many there are.
        size: of a token's vector.
        layers: attention layers.
        image: side of the images.
        patch: side of a patch.
        width: multiplies ``size``.
    """

    def __init__(
        self,
        classes: int,
        size: int = 48,
        layers: int = 3,
        image: int = 32,
        patch: int = 4,
        *,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        size = _size(size, width)
        self.patches = nn.Conv2d(3, size, patch, patch)
        self.positions = nn.Embedding((image // patch) ** 2, size)
        self.encoder = _encoder(size, layers)
        self.output = nn.Linear(size, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes (batch, classes) for images (batch, 3, image, image)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions.weight
        x = self.encoder(x).mean(1)
        scores: Tensor = self.output(x)
        return scores


class TransformerLM(nn.Module):
    """Embedding, attention to the symbols before, and a decoder of the next symbol at every position.

    Args:
        symbols: how many different characters or words there are.
        size: of a symbol's vector.
        layers: attention layers.
        window: the most symbols that it can read at once.
        width: multiplies ``size``.
    """

    def __init__(
        self, symbols: int, size: int = 64, layers: int = 2, window: int = 70, *, width: float = 1.0
    ) -> None:
        super().__init__()
        size = _size(size, width)
        self.embedding = nn.Embedding(symbols, size)
        self.positions = nn.Embedding(window, size)
        self.encoder = _encoder(size, layers)
        self.decoder = nn.Linear(size, symbols)

    def forward(self, tokens: Tensor, state: tuple[()] | None = None) -> tuple[Tensor, tuple[()]]:
        """Scores of the next symbols (batch, time, symbols) after tokens (batch, time); it has no state."""
        time = tokens.shape[1]
        x = self.embedding(tokens) + self.positions.weight[:time]
        mask = torch.full((time, time), -torch.inf, device=tokens.device).triu(1)
        x = self.encoder(x, mask, is_causal=True)
        return self.decoder(x), ()
