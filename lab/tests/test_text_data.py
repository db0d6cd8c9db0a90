"""Texts as data: streams, vocabularies, files and their errors."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lab_support.data import check_refusal, listed

from alrao_lab.tasks.files import read_text
from alrao_lab.tasks.text import encode, split, streams, tokens, vocabulary

quick = hypothesis_settings(max_examples=50, deadline=None)


@pytest.fixture(autouse=True)
def _no_data(monkeypatch):
    monkeypatch.delenv("ALRAO_DATA", raising=False)


# Streams


def literal_streams(text, count, window):
    """Batches of (inputs, targets), one symbol at a time."""
    length = (len(text) - 1) // count
    found = []
    for first in range(0, length, window):
        times = range(first, min(first + window, length))
        inputs = [[text[stream * length + t] for t in times] for stream in range(count)]
        targets = [text[stream * length + t + 1] for stream in range(count) for t in times]
        found.append((inputs, targets))
    return found


@st.composite
def cuts(draw):
    count = draw(st.integers(1, 12))
    text = draw(st.lists(st.integers(0, 9), min_size=count + 1, max_size=count + 150))
    return text, count, draw(st.integers(1, 40))


@quick
@given(cuts())
def test_streams_are_the_literal_ones(cut):
    text, count, window = cut
    assert listed(streams(torch.tensor(text), count, window)) == literal_streams(text, count, window)


@quick
@given(cuts())
def test_every_symbol_is_predicted_at_most_once_from_those_right_before_it(cut):
    text, count, window = cut
    batches = streams(torch.arange(len(text)), count, window)
    inputs = torch.cat([inputs for inputs, _ in batches], 1)
    targets = torch.cat([targets.view(count, -1) for _, targets in batches], 1)
    assert (targets == inputs + 1).all()
    assert (inputs.diff(dim=1) == 1).all()
    assert sorted(targets.flatten().tolist()) == list(range(1, targets.numel() + 1))
    assert len(text) - 1 - targets.numel() < count


# Symbols


def test_characters_are_those_of_the_file_and_words_end_their_lines():
    assert tokens("a <unk>\n\nb\n", "char") == "a <unk>\n\nb\n"
    assert tokens(" a <unk> \n\nb\n", "word") == ["a", "<unk>", "<eos>", "<eos>", "b", "<eos>"]
    assert tokens("a\nb", "word") == ["a", "<eos>", "b", "<eos>"]


@quick
@given(st.text(min_size=1), st.text())
def test_symbols_come_back_from_their_numbers_and_unseen_ones_as_unknown(train, other):
    symbols = vocabulary(train, other)
    decoded = [symbols[number] for number in encode(train + other, symbols).tolist()]
    assert decoded == [symbol if symbol in train else "<unk>" for symbol in train + other]
    assert ("<unk>" in symbols) == (not set(other) <= set(train))
    assert len(symbols) == len(set(train)) + (not set(other) <= set(train))


def test_frequent_symbols_come_first():
    assert vocabulary("bbacc") == ["b", "c", "a"]


def test_rare_words_are_unknown():
    words = list("aaabbccd")
    assert vocabulary(words, least=2) == ["a", "b", "c", "<unk>"]
    assert vocabulary(words, most=3) == ["a", "b", "<unk>"]
    assert vocabulary(words, most=4) == ["a", "b", "c", "d"]
    assert vocabulary([*words, "<unk>"], most=9) == ["a", "b", "c", "<unk>", "d"]


def test_a_symbol_that_the_vocabulary_cannot_hold():
    with pytest.raises(KeyError, match="<unk>"):
        encode("abc", vocabulary("ab"))


# Files


def test_line_ends_and_byte_order_marks_are_made_alike(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffé\r\nb\rc\n".encode())
    assert read_text(path) == "é\nb\nc\n"


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.txt"
    assert f"there is no file {path}: check the name" in check_refusal(read_text, path)
    assert "is a directory, and a file is needed" in check_refusal(read_text, tmp_path)
    path.write_bytes(b"")
    assert f"{path} is empty" in check_refusal(read_text, path)
    assert "in it are a.txt" in check_refusal(read_text, tmp_path)
    path.write_bytes(b" \n\n ")
    assert f"{path} is empty" in check_refusal(read_text, path)
    path.write_bytes("a\ncafé".encode("latin1"))
    assert f"{path} is not UTF-8 (byte 0xe9 on line 2): convert it, as with `iconv" in check_refusal(
        read_text, path
    )
    path.write_bytes("abc".encode("utf-16"))
    assert f"{path} is not UTF-8 but UTF-16" in check_refusal(read_text, path)
    path.write_bytes(b"\x89PNG\0\0")
    assert f"{path} is a binary file" in check_refusal(read_text, path)


def test_a_file_that_the_system_refuses(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("abc")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert check_refusal(read_text, path) == f"{path} cannot be read: Permission denied"


def test_a_text_is_split_by_position(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(chr(ord("A") + i % 26) for i in range(1000)))
    texts, _, source = split(path, "char")
    assert {part: len(text) for part, text in texts.items()} == {"train": 900, "valid": 50, "test": 50}
    assert "".join(texts.values()) == path.read_text()
    assert source.endswith(", split 90/5/5")
