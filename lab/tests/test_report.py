"""The report: its figures show what the runs say, and whatever is on the disk, the page is made."""

import json
import re
import time
from math import log10
from statistics import mean

import pandas as pd
import pytest
from click.testing import CliRunner
from lab_support.report_runs import FEATURES, SGD_LOSSES, SGD_RATES, drawn, full_experiment, make_run

from alrao_lab.cli.app import cli
from alrao_lab.records import read_runs
from alrao_lab.report.page import Report, write_report

SIX_MEGABYTES = 6_000_000


def report_of(*roots):
    return Report.of(read_runs(roots))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of(full_experiment(tmp_path_factory.mktemp("runs")))


@pytest.fixture
def figures(report):
    (section,) = report.sections
    return {figure.name: figure for figure in section.figures}


def traces(figure):
    return {(trace.name, trace.xaxis): trace for trace in drawn(figure) if trace.showlegend is not False}


def lines_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


# What is drawn.


def test_every_figure_of_the_paper_is_there(figures):
    assert list(figures) == ["curves", "valley", "posterior", "triangle", "adam", "frozen", "features"]
    for figure in figures.values():
        assert len(figure.look_for) > 100
        assert figure.command.startswith("alrao ")
        assert len(figure.table)


def test_curves_are_the_runs_numbers_and_their_means(report, figures):
    shown = [trace for trace in drawn(figures["curves"]) if trace.name == "Alrao" and trace.xaxis == "x2"]
    singles, means = [t for t in shown if t.line.width == 1], [t for t in shown if t.line.width == 4]
    records = report.sections[0].experiment.records("Alrao")
    seeds = [[line["test"]["loss"] for line in lines_of(record.run.path)] for record in records]
    assert [list(trace.y) for trace in singles] == [pytest.approx(one, rel=1e-3) for one in seeds]
    average = [mean(pair) for pair in zip(*seeds, strict=True)]
    assert list(means[0].y) == pytest.approx(average, rel=1e-4)
    assert list(means[0].x) == [1, 2, 3, 4]


def test_alrao_stands_out_and_the_rates_of_sgd_are_an_ordered_scale(figures):
    shown = traces(figures["curves"])
    widths = {name: trace.line.width for (name, _), trace in shown.items()}
    assert max(widths, key=widths.get) == "Alrao"
    colours = [shown[f"SGD {rate}", "x"].line.color for rate in SGD_RATES]
    assert len(set(colours)) == len(colours)
    blue = [int(colour[5:], 16) for colour in colours]
    assert blue[1:] == sorted(blue[1:], reverse=True), "from blue to gold, blue only wanes"
    ranks = {name: trace.legendrank for (name, _), trace in shown.items()}
    assert sorted(ranks, key=ranks.get)[:8] == ["Alrao", *(f"SGD {rate}" for rate in SGD_RATES)]


def test_where_a_run_diverged_is_marked(figures):
    crosses = [trace for trace in drawn(figures["curves"]) if trace.marker.symbol == "x"]
    assert {(trace.name, trace.hovertemplate) for trace in crosses} == {("SGD 10", "diverged at step 64")}


def test_the_valley_is_the_test_losses_with_alrao_across(figures):
    shown = {trace.name: trace for trace in drawn(figures["valley"])}
    sgd = shown["SGD at one rate"]
    assert list(sgd.x) == [float(rate) for rate in SGD_RATES[:-1]]
    losses = [*SGD_LOSSES[:5], mean([0.15, 0.16])]
    assert list(sgd.y) == pytest.approx(losses)
    assert list(shown["diverged"].x) == [10.0]
    across = shown["Alrao, no rate chosen"]
    assert list(across.x) == [1e-5, 10.0]
    assert list(across.y) == pytest.approx([0.205, 0.205])
    assert list(shown["Adam at one rate"].x) == [0.001, 0.01, 0.1]


def test_the_posterior_is_drawn_against_time_with_its_winners(figures):
    figure = figures["posterior"]
    copies = [trace for trace in drawn(figure) if trace.xaxis == "x"]
    assert len(copies) == 10
    assert figure.plot.layout["xaxis"]["type"] == "log"
    assert copies[7].y[0] == 0.55
    assert copies[5].y[-1] == 0.55
    winner = next(trace for trace in drawn(figure) if trace.xaxis == "x2")
    rates = [1e-5 * 1e6 ** (j / 9) for j in range(10)]
    assert list(winner.y) == pytest.approx([rates[7], rates[5], rates[5]], rel=1e-4)
    assert list(winner.x) == [1, 65, 121]


def test_the_triangle_has_a_cell_for_every_interval_and_sgd_on_the_diagonal(figures):
    heat = [trace for trace in drawn(figures["triangle"]) if trace.type == "heatmap"]
    assert len(heat) == 2
    test = heat[1]
    rates = list(test.x)
    assert rates == ["1e-05", "0.001", "0.1", "1", "10"]

    def cell(low, high):
        return test.z[rates.index(high)][rates.index(low)]

    assert cell("0.001", "10") == pytest.approx(log10(0.3), abs=1e-4)
    assert cell("0.1", "0.1") == pytest.approx(log10(0.2), abs=1e-4)
    assert cell("1e-05", "10") == pytest.approx(log10(0.205), abs=1e-4)
    assert cell("10", "0.1") is None
    marks = [trace for trace in drawn(figures["triangle"]) if trace.name == "diverged"]
    assert {("1", "10"), ("10", "10")} == set(zip(marks[1].x, marks[1].y, strict=True))


def test_adams_rates_include_its_default(figures):
    names = {name for name, _ in traces(figures["adam"])}
    assert names == {"Adam 0.001 (default)", "Adam 0.01", "Adam 0.1", "Alrao-Adam"}


def test_the_fraction_of_trained_features(figures):
    test = next(trace for trace in drawn(figures["frozen"]) if trace.name.startswith("test"))
    assert list(test.x) == [0, 0.25, 1]
    assert test.y[-1] == pytest.approx(0.3)


def test_features_are_drawn_by_rate_and_relative_movement(report, figures):
    first = drawn(figures["features"])[0]
    assert list(first.x) == FEATURES[0]["rates"]
    assert list(first.y) == [1e-6, 1e-3, 0.1, 5, 100]
    assert "1 features are no longer finite" in " ".join(figures["features"].notes)


def test_the_table_has_the_rows_of_the_papers_and_what_a_search_costs(report):
    table = report.sections[0].comparison
    rows = {cells[0]: cells for cells in table.main.to_numpy().tolist()}
    assert list(rows) == ["Alrao", "SGD 1, best of 7 rates", "Adam", "Alrao-Adam", "Prodigy"]
    assert rows["Alrao"][1:4] == ["0.205 ± 0.007", "93.2 ± 0.2", "2"]
    assert rows["SGD 1, best of 7 rates"][-2:] == ["7", "26 s (6.5× Alrao)"]
    assert table.alrao == "Alrao"
    assert report.sections[0].experiment.failures == [
        "Alrao (1:10), seed 0: diverged at step 32",
        "SGD 10, seed 0: diverged at step 64",
    ]
    assert table.headline.startswith("SGD 1 (best of 7 rates) has the lowest test loss, 0.155; next is Alrao")


def test_returns_are_better_the_higher_they_are(tmp_path):
    for method, value in (("alrao", -150.0), ("sgd@0.1", -300.0), ("sgd@0.01", -200.0), ("sgd@1", -900.0)):
        path = make_run(tmp_path, method, task="pendulum", model="mlp")
        lines = lines_of(path)
        for line in lines:
            line["train"] = {"loss": 1.0, "return": value - 50}
            line["valid"], line["test"] = {"return": value}, {"return": None}
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = json.loads((path / "result.json").read_text())
        result |= {"measures": ["return"], "valid": {"return": value}, "test": {"return": value - 1}}
        (path / "result.json").write_text(json.dumps(result))
    (section,) = report_of(tmp_path).sections
    assert section.comparison.main["method"].iloc[1] == "SGD 0.01, best of 3 rates"
    assert section.comparison.best == "Alrao"
    curves = section.figures[0]
    assert curves.title == "Returns during training"
    alrao = [trace for trace in drawn(curves) if trace.name == "Alrao"]
    assert [list(trace.y) for trace in alrao] == [[-200.0] * 4, [-150.0] * 4]
    assert section.comparison.headline.startswith("Alrao has the highest test return, -151; next is SGD 0.01")


def test_axes_say_what_they_are(figures):
    said = {
        name: [figure.plot.layout[f"{axis}axis{n}"]["title"]["text"] for n in ("", "2") for axis in "xy"
               if f"{axis}axis{n}" in figure.plot.layout]
        for name, figure in figures.items()
    }  # fmt: skip
    assert said["curves"] == said["adam"] == ["epoch", "training loss", "epoch", "test loss"]
    assert said["valley"] == ["learning rate", "test loss"]
    assert said["posterior"] == ["step", "weight of each copy", "step", "rate of the heaviest copy"]
    assert said["frozen"] == ["fraction of features trained", "loss"]


# The page.


def test_the_page_is_one_file_under_six_megabytes(tmp_path):
    target = tmp_path / "page.html"
    write_report(read_runs([full_experiment(tmp_path / "runs")]), target)
    text = target.read_text("utf-8")
    assert target.stat().st_size < SIX_MEGABYTES
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"""(src|href)=["']?(?!#)""", own), "nothing is loaded from elsewhere"
    assert "default-src 'none'" in text


def test_the_command_writes_where_it_is_told(tmp_path):
    full_experiment(tmp_path / "runs")
    target = tmp_path / "there" / "page.html"
    done = CliRunner().invoke(cli, ["report", str(tmp_path / "runs"), "--out", str(target)])
    assert done.exit_code == 0, done.output
    assert str(target) in done.output.replace("\n", "")
    assert target.stat().st_size > 1000


def test_a_single_run_is_a_report_too(tmp_path):
    path = make_run(tmp_path, "alrao")
    report = report_of(path)
    assert report.runs == 1
    assert report.sections[0].comparison.headline == "", "nothing is compared"
    assert report.sections[0].comparison.best is None, "the best of one"
    (curves,) = [each for each in report.sections[0].figures if each.name == "curves"]
    assert "thick red line is Alrao" in curves.look_for
    assert "SGD" not in curves.look_for
    both = report_of(path, make_run(tmp_path, "adam"))
    assert both.runs == 2
    assert both.sections[0].comparison.best is not None


@pytest.mark.slow
def test_compare_ends_by_writing_a_report(tmp_path):
    words = ["compare", "digits", "--methods", "alrao,sgd@0.1", "--epochs", "1", "--seeds", "1"]
    place = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "none")]
    done = CliRunner().invoke(cli, words + place)
    assert done.exit_code == 0, done.output
    page = tmp_path / "runs" / "report-digits.html"
    assert f"report: {page}" in done.output.replace("\n", "")
    assert read_runs([tmp_path / "runs"]).left_out == []


def test_a_search_whose_rate_never_changed_has_not_ended():
    from alrao_lab.report.copies import end_of

    assert end_of(pd.Series([6e-6] * 5, range(1, 6))) is None
    assert end_of(pd.Series([1e-5, 2e-5, 3e-5], range(1, 4))) is None
    assert end_of(pd.Series([1e-5, 2e-5, 1e-3, 1e-3], range(1, 5))) == 3


# Whatever is on the disk, the page is made and says what it left out.


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
