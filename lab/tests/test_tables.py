"""Tables from run directories: means and deviations, the best rate, what is left out, the Markdown page."""

import dataclasses
import os
import re
import statistics

import pytest
from lab_support.runs import settings
from rich.console import Console

from alrao_lab.records import locate, read_runs
from alrao_lab.render.markdown import page
from alrao_lab.render.terminal import comparison_table
from alrao_lab.report.page import Report
from alrao_lab.resolve import resolve
from alrao_lab.store import RunDirectory
from alrao_lab.table import experiments, spread

DIGITS = {"source": "scikit-learn", "classes": 10, "train": 200, "valid": 397, "test": 400}


@pytest.fixture
def make(tmp_path):
    """Writes the files of a finished run, with a loss on validation and one on test."""

    def make(method, seed=0, valid=1.0, test=1.0, *, about=None, result=None, config=None, **changes):
        wanted = resolve(settings(method=method, seed=seed, **changes))[1]
        directory = locate(wanted, str(about), [tmp_path])
        directory.write(
            "config", {"settings": {**dataclasses.asdict(wanted), **(config or {})}, "data": about or DIGITS}
        )
        directory.write("result",
            {
                "status": "finished", "diverged_at": None, "measures": ["loss", "accuracy"], "epochs": 2,
                "steps": 14, "seconds": 60.0 + seed, "best_epoch": 2,
                "train": {"loss": 0.5}, "valid": {"loss": valid, "accuracy": 0.5},
                "test": {"loss": test, "accuracy": 1 - test / 4}, **(result or {}),
            }
        )  # fmt: skip
        return directory

    make.root = tmp_path
    make.groups = lambda: grouped([tmp_path])
    return make


def grouped(roots):
    """The experiments, and what is left out."""
    reading = read_runs(roots)
    return experiments(reading), reading.left_out


DIVERGED = {"status": "diverged", "diverged_at": 17, "best_epoch": None, "valid": None, "test": None}


def shown(group, width=120):
    with open(os.devnull, "w") as nowhere:
        console = Console(width=width, record=True, file=nowhere)
        console.print(comparison_table(group))
    return console.export_text()


def cells(text):
    """The tables of a Markdown page, each a list of rows of cells."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    split = re.compile(r"(?<!\\)\|")
    return [[[c.strip() for c in split.split(row)[1:-1]] for row in b.splitlines()] for b in blocks]


def test_mean_and_deviation(make):
    losses = [0.1234, 0.2345, 0.4567]
    for seed, loss in enumerate(losses):
        make("adam", seed, test=loss)
    [group], left_out = make.groups()
    mean, deviation = statistics.mean(losses), statistics.stdev(losses)
    right = [100 * (1 - loss / 4) for loss in losses]
    assert left_out == []
    assert list(group.runs["test loss"]) == losses
    assert group.rows.loc["Adam", "test loss"] == pytest.approx(mean)
    assert f"{mean:.3f} ± {deviation:.3f}" in shown(group)
    assert f"{statistics.mean(right):.1f} ± {statistics.stdev(right):.1f}" in shown(group)
    assert group.rows.loc["Adam", "seconds"] == 61.0


def test_spread():
    nan = float("nan")
    assert spread({"x": nan, "x ±": nan}, "x") == spread({}, "x") == "–"
    assert spread({"x": 0.12345, "x ±": nan}, "x") == "0.123"
    assert spread({"x": 2.0, "x ±": 2**0.5}, "x", 2) == "2.00 ± 1.41"
    assert spread({"x": 0.6, "x ±": 0.02**0.5}, "x", 1, 100.0) == "60.0 ± 14.1"


def test_the_best_rate_is_chosen_on_validation(make):
    make("sgd@0.1", valid=0.5, test=0.9)
    make("sgd@1", valid=0.7, test=0.3)  # the better one on test
    make("sgd@10", result=DIVERGED)
    make("sgd@1", seed=1, valid=0.1, test=0.1)  # not a seed that both have
    make("alrao", test=0.95)
    [group], _ = make.groups()
    assert list(group.rows.index) == ["Alrao", "SGD 0.1"]
    best = group.rows.loc["SGD 0.1"]
    assert (best["rate"], best["searched"], best["test loss"]) == (0.1, 3, 0.9)
    assert best["search_seconds"] == 180.0
    assert list(group.grid.index) == ["SGD 0.1", "SGD 1", "SGD 10"]
    assert "SGD 0.1, best of 3" in shown(group)


def test_one_rate_of_sgd_is_one_row(make):
    make("sgd@0.1")
    make("alrao")
    [group], _ = make.groups()
    assert group.grid.empty
    assert shown(group).count("SGD 0.1") == page([group]).count("| SGD 0.1 |") == 1


def test_a_rate_that_fails_with_one_seed_is_not_the_best(make):
    make("sgd@1", seed=0, valid=0.1)
    make("sgd@1", seed=1, result=DIVERGED)
    for seed in (0, 1):
        make("sgd@0.1", seed=seed, valid=0.2)
    [group], _ = make.groups()
    assert list(group.rows.index) == ["SGD 0.1"]


def test_failures_are_never_hidden(make):
    make("adam", result=DIVERGED)
    make("adam", seed=1)
    make("sgd@0.1", result={**DIVERGED, "diverged_at": None})
    [group], _ = make.groups()
    assert group.failures == [
        "SGD 0.1, seed 0: diverged (no finite validation loss)",
        "Adam, seed 0: diverged at step 17",
    ]
    assert group.rows.loc["Adam", "test loss"] == 1.0
    assert "diverged" in shown(group)
    assert "Failed: " + "; ".join(group.failures) in page([group])


def test_order_and_labels(make):
    make("prodigy")
    make("alrao-adam")
    make("alrao", lr="1e-3:1", copies=4)
    make("alrao", averaging="bayes", theta=0.5)
    make("alrao")
    make("adam")
    make("sgd@0.1")
    [group], _ = make.groups()
    assert list(group.rows.index) == [
        "Alrao",
        "Alrao (averaging bayes, theta 0.5)",
        "Alrao (0.001:1, 4 copies)",
        "SGD 0.1",
        "Adam",
        "Alrao-Adam",
        "Prodigy",
    ]
    assert list(group.rows["varied"]) == ["", "averaging,theta", "lr,copies", "", "", "", ""]


def test_runs_that_differ_in_more_than_method_and_seed_are_apart(make):
    make("adam")
    make("adam", momentum=0.5)
    make("adam", epochs=3)
    make("adam", about={**DIGITS, "train": 100})
    found, _ = make.groups()
    assert len(found) == 4
    assert {len(group.runs) for group in found} == {1}
    assert sum("momentum 0.5" in group.title for group in found) == 1


def test_texts_of_the_same_settings_are_apart(make):
    for name in ("a", "b"):
        make("adam", task="text", about={"source": f"the first 90 % of {name}.txt", "train": 5000})
    found, _ = make.groups()
    assert [group.about["source"][-5:] for group in found] == ["a.txt", "b.txt"]


def test_an_older_run_has_the_defaults_of_settings_that_came_later(make):
    whole = make("adam", seed=0)
    older = make("adam", seed=1)
    config = older.config
    for name in ("clip", "schedule", "image_size", "theta", "workers"):
        del config["settings"][name]
    older.write("config", config)
    [group], left_out = make.groups()
    assert left_out == []
    assert len(group.runs) == 2
    assert whole.config["settings"]["theta"] == 0.999


def test_settings_that_the_workbench_no_longer_has_keep_runs_apart(make):
    make("alrao")
    make("alrao", seed=1, config={"zoom": None, "body_lr": None, "normalise": None})
    make("alrao", seed=2, config={"zoom": {"part": 0.15, "copies": None}})
    make("alrao", seed=3, config={"zoom": {"part": 0.5, "copies": None}, "normalise": "layer"})
    of_zoom = {"name": "alrao-zoom", "lr": None, "fraction": None}
    for evidence in ("mean", "sum"):
        make("alrao", lr="1e-6:1", evidence=evidence, config={"method": of_zoom, "zoom": {"part": 0.15}})
    [group], left_out = make.groups()
    assert left_out == []
    assert group.rows["seeds"].to_dict() == {
        "Alrao": 2,
        "Alrao (zoom part=0.15,copies=None)": 1,
        "Alrao (zoom part=0.5,copies=None normalise layer)": 1,
        "alrao-zoom (1e-06:1, 10 copies, evidence mean, zoom part=0.15)": 1,
        "alrao-zoom (1e-06:1, 10 copies, evidence sum, zoom part=0.15)": 1,
    }
    assert "(1e-06:1, 10 copies, evidence sum, zoom part=0.15) | 1.000" in page([group])
    assert Report.of(read_runs([make.root])).html()


@pytest.mark.parametrize(
    ("config", "result", "message"),
    [
        ({"warmup": 3}, {}, "made by another version, whose settings have 'warmup'"),
        ({"task": None}, {}, "does not have the run's task"),
        ({"method": None, "seed": None}, {}, "does not have the run's method, seed"),
        ({"method": {"name": "sgd", "speed": 1}}, {}, "is no MethodSpec"),
    ],
)
def test_runs_that_cannot_be_understood_are_left_out(make, config, result, message):
    make("alrao")
    foreign = make("adam", config=config, result=result)
    [group], [said] = make.groups()
    assert list(group.rows.index) == ["Alrao"]
    assert said.startswith(f"{foreign.path}: left out: ")
    assert message in said


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.json", None, "not finished (epoch 0 of 2): in the curves, not in the tables"),
        ("result.json", "{", "its result is left out: result.json is damaged"),
        ("result.json", "{}", "result.json is damaged (it lacks the measures or the status)"),
        ("config.json", "[", "config.json is damaged"),
        ("config.json", "{}", "config.json has no settings"),
        ("config.json", '{"settings": 3}', "config.json has no settings"),
        ("config.json", '{"settings": {"task": "digits"}}', "does not have the run's method, seed"),
    ],
)
def test_damaged_runs_are_left_out(make, name, content, message):
    make("alrao")
    path = make("adam").path / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    [group], [said] = make.groups()
    assert list(group.rows.index) == ["Alrao"]
    assert message in said


def test_a_task_of_another_version_is_shown(make):
    make("adam", config={"task": "mnist"})
    [group], left_out = make.groups()
    assert left_out == []
    assert "## mnist, mlp" in page([group])


def test_a_run_that_is_kept_too_counts_once(make, tmp_path):
    directory = make("adam")
    copy = RunDirectory(tmp_path / "results" / directory.path.relative_to(tmp_path))
    copy.write("config", directory.config)
    copy.write("result", directory.result)
    [group], _ = make.groups()
    assert len(group.runs) == 1


# The Markdown page.


@pytest.fixture
def full(make):
    for seed in range(3):
        make("alrao", seed, test=0.5)
        make("sgd@0.1", seed, valid=0.2, test=0.4)
        make("adam", seed, test=0.3)
    make("sgd@1", valid=0.3)
    make("sgd@10", result=DIVERGED)
    make("dog", result=DIVERGED)
    return make


def test_the_page_has_tables_of_as_many_columns_everywhere(full):
    text = page(full.groups()[0])
    tables = cells(text)
    assert len(tables) == 2
    for table in tables:
        assert len({len(row) for row in table}) == 1
        assert all(re.fullmatch(r"-+:?", cell) for cell in table[1])


def test_the_page_says_how_far_behind(full):
    table, grid = cells(page(full.groups()[0]))
    rows = {row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]}
    assert rows["SGD 0.1, best of 3"]["behind SGD"] == ""
    assert rows["**Alrao**"]["behind SGD"] == "+0.100"
    assert rows["Adam"]["behind SGD"] == "-0.100"
    assert rows["DoG"]["failed"] == "1"
    assert rows["DoG"]["test loss"] == "diverged"
    assert [row[:2] for row in grid[2:]] == [["0.1", "0.400 ± 0.000"], ["1", "1.000"], ["10", "diverged"]]


def test_the_page_s_command_gives_the_same_runs(full, monkeypatch, tmp_path):
    from alrao_lab.cli import training
    from alrao_lab.cli.app import cli

    text = page(full.groups()[0])
    [command] = re.findall(r"`(alrao compare [^`]*)`", text)
    wanted = []

    class Recorded:
        failed, runs = {}, []

        def __init__(self, settings, methods, *, seeds, grid_seeds, roots):
            wanted.append((settings, methods, seeds))

    monkeypatch.setattr(training, "Comparison", Recorded)
    monkeypatch.setattr(training, "train_missing", lambda *_: None)
    monkeypatch.setattr(training, "make_report", lambda *_: None)
    cli.main(command.split()[1:], standalone_mode=False)
    [(said, methods, seeds)] = wanted
    first = resolve(dataclasses.replace(said, method="adam"))[1]
    assert first == resolve(settings(method="adam"))[1]
    assert (set(methods), seeds) == ({"alrao", "adam", "dog", "sgd"}, 3)


def test_names_of_the_user_s_are_not_markdown(make):
    about = {"source": "a|b <script>alert(1)</script>\n# *no* `head`", "train": 5000}
    make("adam", task="regression", target="y|<b>|`x`", about=about, result={"measures": ["loss"]})
    text = page(make.groups()[0])
    assert "``alrao compare regression " in text
    outside = re.sub(r"``.*?``", "", text)  # in code, all is as it stands
    assert not re.search(r"(?<!\\)<(script|b)>", outside)
    assert r"a\|b \<script\>" in text
    assert not re.search(r"^# \*no", text, re.MULTILINE)
    assert text.count("\n## ") == 1
    [table] = cells(text)
    assert {len(row) for row in table} == {len(table[0])}


def test_a_page_of_runs_without_a_method_at_its_defaults(make):
    make("alrao", lr="0.001:1")
    assert "alrao compare digits --methods alrao" in page(make.groups()[0])


def test_names_of_the_user_s_are_not_markup_of_the_terminal(make):
    make("adam", task="regression", target="price [red] in [/eur]")
    [group], _ = make.groups()
    assert "price [red] in [/eur]" in " ".join(shown(group).split())


def test_the_paper_s_rows_stand_beside(make):
    make("adam", task="cifar10", model="small", data="x")
    text = page(make.groups()[0])
    assert "0.42 ± 0.02, 88.1 ± 0.6" in text
    assert "The paper has no such experiment." not in text


def test_tables_fit_into_a_terminal(full):
    text = shown(full.groups()[0][0], 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "0.400 ± 0.000" in text
    assert "…" not in text


def test_nothing_is_a_page_too():
    assert page([]).startswith("# Results")
    assert grouped([]) == ([], [])
