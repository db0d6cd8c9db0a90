"""Train a language model on words: an LSTM or a Transformer with a large output layer, and its price.

The plain network with torch's Adam and the Alrao model with Auto take turns on the same batches, so that both
times are comparable. The text is Penn Treebank's validation set in the folder ALRAO_DATA, or any file;
without one, the help texts that come with Python.

Usage: python examples/word_language_model.py [--model transformer] [--text FILE] [--steps 200]
GPT-2's vocabulary: python examples/word_language_model.py --words 50257 --steps 20
"""

import argparse
import os
import re
import time
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn

import alrao

STREAMS, LENGTH = 20, 35


class LSTM(nn.Module):
    """The paper's: an embedding of 100, two layers of 100, dropout before the output layer."""

    def __init__(self, words, units=100):
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(units, words)

    def forward(self, x):
        return self.output(self.dropout(self.lstm(self.embedding(x))[0]))


class Transformer(nn.Module):
    """Two layers of four heads, with learned positions."""

    def __init__(self, words, units=128):
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, units))
        layer = nn.TransformerEncoderLayer(units, 4, 2 * units, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(units, words)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.output(
            self.layers(self.embedding(x) + self.positions[: x.shape[1]], mask, is_causal=True)
        )


def read(path, words):
    """The text as numbers: the most frequent words first, one number for all others."""
    folder = Path(os.environ.get("ALRAO_DATA", "."))
    if path is None and (folder / "ptb.valid.txt").is_file():
        path = folder / "ptb.valid.txt"
    text = Path(path).read_text(encoding="utf-8") if path else " ".join(topics.values())
    found = re.findall(r"[^\s]+|\n", text)
    numbers = {word: i for i, (word, _) in enumerate(Counter(found).most_common(words - 1))}
    return torch.tensor([numbers.get(word, words - 1) for word in found])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=("lstm", "transformer"), default="lstm")
    parser.add_argument("--text", help="a text file")
    parser.add_argument("--words", type=int, default=10_000, help="size of the vocabulary")
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--sleep",
        action=argparse.BooleanOptionalAction,
        help="leave out copies that have lost, as by default",
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    text = read(args.text, args.words)
    held_out, text = text[: len(text) // 10], text[len(text) // 10 :]
    build = {"lstm": LSTM, "transformer": Transformer}[args.model]

    def windows(numbers, count):
        starts = torch.randint(len(numbers) - LENGTH, (count,))
        window = torch.stack([numbers[start : start + LENGTH + 1] for start in starts])
        return window[:, :-1], window[:, 1:]

    plain = build(args.words)
    model = alrao.Alrao(build(args.words), args.copies)
    running = {
        "plain, Adam": (plain, torch.optim.Adam(plain.parameters())),
        f"Alrao, {args.copies} copies, Auto": (model, alrao.Auto(model, sleep=args.sleep)),
    }
    seconds = dict.fromkeys(running, 0.0)
    for _ in range(args.steps):
        x, y = windows(text, STREAMS)
        for name, (net, optimizer) in running.items():
            start = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
            seconds[name] += time.perf_counter() - start
    x, y = windows(held_out, 4 * STREAMS)
    for name, (net, _) in running.items():
        net.eval()
        with torch.no_grad():
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        print(f"{name}: {1e3 * seconds[name] / args.steps:.0f} ms a step, test loss {loss:.3f} nats a word")


if __name__ == "__main__":
    main()
