"""From data to a model that is used: train, predict, export, and what other programs make of the export."""

import json
import re
import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from lab_support.pictures import class_folder

from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.trained import Trained, latest

pytest.importorskip("onnxscript", reason="needs alrao-lab[onnx]")


def table(rows, seed=0):
    """Two kinds that two columns tell apart, with missing numbers, a column of words and one of names."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, 2, rows)
    frame = pd.DataFrame({"length": kind + 0.2 * random.standard_normal(rows), "width": random.random(rows)})
    frame.loc[::10, "width"] = np.nan
    frame["colour"] = np.where(kind == random.integers(0, 5, rows), "red", "blue")
    frame["name"] = [f"flower {number}" for number in range(rows)]
    frame["price"] = 1000 + 100 * frame["length"]
    frame["kind"] = np.array(["daisy", "rose"])[kind]
    return frame


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command in a directory of its own, and return what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALRAO_CACHE", str(tmp_path / "cache"))

    def called(*words):
        done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return called


def run_onnx(folder, inputs):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["alrao"])
    (name,) = [each.name for each in session.get_inputs()]
    return about, session.run(None, {name: inputs})[0]


def check_card(folder, monkeypatch):
    """The code on the card runs, and agrees with itself."""
    monkeypatch.chdir(folder)
    card = (folder / "README.md").read_text("utf-8")
    assert len(card.splitlines()) < 70, "one page"
    found = [{}, {}]
    first, second = re.findall(r"```python\n(.*?)```", card, re.S)
    for code, names in zip((first, second), found, strict=True):
        exec(compile(code, "card", "exec"), names)
    torch.testing.assert_close(torch.from_numpy(found[0]["predictions"]), found[1]["predictions"].detach())
    return card


@pytest.mark.slow
def test_from_a_table_of_classes_to_onnxruntime(call, tmp_path, monkeypatch):
    frame = table(150)
    frame.to_csv("flowers.csv", index=False)
    said = call("train", "flowers.csv", "--target", "kind", "--epochs", "25", "--threads", "1")
    assert "kind has classes" in said
    assert "target kind (2 classes: daisy, rose)" in said
    assert "missing, set to the mean: width (15)" in said
    assert "left out, different words: name (150)" in said
    new = table(40, seed=1)
    new.drop(columns="kind").to_csv("new.csv", index=False)
    assert "missing, set to the mean: width 4" in call("predict", "new.csv")
    predicted = pd.read_csv("predictions.csv")
    assert list(predicted.columns[:3]) == ["length", "width", "colour"]
    accuracy = (predicted["predicted kind"] == new["kind"]).mean()
    assert accuracy > 0.9
    new.to_csv("with.csv", index=False)
    assert f"accuracy {100 * accuracy:.1f} % on the 40 rows that have kind" in call("predict", "with.csv")
    call("export", "--to", "made")
    # What onnxruntime makes of raw columns is what `alrao predict` wrote, labels from the file.
    about, _ = run_onnx(tmp_path / "made", np.zeros((1, 4)))
    columns = [
        new[column["name"]].map({word: place for place, word in enumerate(column["words"])})
        if "words" in column
        else new[column["name"]]
        for column in about["columns"]
    ]
    codes = np.stack(columns, 1).astype(np.double)
    _, probabilities = run_onnx(tmp_path / "made", codes)
    assert [about["labels"][best] for best in probabilities.argmax(1)] == predicted["predicted kind"].tolist()
    np.testing.assert_allclose(probabilities.max(1), predicted["probability"], atol=1e-4)
    model = torch.export.load(tmp_path / "made" / "model.pt2").module()
    torch.testing.assert_close(model(torch.from_numpy(codes)).detach(), torch.from_numpy(probabilities))
    card = check_card(tmp_path / "made", monkeypatch)
    assert "| missing, set to the mean | width (15) |" in card


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "sgd@0.1"])
def test_numbers_come_back_in_their_unit(call, tmp_path, method):
    frame = table(120).drop(columns=["kind", "name"])
    frame.to_csv("prices.csv", index=False)
    options = ["--epochs", "60", "--threads", "1", "--method", method]
    assert "price has numbers" in call("train", "prices.csv", "--target", "price", *options)
    said = call("predict", "prices.csv")
    error = float(re.search(r"root mean squared error (\S+) on the 120 rows", said)[1])
    assert error < 0.3 * frame["price"].std()
    call("export")
    trained = Trained.load(latest(tmp_path / "runs"))
    codes = trained.encoding.codes(frame.astype(str))
    _, numbers = run_onnx(tmp_path / "model", codes.numpy())
    np.testing.assert_allclose(numbers, pd.read_csv("predictions.csv")["predicted price"], rtol=1e-6)


@pytest.mark.slow
def test_images(call, tmp_path, monkeypatch):
    folder = class_folder(tmp_path / "pets", {"cat": 14, "dog": 12})
    small = ["--model", "mobilenet_v3_small", "--image-size", "32", "--workers", "0", "--batch", "8"]
    call("train", folder, "--epochs", "1", "--threads", "1", *small)
    assert "14 predictions" in call("predict", folder / "cat")
    rows = pd.read_csv("predictions.csv")
    assert set(rows["predicted class"]) <= {"cat", "dog"}
    call("export", "--formats", "onnx")
    about, out = run_onnx(tmp_path / "model", np.zeros((3, 3, 32, 32), np.uint8))
    assert (about["labels"], out.shape) == (["cat", "dog"], (3, 2))
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)


@pytest.mark.slow
def test_a_text_is_continued(call, tmp_path, monkeypatch):
    (tmp_path / "story.txt").write_text("abcd" * 400)
    call("train", "story.txt", "--epochs", "4", "--threads", "1", "--batch", "4", "--width", "0.2")
    (tmp_path / "start.txt").write_text("abcdab")
    said = call("predict", "start.txt", "--symbols", "30").splitlines()[-1]
    assert said.startswith("abcdab")
    assert len(said) == 36
    call("export")
    check_card(tmp_path / "model", monkeypatch)


def test_what_can_and_what_cannot_predict(call, tmp_path):
    with pytest.raises(LabError, match="there is no finished run in"):
        latest(tmp_path)
    with pytest.raises(LabError, match="is not the directory of a run"):
        Trained.load(tmp_path)
    call("train", "digits", "--epochs", "1", "--threads", "1")
    with pytest.raises(LabError, match="the task digits takes no data of yours"):
        Trained.load(latest(tmp_path / "runs"))
    table(60).to_csv("flowers.csv", index=False)
    call("train", "flowers.csv", "--target", "kind", "--epochs", "1", "--threads", "1")
    assert "60 predictions: predictions.csv" in call("predict", "flowers.csv")
    table(60).drop(columns="length").to_csv("short.csv", index=False)
    with pytest.raises(LabError, match=r"short.csv lacks the columns length"):
        call("predict", "short.csv")
    call("predict", "flowers.csv")
    with pytest.raises(LabError, match=r"predictions\.csv has a column 'predicted kind' already"):
        call("predict", "predictions.csv")
    (tmp_path / "empty.csv").write_text("length,width,colour,price\n")
    with pytest.raises(LabError, match=r"empty.csv has no row under its header"):
        call("predict", "empty.csv")
    (tmp_path / "large.csv").write_text("length,width,colour,price\n1,2,red,3\n1,inf,red,3\n")
    with pytest.raises(LabError, match=r"large.csv, line 3: width is beyond 1e\+100"):
        call("predict", "large.csv")
    with pytest.raises(LabError, match="60 different values of name in 60 rows, too many for classes"):
        call("train", "flowers.csv", "--target", "name")


def test_without_the_packages_of_onnx_the_other_format_is_written(call, tmp_path, monkeypatch):
    table(60).to_csv("flowers.csv", index=False)
    call("train", "flowers.csv", "--target", "kind", "--epochs", "1", "--threads", "1")
    monkeypatch.setattr("alrao_lab.export.find_spec", lambda name: None)
    said = call("export")
    assert "without ONNX, which needs onnxscript and onnxruntime: pip install 'alrao-lab[onnx]'" in said
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["README.md", "model.pt2"]
    check = (tmp_path / "model/README.md").read_text("utf-8")
    assert "onnxruntime" not in check
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LabError, match="export to ONNX needs the package onnxruntime"):
        call("export", "--formats", "onnx", "--to", "other")
    assert not (tmp_path / "other").exists()


def test_a_text_that_cannot_be_read_is_an_error_of_one_line(call, tmp_path):
    (tmp_path / "story.txt").write_text("the cat sat on the mat\n" * 200)
    small = ["--batch", "4", "--width", "0.1", "--epochs", "1", "--threads", "1", "--level", "word"]
    call("train", "story.txt", *small)
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(LabError, match=r"latin\.txt is not UTF-8"):
        call("predict", "latin.txt")
    with pytest.raises(LabError, match="is a directory"):
        call("predict", ".")
    (tmp_path / "start.txt").write_text("the cat\n")
    said = call("predict", "start.txt", "--symbols", "3").splitlines()[-1].split()
    assert said[:2] == ["the", "cat"]
    assert len(said) == 5
