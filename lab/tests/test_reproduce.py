"""The paper's tables and figures made again: runs, files, and verdicts that can go either way."""

import csv
from dataclasses import replace

import pytest
from click.testing import CliRunner
from lab_support.report_runs import SGD_RATES, full_experiment, make_run
from support.needs import needs_chromium

from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.paper import checks, computed, make
from alrao_lab.paper.exhibits import EXHIBITS, Plan
from alrao_lab.records import read_runs
from alrao_lab.report.page import Report
from alrao_lab.settings import Settings
from alrao_lab.spread import Processes


@pytest.fixture
def no_images(monkeypatch):
    """Images need a browser and seconds; the names of those wanted are enough."""
    wanted = []
    monkeypatch.setattr(make, "write_images", lambda figures: wanted.extend(path.name for path in figures))
    return wanted


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def verdict_of(name, root):
    (section,) = Report.of(read_runs([root])).sections
    return EXHIBITS[name].check(section.experiment, {figure.name: figure for figure in section.figures})


def test_every_exhibit_can_be_named_on_the_command_line():
    said = CliRunner().invoke(cli, ["reproduce", "--help"]).output
    assert "{" + ",".join([*EXHIBITS, "all"]) + "}" in "".join(said.split())


@pytest.mark.parametrize("budget", ["mini", "paper"])
def test_every_exhibit_has_runs_or_a_program(budget):
    for name, exhibit in EXHIBITS.items():
        assert bool(getattr(exhibit, budget)) == (name not in ("params", "theorem"))
        assert (exhibit.check is not None) == (name not in ("params", "theorem"))


def test_the_triangle_is_about_alrao_whatever_the_default_method(tmp_path):
    runs = Plan("digits", rates=(0.1, 1.0)).runs(Settings(), [tmp_path])
    assert [str(planned.settings.method) for planned in runs.cells.values()] == ["sgd@0.1", "alrao", "sgd@1"]


# The theorem.


@pytest.fixture(scope="module")
def found():
    return computed.compute(steps=400)


def test_the_mixture_follows_the_best_copy_to_the_optimum_while_others_diverge(found):
    above = found.losses - found.optimum
    assert above["mixture"].iloc[-1] < 0.01 < above["mixture"].iloc[0]
    assert above.min().min() > 0
    wild = above.iloc[-1, 1:][[multiple > 1 for multiple in computed.MULTIPLES]]
    assert len(wild) == 3
    assert wild.min() > 0.1
    assert wild.max() > 50
    assert max(range(6), key=found.posterior.__getitem__) == 2, "0.9/λ: the fastest below the bound"


def test_the_figure_of_the_theorem_shows_every_copy(found):
    figure = make.theorem_figure(found)
    names = [trace["name"] for trace in figure.plot.data if trace.get("showlegend", True)]
    assert len(names) == 6 + 2
    assert list(figure.table.iloc[-1]) == [400, *found.losses.iloc[-1]]


def test_a_mixture_off_the_optimum_does_not_agree(found):
    good = found.losses.assign(mixture=found.optimum + 1e-9)
    assert checks.check_theorem(replace(found, losses=good)).agrees
    off = good.assign(mixture=found.optimum + 1e-3)
    assert not checks.check_theorem(replace(found, losses=off)).agrees
    tame = good.assign(**dict.fromkeys(good.columns[1:], found.optimum))
    assert not checks.check_theorem(replace(found, losses=tame)).agrees, "none diverged"


# Verdicts.


def test_verdicts_on_runs_like_the_papers(tmp_path):
    full_experiment(tmp_path)
    table = verdict_of("table1", tmp_path)
    assert table.agrees
    assert "Alrao 0.205, of SGD at the best of 7 rates 0.155" in table.why
    assert "5 of the rates do worse" in table.why
    assert verdict_of("frozen", tmp_path).agrees is None, "there is no half"


def test_alrao_far_behind_does_not_agree(tmp_path):
    for rate, loss in zip(SGD_RATES, (0.3, 0.2, 0.15, 0.15, 0.2, 2.0, 2.3), strict=True):
        make_run(tmp_path, f"sgd@{rate}", 0, loss)
    make_run(tmp_path, "alrao", 0, 1.5)
    assert verdict_of("table1", tmp_path).agrees is False


def test_a_failed_run_of_alrao_does_not_agree(tmp_path):
    full_experiment(tmp_path)
    make_run(tmp_path, "alrao", 2, 0.2, diverged=3)
    assert verdict_of("table1", tmp_path).agrees is False


def test_too_few_runs_are_no_verdict(tmp_path):
    make_run(tmp_path, "alrao", finished=False, epochs=1)
    for name, exhibit in EXHIBITS.items():
        if exhibit.check is not None and name != "posterior":
            assert verdict_of(name, tmp_path).agrees is None, name


@pytest.mark.parametrize(("loss", "agrees"), [(0.3, True), (0.2, False), (0.9, False)])
def test_alrao_on_adam_trains_well_and_tests_badly(tmp_path, loss, agrees):
    """The training loss of these runs is half the test loss."""
    for method, own in (("adam", 0.25), ("adam@0.01", 0.35), ("adam@0.1", 1.8), ("alrao-adam", loss)):
        make_run(tmp_path, method, 0, own)
    assert verdict_of("adam", tmp_path).agrees is agrees


@pytest.mark.parametrize(("half", "agrees"), [(0.32, True), (1.0, False)])
def test_frozen_features(tmp_path, half, agrees):
    for fraction, loss in ((0, 2.0), (0.5, half), (1, 0.3)):
        make_run(tmp_path, f"frozen@0.1:{fraction}", 0, loss)
    assert verdict_of("frozen", tmp_path).agrees is agrees


@pytest.mark.parametrize(("wide", "agrees"), [(0.25, True), (2.2, False)])
def test_the_triangle(tmp_path, wide, agrees):
    rates = ("0.001", "0.01", "0.1", "1")
    for i, low in enumerate(rates):
        make_run(tmp_path, f"sgd@{low}", 0, 0.2 if low == "0.1" else 2.3)
        for j, high in enumerate(rates[i + 1 :], i + 1):
            contains = i <= 2 <= j
            loss = (0.3 if j - i == 1 else wide) if contains else 2.2
            make_run(tmp_path, "alrao", 0, loss, lr=f"{low}:{high}")
    verdict = verdict_of("triangle", tmp_path)
    assert verdict.agrees is agrees, verdict
    assert "of 5 intervals that contain a rate at which SGD works" in verdict.why


# Files.


def test_the_parameters_are_the_papers(tmp_path, no_images):
    words = ["reproduce", "params", "--figures", str(tmp_path / "figures"), "--out", str(tmp_path / "runs")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    rows = read_csv(tmp_path / "figures" / "params.csv")
    assert rows[1] == ["GoogLeNet", "6.166", "6.258", "10", "6.166", "6.258"]
    assert all(row[1:3] == row[4:] for row in rows[1:])
    assert "**Agrees.**" in (tmp_path / "figures" / "README.md").read_text()
    assert (tmp_path / "runs" / "reproduce.html").exists()


def test_a_name_that_does_not_exist_gets_a_suggestion():
    done = CliRunner().invoke(cli, ["reproduce", "triangel"])
    assert isinstance(done.exception, LabError)
    assert "triangle" in str(done.exception)


def test_missing_data_stops_that_exhibit_alone(tmp_path, no_images):
    common = Settings(data=str(tmp_path / "nothing"))
    places = [tmp_path / "runs"], tmp_path / "figures", tmp_path / "page.html"
    made, failed = make.reproduce(["curves", "params"], common, *places, lambda runs: runs.run())
    assert list(failed) == ["curves"]
    assert [shown.exhibit.name for shown in made] == ["params"]
    assert "Not made: " in (tmp_path / "figures" / "README.md").read_text()


@pytest.mark.slow
def test_runs_are_made_once_and_end_as_files(tmp_path, no_images, monkeypatch):
    small = Plan("digits", "alrao,sgd", 1, settings={"epochs": 1})
    monkeypatch.setitem(EXHIBITS, "curves", replace(EXHIBITS["curves"], mini=(small,)))
    ran = []

    def run(runs):
        ran.append(sum(one.result is None for one in runs.runs))
        runs.run(Processes(2))

    def again():
        places = [tmp_path / "runs"], tmp_path / "figures", tmp_path / "page.html"
        return make.reproduce(["curves"], Settings(), *places, run)

    [shown], _ = again()
    assert list(shown.figures) == ["curves-digits-mlp", "curves-digits-mlp-valley"]
    assert no_images == ["curves-digits-mlp.svg", "curves-digits-mlp-valley.svg"]
    rows = read_csv(tmp_path / "figures" / "curves-digits-mlp.csv")
    assert rows[0] == ["method", "seed", "epoch", "train loss", "test loss"]
    assert {row[0] for row in rows[1:]} >= {"Alrao", "SGD 0.1"}
    again()
    assert ran == [8, 0]


def test_without_a_browser_the_error_says_what_is_needed(tmp_path, monkeypatch, found):
    pytest.importorskip("kaleido")
    from choreographer.browsers.chromium import Chromium

    monkeypatch.setattr(Chromium, "find_browser", lambda **_: None)
    with pytest.raises(LabError, match="need Chromium or Chrome"):
        make.write_images({tmp_path / "theorem.svg": make.theorem_figure(found)})


@pytest.mark.slow
@needs_chromium
def test_images_are_svg(tmp_path, found):
    pytest.importorskip("kaleido")
    make.write_images({tmp_path / "theorem.svg": make.theorem_figure(found)})
    text = (tmp_path / "theorem.svg").read_text()
    assert text.startswith("<svg")
    assert "loss above the optimum" in text


def test_the_page_keeps_what_was_made_before(tmp_path, no_images, monkeypatch, found):
    monkeypatch.setattr(make, "compute", lambda: found)
    places = [tmp_path / "runs"], tmp_path / "figures", tmp_path / "page.html"
    for names in (["theorem"], ["params"], ["params"]):
        make.reproduce(names, Settings(), *places, lambda runs: None)
    text = (tmp_path / "figures" / "README.md").read_text("utf-8")
    assert text.count("## Numbers of parameters") == 1
    assert text.count("![One good rate is enough](theorem.svg)") == 1
    assert text.index("## Numbers of parameters") < text.index("## One good rate")
    assert no_images == ["theorem.svg"]


def test_a_run_that_fails_is_named(tmp_path, no_images, monkeypatch):
    small = Plan("digits", "alrao", 1, settings={"epochs": 1})
    monkeypatch.setitem(EXHIBITS, "curves", replace(EXHIBITS["curves"], mini=(small,)))

    def run(runs):
        runs.failed = {one.path: "MemoryError: all of it" for one in runs.runs}

    places = [tmp_path / "runs"], tmp_path / "figures", tmp_path / "page.html"
    _, failed = make.reproduce(["curves"], Settings(), *places, run)
    assert "MemoryError: all of it" in failed["curves"]
    assert "Not made: " in (tmp_path / "figures" / "README.md").read_text("utf-8")
