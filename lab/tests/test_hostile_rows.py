"""One damaged or hostile row of a file of results: the others are shown, and a sentence names it."""

import copy
import dataclasses
import io
import json
import lzma
import random
import re

import pytest
from lab_support.report_runs import FEATURES, make_run
from rich.console import Console

from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.records import find_runs, keep, read_rows, read_runs, write_rows
from alrao_lab.render.markdown import page
from alrao_lab.render.terminal import comparison_table
from alrao_lab.report.page import Report
from alrao_lab.settings import Settings
from alrao_lab.table import experiments

NAMES = ["alrao", "adam", "sgd@0.1", "sgd@1", "sgd@10"]
DEEP = 100_000


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Five good rows."""
    root, found = tmp_path_factory.mktemp("runs"), {}
    for method in NAMES:
        features = FEATURES if method == "alrao" else None
        path = make_run(root, method, features=features, diverged=2 if method == "sgd@10" else None)
        row = {"run": f"digits/mlp/{method}", "historical": False, "features": features or []}
        row |= {name: json.loads((path / f"{name}.json").read_text()) for name in ("config", "result")}
        row["config"]["settings"] = dataclasses.asdict(Settings(**row["config"]["settings"]))
        row["metrics"] = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        found[row["run"]] = row
    return found


def write(path, lines):
    """A file of results with these lines, rows or text."""
    text = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_bytes(lzma.compress("\n".join(text).encode("utf-8", "surrogatepass"), preset=1))
    return path


def shown(path):
    """The labels and the remarks, after every way of showing runs was tried."""
    reading = read_runs([path])
    found = experiments(reading)
    for experiment in found:
        if len(experiment.ended):
            Console(file=io.StringIO(), width=100).print(comparison_table(experiment))
    page([experiment for experiment in found if len(experiment.ended)]).encode()
    Report.of(reading).html().encode()
    return {name for experiment in found for name in experiment.methods.index}, reading.left_out


def places(value, path=()):
    """The way to each value inside a row."""
    yield path
    if len(path) < 5:
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value[:3])
            if isinstance(value, list)
            else ()
        )
        for key, inner in items:
            yield from places(inner, (*path, key))


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


POISON = [
    None, True, -1, 0, 2.5, 1e308, -1e308, 10**400, float("nan"), float("inf"),
    "", "x", "<script>", "±", "loss ±", "\0", "\ud800", "a|b\nc", "[/b]",
    [], {}, [None], ["loss", "loss"], ["±"], {"loss": "x"}, {"loss ±": 1, "loss": 1}, {"a": {"b": [1]}},
    nested(300), nested(900), {"name": 3}, {"low": "a", "high": None},
]  # fmt: skip


def poisoned(rows, seed):
    """The rows with one value of one of them changed or removed; the name of that one."""
    generator, changed = random.Random(seed), copy.deepcopy(list(rows.values()))
    row = generator.choice(changed)
    name = row["run"]
    *way, last = generator.choice([path for path in places(row) if path])
    inside = row
    for key in way:
        inside = inside[key]
    if generator.random() < 0.2:
        del inside[last]
    else:
        inside[last] = generator.choice(POISON)
    return changed, name


@pytest.mark.parametrize("start", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 40))])
def test_one_changed_value_in_one_row_stops_neither_table_nor_report(rows, tmp_path, start):
    every, _ = shown(write(tmp_path / "good.jsonl.xz", rows.values()))
    assert len(every) == 5
    for seed in range(start, start + 20):
        changed, name = poisoned(rows, seed)
        labels, _ = shown(write(tmp_path / f"{seed}.jsonl.xz", changed))
        others = {label for label in every if label.lower().replace(" ", "@") != name.rpartition("/")[2]}
        assert others <= labels, f"seed {seed}"


LINES = {
    "no JSON": "{",
    "no object": "[1]",
    "a number": "3",
    "no name": {"config": {}},
    "a name that is none": {"run": 3},
    "nothing but a name": {"run": "digits/mlp/x"},
    "deep": '{"run": ' + "[" * DEEP + "]" * DEEP + "}",
    "deep where objects are": '{"run": "digits/mlp/x", "config": ' + '{"a":' * DEEP + "1" + "}" * (DEEP + 1),
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_damaged_line_is_named_and_the_others_are_shown(rows, tmp_path, line, capsys):
    good = list(rows.values())
    path = write(tmp_path / "some.jsonl.xz", [*good[:2], line, *good[2:]])
    labels, left_out = shown(path)
    assert len(labels) == 5
    assert [str(path) in remark for remark in left_out] == [True]
    cli.main(["table", str(path)], standalone_mode=False)
    said = capsys.readouterr()
    assert "SGD 0.1" in said.out
    assert str(path) in said.err


def test_a_file_with_a_damaged_line_is_not_written_over(rows, tmp_path):
    """What cannot be read would be lost."""
    path = write(tmp_path / "digits-mlp.jsonl.xz", [*rows.values(), "{"])
    before = path.read_bytes()
    with pytest.raises(LabError, match=r"is damaged \(line 6: .*restore it from version control"):
        keep([tmp_path / "runs"], tmp_path)
    assert path.read_bytes() == before


def test_a_file_that_unpacks_to_gigabytes_is_refused(rows, tmp_path):
    path = tmp_path / "bomb.jsonl.xz"
    packer, block = lzma.LZMACompressor(preset=0), b" " * 2**20
    with path.open("wb") as file:
        for _ in range(257):
            file.write(packer.compress(block))
        file.write(packer.flush())
    assert path.stat().st_size < 100_000
    write(tmp_path / "good.jsonl.xz", rows.values())
    reading = read_runs([tmp_path])
    assert len(reading.records) == 5
    assert reading.left_out == [f"{path} unpacks to more than 256 MB: it is no file of results"]


def test_good_rows_are_read_as_they_were_written(rows, tmp_path):
    write_rows(tmp_path / "a.jsonl.xz", rows)
    assert read_rows(tmp_path / "a.jsonl.xz") == rows
    assert len(list(find_runs([tmp_path]))) == 5
    two = (tmp_path / "a.jsonl.xz").read_bytes() + lzma.compress(b'{"run": "a"}\n')
    (tmp_path / "b.jsonl.xz").write_bytes(two)  # as `cat` joins files
    reading = read_runs([tmp_path / "b.jsonl.xz"])
    assert len(reading.records) == 5


def test_names_are_text_in_the_markdown_page(rows, tmp_path):
    changed = copy.deepcopy(list(rows.values()))
    for row in changed:
        row["config"]["settings"] |= {
            "former": "",
            "zoom": "<script>alert(1)</script>",
            "model": "a\n\n<b>|*c*",
        }
        row["config"]["data"]["source"] = "[x](javascript:alert(1))"
        row["result"]["measures"] = ["<i>loss</i>"]
        for part in ("valid", "test"):
            row["result"][part] = {"<i>loss</i>": 0.5}
    path = write(tmp_path / "a.jsonl.xz", changed)
    cli.main(["table", str(path), "--markdown", str(tmp_path / "page.md")], standalone_mode=False)
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "script" in text, "shown, as text"
    outside = re.sub(r"(`+)[^\n]*?\1", "", text)  # code, in which nothing is read
    assert not re.findall(r"(?<!\\)<", outside)
    assert "\\[x\\](javascript" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = next(line for line in lines if "behind SGD" in line)
    ours = next(line for line in lines if "zoom" in line and line.startswith("| **"))
    assert re.sub(r"\\.", "", ours).count("|") == heads.count("|")


def test_a_result_that_holds_nothing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits", "--epochs", "1", "--train-size", "64"]
    cli.main(words, standalone_mode=False)
    [directory] = find_runs([tmp_path / "runs"])
    good = (directory.path / "result.json").read_text()
    for content in ("{}", '{"status": "finished"}', '{"status": 3, "measures": ["loss"]}', "[" * DEEP):
        (directory.path / "result.json").write_text(content)
        with pytest.raises(LabError, match=r"result\.json is damaged .*: delete the run's directory to run"):
            cli.main(words, standalone_mode=False)
    (directory.path / "result.json").write_text('{"status": "finished", "measures": ["loss"], "test": [1]}')
    cli.main(words, standalone_mode=False)
    (directory.path / "result.json").write_text(good)
    lines = (directory.path / "metrics.jsonl").read_text()
    for content in ('{"epoch": 1, "valid": 3}', '{"epoch": []}', '{"epoch": 1, "test": {"loss": "x"}}'):
        (directory.path / "metrics.jsonl").write_text(lines + content)
        cli.main(words, standalone_mode=False)
    assert "test, at the best epoch on validation (1): loss" in capsys.readouterr().out
