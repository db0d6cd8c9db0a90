"""Whatever is on the disk, the page is made and says what it left out."""

import json
import re
import time

import pytest
from lab_support.report_runs import drawn, full_experiment, make_run

from alrao_lab.records import read_runs
from alrao_lab.report.page import Report, write_report

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


def page_of(root, tmp_path):
    target = tmp_path / "page.html"
    report = write_report(read_runs([root]), target)
    return report, target.read_text("utf-8")


@pytest.fixture
def root(tmp_path):
    """One good run, so that there is something to show."""
    make_run(tmp_path / "runs", "sgd@0.1", 0, 0.5)
    return tmp_path / "runs"


def test_a_run_in_progress_is_in_the_curves_and_not_in_the_table(root, tmp_path):
    make_run(root, "alrao", finished=False, epochs=2)
    report, text = page_of(root, tmp_path)
    (section,) = report.sections
    assert list(section.comparison.main["method"]) == ["SGD 0.1"]
    assert any(trace.name == "Alrao" for trace in drawn(section.figures[0]))
    assert "posterior" in [figure.name for figure in section.figures], "its rates follow from the settings"
    assert "not finished (epoch 2 of 4): in the curves, not in the tables" in text


def test_only_runs_in_progress(tmp_path):
    make_run(tmp_path / "runs", "alrao", finished=False)
    _, text = page_of(tmp_path / "runs", tmp_path)
    assert "No run of this experiment has ended yet." in text


def test_a_run_that_has_just_begun(root, tmp_path):
    path = make_run(root, "alrao", finished=False)
    (path / "metrics.jsonl").unlink()
    report, text = page_of(root, tmp_path)
    assert "Alrao (not there yet)" in text
    assert len(report.left_out) == 1


def test_nan_in_the_curves(root, tmp_path):
    path = make_run(root, "alrao")
    text = (path / "metrics.jsonl").read_text().splitlines()
    line = json.loads(text[1])
    line["test"], line["train"] = {"loss": float("nan")}, {"loss": float("inf")}
    text[1] = json.dumps(line)  # NaN and Infinity, which are not JSON but are written by some
    (path / "metrics.jsonl").write_text("\n".join(text) + "\n")
    report, _ = page_of(root, tmp_path)
    shown = [trace for trace in drawn(report.sections[0].figures[0]) if trace.name == "Alrao"]
    assert [list(trace.x) for trace in shown] == [[1, 3, 4], [1, 3, 4]]


def test_a_diverged_run_without_any_numbers(root, tmp_path):
    make_run(root, "sgd@10", diverged=1)
    _, text = page_of(root, tmp_path)
    assert "SGD 10, seed 0: diverged at step 32" in text
    assert "SGD 10 (diverged)" in text


def test_a_run_that_diverged_after_an_epoch_without_numbers(root, tmp_path):
    path = make_run(root, "sgd@10", diverged=5, epochs=5)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[2] |= {"train": {"loss": None}, "test": {"loss": None}}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, text = page_of(root, tmp_path)
    crosses = [trace for trace in drawn(report.sections[0].figures[0]) if trace.mode == "markers"]
    assert [list(cross.x) for cross in crosses] == [[4], [4]]
    assert "diverged at step 160" in text


@pytest.mark.parametrize("tail", ['{"epoch": 5, "tra', "\x00\x00\x00", "[1, 2]", "\udcff"])
def test_a_half_written_line(root, tmp_path, tail):
    path = make_run(root, "alrao")
    with (path / "metrics.jsonl").open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(tail)
    report, text = page_of(root, tmp_path)
    assert "metrics.jsonl is damaged from line 5 on: the rest is left out" in text
    shown = next(trace for trace in drawn(report.sections[0].figures[0]) if trace.name == "Alrao")
    assert list(shown.x) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{", "left out: config.json is damaged"),
        ("config.json", "[]", "left out: config.json is damaged (it holds no object)"),
        ("config.json", "{}", "left out: config.json has no settings"),
        ("config.json", '{"settings": {"task": "digits", "seed": 0}}', "does not have the run's method"),
        ("config.json", '{"settings": {"task": "digits", "method": 3, "seed": 0}}', "the run's method"),
        ("config.json", "\xff\xfe", "left out"),
        ("result.json", "{", "its result is left out: result.json is damaged"),
        ("result.json", '{"status": "finished"}', "its result is left out: result.json is damaged (it"),
        ("features.json", "{", "its features are left out"),
        ("features.json", "3", "its features are left out"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(root, tmp_path, name, content, said):
    path = make_run(root, "alrao")
    (path / name).write_text(content, encoding="latin-1")
    report, text = page_of(root, tmp_path)
    assert any(said in sentence for sentence in report.left_out), report.left_out
    assert str(path) in text


def test_a_run_of_an_older_version(root, tmp_path):
    path = make_run(root, "alrao")
    config = json.loads((path / "config.json").read_text())
    old = {name: config["settings"][name] for name in ("task", "model", "method", "seed", "lr", "copies")}
    config = {"settings": old}
    (path / "config.json").write_text(json.dumps(config))
    result = json.loads((path / "result.json").read_text())
    for name in ("seconds", "copy_rates", "diverged_at", "parameters", "train"):
        del result[name]
    (path / "result.json").write_text(json.dumps(result))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["posterior"], line["step"], line["valid"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, _ = page_of(root, tmp_path)
    rows = [name for section in report.sections for name in section.comparison.main["method"]]
    assert "Alrao" in rows
    assert report.left_out == []


def test_runs_that_measure_something_else_are_left_out(root, tmp_path):
    make_run(root, "adam")
    path = make_run(root, "alrao")
    result = json.loads((path / "result.json").read_text()) | {"measures": ["bits"], "valid": {"bits": 1.0}}
    (path / "result.json").write_text(json.dumps(result))
    report, _ = page_of(root, tmp_path)
    assert any("it measures bits, the others loss, accuracy" in sentence for sentence in report.left_out)


def test_odd_features_and_posteriors(root, tmp_path):
    odd = [
        3,
        {"name": "a"},
        {"name": HOSTILE, "rates": [0, "x", 1e-3], "start": [1, 1, 0], "moved": [1, 1, None]},
    ]
    path = make_run(root, "alrao", features=odd)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[0]["posterior"] = [
        3,
        [0, [0.5]],
        [1],
        [2, [0.1] * 10],
        [3, [0.5, 0.5]],
        ["x", [1]],
        [4, ["y"] * 10],
    ]
    lines[1]["posterior"] = {"a": 1}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, _ = page_of(root, tmp_path)
    assert [figure.name for figure in report.sections[0].figures] == ["curves"]
    assert sum("the posterior: " in sentence for sentence in report.left_out) == 1
    assert sum(": features: " in sentence for sentence in report.left_out) == 1


@pytest.mark.parametrize(
    "method", ["frozen@x:y", "frozen@0.1", "sgd@nan", "sgd@-1", "sgd@", "adam@1e999", "alrao-", "@", "a@b@c"]
)
def test_methods_of_another_world(root, tmp_path, method):
    path = make_run(root, method)
    backwards = make_run(root, "alrao", lr="10:1")
    make_run(root, "sgd@1")
    report, _ = page_of(root, tmp_path)
    assert f"{backwards}: left out: an interval of rates goes from low to high, got 10:1" in report.left_out
    assert len(report.sections) == 1
    shown = {record.run.path for record in report.sections[0].experiment.runs["record"]}
    readable = method in ("frozen@0.1", "sgd@", "alrao-", "@")
    assert (path in shown) == readable
    assert len(report.left_out) == (1 if readable else 2)


def test_a_figure_that_cannot_be_drawn_is_left_out_alone(root, tmp_path, monkeypatch):
    import alrao_lab.report.page as page

    def fail(experiment):
        raise ZeroDivisionError("by surprise")

    make_run(root, "sgd@1")
    monkeypatch.setattr(page, "valley", fail)
    report, text = page_of(root, tmp_path)
    assert "the valley: ZeroDivisionError: by surprise" in text
    assert [figure.name for figure in report.sections[0].figures] == ["curves"]


def test_no_runs_at_all(tmp_path):
    (tmp_path / "runs").mkdir()
    _, text = page_of(tmp_path / "runs", tmp_path)
    assert "No runs were found here" in text


def test_hostile_names_are_text(tmp_path):
    root = tmp_path / "runs" / "<b onclick=alert(1)>"
    make_run(root, "sgd@" + HOSTILE, task=HOSTILE, model=HOSTILE)
    make_run(root, "sgd@1", task=HOSTILE, model=HOSTILE)
    make_run(root, "alrao", task=HOSTILE, model=HOSTILE, lr=HOSTILE, finished=False)
    make_run(root, HOSTILE, task="digits", model=HOSTILE)
    make_run(
        root,
        "alrao",
        task="digits",
        model=HOSTILE,
        seed=7,
        features=[{"name": HOSTILE, "rates": [1], "start": [1], "moved": [1]}],
    )
    report, text = page_of(tmp_path / "runs", tmp_path)
    assert len(report.sections) == 2
    assert sum("must be a number, got" in sentence for sentence in report.left_out) == 2
    assert HOSTILE not in text
    assert "<b onclick" not in text
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert "<img" not in own
    assert "window.hacked" in own, "shown, as text"


def test_strange_text_in_names(tmp_path):
    make_run(tmp_path / "runs", "alrao", model="模型 ‮ \u2028 %{x} <br>")
    _, text = page_of(tmp_path / "runs", tmp_path)
    assert "模型" in text


@pytest.mark.slow
def test_two_thousand_runs_fit_in_bearable_time(tmp_path):
    """400 seeds of five methods, with longer curves than most."""
    root = tmp_path / "runs"
    for seed in range(400):
        for method in ("alrao", "adam", "sgd@0.01", "sgd@0.1", "sgd@1"):
            make_run(root, method, seed, 0.3, epochs=6)
    began = time.perf_counter()
    report, text = page_of(root, tmp_path)
    assert time.perf_counter() - began < 60
    assert report.runs == 2000
    assert len(text.encode()) < 6_000_000
    assert "single runs are not drawn, to keep the page small" in text


def test_seeds_that_do_not_fit_are_means_only(tmp_path, monkeypatch):
    import alrao_lab.report.page as page

    for seed in range(30):
        make_run(tmp_path / "runs", "adam", seed)
    _, text = page_of(tmp_path / "runs", tmp_path)
    assert "10 single runs are not drawn" in text
    monkeypatch.setattr(page, "LIMIT", len(text.encode()) - 3000)
    report, text = page_of(tmp_path / "runs", tmp_path)
    assert "22 single runs are not drawn, to keep the page small; their means are." in text
    assert len(drawn(report.sections[0].figures[0])) == 2 * (8 + 1)


@pytest.mark.slow
def test_many_experiments_are_cut_to_what_fits(tmp_path, monkeypatch):
    import alrao_lab.report.page as page

    for number in range(30):
        make_run(tmp_path / "runs" / str(number), "alrao", momentum=number / 100)
    whole, text = page_of(tmp_path / "runs", tmp_path)
    assert len(whole.sections) == 30
    monkeypatch.setattr(page, "LIMIT", len(text.encode()) - 20_000)
    report, shorter = page_of(tmp_path / "runs", tmp_path)
    assert len(shorter.encode()) <= page.LIMIT
    assert len(report.sections) == 30, "the tables of all"
    bare = [section for section in report.sections if not section.figures]
    assert 0 < len(bare) < 10
    assert sum("its figures, to keep the page small" in sentence for sentence in report.left_out) == len(bare)
    monkeypatch.setattr(page, "LIMIT", len(Report([], [], 0, "").html()) + 20_000)
    report, shorter = page_of(tmp_path / "runs", tmp_path)
    assert len(shorter.encode()) <= page.LIMIT
    assert 0 < len(report.sections) < 30
    assert any("the whole experiment" in sentence for sentence in report.left_out)


def test_reading_changes_nothing(tmp_path):
    root = full_experiment(tmp_path / "runs")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    Report.of(read_runs([root])).html()
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
