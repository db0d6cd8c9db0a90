"""The language model of the paper."""

from __future__ import annotations

from torch import Tensor, nn

from .blocks import scaled

__all__ = ["RecurrentLM", "State"]

State = tuple[Tensor, Tensor]
"""Hidden and cell state, each (layers, batch, hidden)."""


class RecurrentLM(nn.Module):
    """Embedding, LSTM layers, and a decoder that predicts the next symbol at every position.

    Args:
        symbols: how many different characters or words there are.
        embedding: size of a symbol's vector.
        hidden: units of each LSTM layer.
        layers: LSTM layers.
        dropout: probability to drop a unit, before the decoder.
        dropout_everywhere: drop also after the embedding and between the LSTM layers, as the code of the
            paper's authors does; the paper speaks of the decoder alone.
        width: multiplies ``embedding`` and ``hidden``.
    """

    def __init__(
        self,
        symbols: int,
        embedding: int = 100,
        hidden: int = 100,
        layers: int = 2,
        dropout: float = 0.2,
        dropout_everywhere: bool = False,
        *,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        embedding, hidden = scaled(embedding, width), scaled(hidden, width)
        between = dropout if dropout_everywhere and layers > 1 else 0.0
        self.embedding = nn.Embedding(symbols, embedding)
        self.embedding_dropout = nn.Dropout(dropout if dropout_everywhere else 0.0)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Scores of the next symbols (batch, time, symbols) after tokens (batch, time), and the new state."""
        x = self.embedding_dropout(self.embedding(tokens))
        x, state = self.lstm(x, state)
        return self.decoder(self.dropout(x)), state
