"""Texts: streams, vocabularies, files and their errors; the Penn Treebank; measures and the carried state."""

import copy
import io
from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lab_support.data import check_refusal, listed
from support.needs import DATA, needs_file

import alrao
from alrao.tensors import LogProbs
from alrao_lab.settings import Settings
from alrao_lab.tasks.files import read_text
from alrao_lab.tasks.text import (
    WINDOW,
    FinetuneWikiText,
    PennTreebank,
    Text,
    encode,
    ptb,
    split,
    streams,
    tokens,
    vocabulary,
)

CPU = torch.device("cpu")
LINE = " the quick brown <unk> jumps over N lazy dogs \n"
needs_ptb = needs_file("ptb.valid.txt")
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


@pytest.fixture
def treebank(tmp_path):
    """The usual three files, short: the words `v` and `t` are not in the training file."""
    (tmp_path / "ptb.train.txt").write_text(LINE * 60)
    (tmp_path / "ptb.valid.txt").write_text((LINE + " v dogs \n") * 20)
    (tmp_path / "ptb.test.txt").write_text((LINE + " t dogs \n") * 40)
    return tmp_path


def problem_of(text, folder, *, level="char", **settings):
    path = folder / "own.txt"
    path.write_text(text, encoding="utf-8")
    return Text().load(Settings(task="text", data=str(path), level=level, **settings), CPU)


# The Penn Treebank


@pytest.mark.parametrize("place", ["", "ptb", "simple-examples/data"])
def test_the_three_files_are_found(treebank, tmp_path_factory, monkeypatch, place):
    root = tmp_path_factory.mktemp("root")
    (root / place).mkdir(parents=True, exist_ok=True)
    for file in treebank.iterdir():
        (root / place / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("ALRAO_DATA", str(root))
    texts, _, _ = ptb(None, "char", mini=False)
    assert texts["train"] == LINE * 60
    assert texts["valid"] == (LINE + " v dogs \n") * 20
    assert texts["test"] == (LINE + " t dogs \n") * 40


def test_mini_does_without_the_training_file(treebank):
    (treebank / "ptb.train.txt").unlink()
    texts, _, _ = ptb(str(treebank), "char", mini=True)
    assert texts["train"] == (LINE + " v dogs \n") * 20
    assert texts["valid"] + texts["test"] == (LINE + " t dogs \n") * 40
    assert len(texts["valid"]) == len(texts["test"])
    message = check_refusal(ptb, str(treebank), "char", mini=False)
    assert (
        f"there is no ptb.train.txt in {treebank}: put ptb.train.txt, ptb.valid.txt, ptb.test.txt" in message
    )
    assert "--budget mini does without the training file" in message


def test_the_error_of_missing_files_names_the_places(tmp_path):
    remedy = "put ptb.valid.txt, ptb.test.txt (the usual text, as in simple-examples.tgz"
    message = check_refusal(ptb, str(tmp_path), "char", mini=True)
    assert f"no ptb.test.txt in {tmp_path} (nor in its ptb or simple-examples/data): {remedy}" in message
    assert "--data DIR or $ALRAO_DATA" in message
    assert remedy in check_refusal(ptb, None, "char", mini=True)
    assert str(tmp_path / "no") in check_refusal(ptb, str(tmp_path / "no"), "char", mini=True)
    (tmp_path / "ptb.valid.txt").write_text(LINE)
    assert f"there is no ptb.test.txt in {tmp_path}: " in check_refusal(ptb, str(tmp_path), "char", mini=True)
    message = check_refusal(ptb, str(tmp_path / "ptb.valid.txt"), "char", mini=True)
    assert "is a file, and a directory is needed" in message


def test_words_are_those_of_the_training_file(treebank):
    problem = PennTreebank().load(Settings(task="ptb", data=str(treebank), level="word", budget="paper"), CPU)
    assert set(problem.symbols) == {*LINE.split(), "<eos>"}
    unknown = problem.symbols.index("<unk>")
    assert encode(["v", "dogs"], problem.symbols)[0] == unknown
    assert problem.about["source"] == "train: ptb.train.txt; valid: ptb.valid.txt; test: ptb.test.txt"
    assert problem.measures == ("loss", "perplexity", "accuracy")


@needs_ptb
def test_the_usual_files_have_50_characters():
    problem = PennTreebank().load(Settings(task="ptb", data=str(DATA)), CPU)
    assert problem.about == {
        "source": "train: ptb.valid.txt; valid: the first half of ptb.test.txt; test: its second half",
        "level": "char",
        "symbols": 50,
        "streams": 20,
        "window": 70,
        "train": 399_782,
        "valid": 224_972,
        "test": 224_973,
    }
    assert problem.steps == 286
    net = problem.network()
    assert sum(p.numel() for p in net.parameters()) == 171_650
    assert sum(p.numel() for p in alrao.Alrao(net, 6).parameters()) == 196_900


@needs_ptb
def test_words_of_the_usual_files():
    problem = PennTreebank().load(Settings(task="ptb", data=str(DATA), level="word"), CPU)
    assert problem.about["symbols"] == 6_022
    assert problem.about["train"] == 73_760


# Problems


def test_settings_reach_the_problem(tmp_path):
    text = "".join(chr(ord("a") + i % 7) for i in range(4000))
    problem = problem_of(text, tmp_path, batch=5, train_size=1000, dropout=0.5, width=0.1)
    inputs, targets = next(problem.batches(1))
    assert inputs.shape == (5, WINDOW)
    assert targets.shape == (5 * WINDOW,)
    assert problem.about["train"] == 1000
    assert problem.steps == 3
    net = problem.network()
    assert net.dropout.p == 0.5
    assert net.embedding.weight.shape == (7, 10)
    plain = problem_of(text, tmp_path)
    assert plain.network().dropout.p == 0.2
    assert plain.network().embedding.weight.shape == (7, 100)
    assert next(plain.batches(1))[0].shape == (20, WINDOW)
    assert problem_of(text, tmp_path, dropout=0.0).network().dropout.p == 0
    assert problem_of(text, tmp_path, dropout_everywhere=True).network().lstm.dropout == 0.2


def test_the_order_is_that_of_the_file_whatever_the_seed_and_epoch(tmp_path):
    problem, other = (problem_of(LINE * 200, tmp_path, seed=seed) for seed in (0, 1))
    assert listed(problem.batches(1)) == listed(other.batches(7))
    assert listed(problem.batches(3, start=2)) == listed(problem.batches(3))[2:]


def test_data_is_known_by_its_content(tmp_path):
    problem = problem_of(LINE * 20, tmp_path)
    assert problem_of(LINE * 20, tmp_path, seed=3).identity == problem.identity
    assert problem_of(LINE * 19 + LINE.replace("q", "k"), tmp_path).identity != problem.identity


def test_texts_too_short_for_the_streams(tmp_path):
    message = check_refusal(problem_of, "a" * 200, tmp_path)
    assert f"{tmp_path / 'own.txt'}: 10 symbols in the valid part are too few for 20 streams" in message
    message = check_refusal(problem_of, "a" * 1000, tmp_path, batch=900)
    assert "900 symbols in the train part are too few for 900 streams: a longer text or a smaller" in message


def test_a_text_must_be_named(tmp_path):
    assert "--data FILE" in check_refusal(Text().load, Settings(task="text"), CPU)
    assert "is a directory" in check_refusal(Text().load, Settings(task="text", data=str(tmp_path)), CPU)


def test_characters_unseen_in_training(tmp_path):
    problem = problem_of("ab" * 900 + "äß" * 100, tmp_path)
    assert problem.symbols == ["a", "b", "<unk>"]
    assert {symbol for inputs, _ in problem.evaluation("test") for symbol in inputs.flatten().tolist()} == {2}


def test_words_of_a_text_of_ones_own(tmp_path):
    problem = problem_of(("to be or not to be\n" * 9 + "once\n") * 30 + "new words\n", tmp_path, level="word")
    assert set(problem.symbols) == {"to", "be", "or", "not", "once", "<eos>", "<unk>"}


@pytest.fixture
def problem(tmp_path):
    return problem_of(LINE * 250, tmp_path, batch=4, width=0.2, train_size=4 * 200 + 1)


def test_the_state_is_carried_over(problem):
    net = problem.network().eval()
    whole, _ = net(torch.cat([inputs for inputs, _ in problem.batches(1)], 1))
    carry, pieces = None, []
    for inputs, _ in problem.batches(1):
        outputs, carry = problem.forward(net, inputs, carry)
        pieces.append(outputs.view(4, -1, outputs.shape[-1]))
    assert len(pieces) == 3
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    assert isinstance(carry, tuple)
    assert [type(each) for each in carry] == [torch.Tensor] * 2
    assert not any(each.requires_grad for each in carry)


def test_the_state_matters_to_the_outputs(problem):
    # Without this, the test before could pass with a state that is ignored.
    net = problem.network().eval()
    batches = list(problem.batches(1))
    _, carry = problem.forward(net, batches[0][0], None)
    with_state, without = (problem.forward(net, batches[1][0], each)[0] for each in (carry, None))
    assert not torch.allclose(with_state, without, atol=1e-4)


def test_an_alrao_model_gives_log_probabilities_in_a_row(problem):
    model = alrao.Alrao(problem.network(), 6)
    optimizer = alrao.SGD(model, PennTreebank.interval)
    carry = None
    for inputs, targets in problem.batches(1):
        outputs, carry = problem.forward(model, inputs, carry)
        assert isinstance(outputs, LogProbs)
        assert outputs.shape == (len(targets), len(problem.symbols))
        torch.testing.assert_close(outputs.exp().sum(-1), torch.ones(len(targets)))
        loss = problem.loss(outputs, targets)
        torch.testing.assert_close(loss, F.nll_loss(outputs.as_subclass(torch.Tensor), targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert [type(each) for each in carry] == [torch.Tensor] * 2
    assert model.posterior.std() > 0


@pytest.mark.parametrize("with_alrao", [False, True])
def test_an_epoch_resumed_in_its_middle_ends_at_the_same_bits(problem, with_alrao):
    def fresh():
        torch.manual_seed(3)
        net = problem.network()
        if with_alrao:
            model = alrao.Alrao(net, 3)
            return model, alrao.SGD(model, PennTreebank.interval)
        return net, torch.optim.SGD(net.parameters(), 1.0, momentum=0.9)

    def go_on(model, optimizer, carry, start, stop=None):
        for inputs, targets in list(problem.batches(1, start))[:stop]:
            outputs, carry = problem.forward(model, inputs, carry)
            optimizer.zero_grad()
            problem.loss(outputs, targets).backward()
            optimizer.step()
        return carry

    model, optimizer = fresh()
    carry = go_on(model, optimizer, None, 0, 1)
    file = io.BytesIO()
    state = [model.state_dict(), optimizer.state_dict(), carry, torch.get_rng_state()]
    torch.save(copy.deepcopy(state), file)
    end = go_on(model, optimizer, carry, 1)
    file.seek(0)
    weights, moments, carry, random = torch.load(file, weights_only=True)
    again, other = fresh()
    again.load_state_dict(weights)
    other.load_state_dict(moments)
    torch.set_rng_state(random)
    end_again = go_on(again, other, carry, 1)
    assert all(torch.equal(a, b) for a, b in zip(end, end_again, strict=True))
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def measured(problem, net, part):
    sums, carry = {}, None
    with torch.no_grad():
        for inputs, targets in problem.evaluation(part):
            outputs, carry = problem.forward(net, inputs, carry)
            for name, value in problem.score(outputs, targets).items():
                sums[name] = sums.get(name, 0.0) + float(value)
    return problem.measure(sums)


def test_measures_are_those_of_each_symbol_after_all_before_it_in_its_stream(problem):
    net = problem.network().eval()
    batches = list(problem.evaluation("valid"))
    streams = torch.cat([inputs for inputs, _ in batches], 1)
    targets = torch.cat([targets.view(len(inputs), -1) for inputs, targets in batches], 1)
    bits, right = 0.0, 0
    for stream, wanted in zip(streams, targets, strict=True):
        with torch.no_grad():
            scores, _ = net(stream[None])
        bits -= sum(log(p[w]) for p, w in zip(scores[0].softmax(-1), wanted, strict=True)) / log(2)
        right += sum(int(s.argmax() == w) for s, w in zip(scores[0], wanted, strict=True))
    count = targets.numel()
    assert len(targets) == 20
    assert measured(problem, net, "valid") == pytest.approx({"bits": bits / count, "accuracy": right / count})


def test_words_are_measured_in_nats_and_perplexity(tmp_path):
    problem = problem_of("to be or not to be\n" * 300, tmp_path, level="word", width=0.1)
    got = measured(problem, problem.network().eval(), "test")
    assert tuple(got) == problem.measures == ("loss", "perplexity", "accuracy")
    assert got["perplexity"] == pytest.approx(exp(got["loss"]))
    assert problem.measure({"loss": 1e6, "accuracy": 0, "count": 10})["perplexity"] == float("inf")


def test_alrao_learns_a_text(tmp_path):
    problem = problem_of(LINE * 150, tmp_path, width=0.3)
    model = alrao.Alrao(problem.network(), 6)
    optimizer = alrao.SGD(model, PennTreebank.interval)
    before = measured(problem, model.eval(), "test")
    model.train()
    for epoch in range(1, 26):
        carry = None
        for inputs, targets in problem.batches(epoch):
            outputs, carry = problem.forward(model, inputs, carry)
            optimizer.zero_grad()
            problem.loss(outputs, targets).backward()
            optimizer.step()
    after = measured(problem, model.eval(), "test")
    assert before["bits"] > 4
    assert after["bits"] < 2
    assert after["accuracy"] > 0.5


@needs_file("wikitext-2.test.txt")
def test_the_seed_of_a_fine_tuning_chooses_the_order_of_its_batches():
    """All its runs start from the same weights: without it they would all be the same run."""

    def first(seed, start=0):
        settings = Settings(task="finetune-wikitext", model="transformer", data=str(DATA), seed=seed)
        settings = replace(settings, train_size=20_000, valid_size=2_000, test_size=2_000)
        return next(FinetuneWikiText().load(settings, CPU).batches(1, start))[0]

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))
    assert not torch.equal(first(0), first(0, start=1))
