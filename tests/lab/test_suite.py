"""The suite: its gaps against figures worked out by hand, its runs on a workload of seconds."""

import json
from dataclasses import replace
from io import StringIO
from math import inf

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from alrao.lab.cli.app import cli
from alrao.lab.errors import LabError
from alrao.lab.resolve import resolve
from alrao.lab.settings import Settings
from alrao.lab.store import find_runs
from alrao.lab.suite import ABLATIONS, CONTENDERS, WORKLOADS, Standing, Suite, markdown, standings, table
from alrao.lab.suite.contenders import Contender
from alrao.lab.suite.gaps import differences
from alrao.lab.suite.workloads import Workload
from alrao.lab.table import Finished, Row
from alrao.lab.tasks import get_task

QUICK = Workload("quick", "digits for two epochs", "digits", "mlp", {"epochs": 2, "train_size": 96})
OTHER = Workload("other", "the same, wider", "digits", "cnn", {"epochs": 1, "train_size": 64}, chosen_on=True)
RATES = Contender("rates", "sgd", rates=(0.001, 0.5, 10_000.0))
PLAIN = Contender("plain", "adam")
ZOOM = Contender("zoom", "alrao-zoom", "cosine")


def a_row(label, tests, valid=1.0, failed=0):
    runs = [
        Finished(
            {"seed": seed},
            {
                "status": "finished",
                "measures": ["loss"],
                "steps": 6,
                "valid": {"loss": valid},
                "test": {"loss": test},
            },
            {},
        )
        for seed, test in enumerate(tests)
    ]
    lost = {"status": "diverged", "measures": ["loss"], "valid": None, "test": None}
    return Row(label, runs + [Finished({"seed": 90 + i}, lost, {}) for i in range(failed)])


class Told:
    """A suite whose runs are made up."""

    def __init__(self, rows):
        self.rows = rows
        self.workloads = [QUICK, OTHER]
        self.contenders = [RATES, PLAIN, ZOOM]

    def chosen(self, workload, contender):
        row = self.rows.get((workload.name, contender.name))
        return row and replace(row, searched=len(contender.methods))

    def finished(self, workload, contender):
        return self.rows[workload.name, contender.name].runs


def told():
    return Told(
        {
            ("quick", "rates"): a_row("sgd@0.5", [1.0, 3.0]),
            ("quick", "plain"): a_row("adam", [2.5]),
            ("quick", "zoom"): a_row("alrao-zoom", [1.0]),
            ("other", "rates"): a_row("sgd@0.5", [4.0]),
            ("other", "plain"): a_row("adam", [4.0], failed=1),
        }
    )


def test_gaps_are_parts_of_the_best_tuned_mean():
    by_name = {standing.contender.name: standing for standing in standings(told())}
    assert by_name["rates"].gaps == {"quick": 0.0, "other": 0.0}
    assert by_name["plain"].gaps == {"quick": 0.25, "other": inf}
    assert by_name["zoom"].gaps == {"quick": -0.5}
    assert by_name["plain"].failed([QUICK, OTHER]) == 1
    assert by_name["plain"].failed([QUICK]) == 0
    assert by_name["plain"].over([QUICK]) == (0.25, 0.25)
    assert by_name["plain"].over([QUICK, OTHER]) == (inf, inf)
    assert by_name["zoom"].over([QUICK, OTHER]) is None, "it has not run on both"


def test_differences_are_between_runs_of_one_seed():
    ours, theirs = a_row("alrao-zoom", [1.0, 3.0, 5.0]), a_row("sgd@0.5", [2.0, 2.0])
    assert differences(ours, theirs) == [-0.5, 0.5]
    assert differences(theirs, ours) == [1.0, pytest.approx(-1 / 3)]
    assert differences(a_row("alrao-zoom", [1.0], failed=1), a_row("sgd@0.5", [1.0], failed=1)) == [0.0]
    lost = a_row("alrao-zoom", [], failed=1)
    lost.runs[0].settings["seed"] = 0
    assert differences(lost, theirs) == [inf]


def test_the_page_pairs_zoom_with_the_best_constant_rate():
    suite = told()
    suite.contenders = [replace(RATES, name="sgd"), replace(ZOOM, name="alrao-zoom")]
    suite.rows = {
        ("quick", "sgd"): a_row("sgd@0.5", [1.0, 4.0]),
        ("quick", "alrao-zoom"): a_row("alrao-zoom", [0.9, 4.2]),
    }
    page = markdown(standings(suite), suite.workloads)
    assert "| quick | no | -2.5 ± 10.6 | 2 | 1 |" in page
    assert "seed by seed" not in markdown(standings(told()), suite.workloads)


def test_names_are_not_cut_in_a_narrow_terminal():
    console = Console(width=60, file=StringIO())
    long = replace(ZOOM, name="a-name-of-some-length")
    suite = Told({("quick", long.name): a_row("alrao-zoom", [1.0])})
    suite.contenders = [long]
    console.print(table(standings(suite), [replace(QUICK, name=f"workload-{i}") for i in range(5)], "title"))
    assert long.name in console.file.getvalue()


def test_the_page_has_both_groups_apart():
    page = markdown(standings(told()), [QUICK, OTHER])
    first, second = (
        page.index("## Workloads not used for choosing"),
        page.index("## Workloads used for choosing"),
    )
    assert first < page.index("| plain | +25.0 | +25.0 | +25.0 | 0 | 1 |") < second
    assert page.index("| plain | failed | failed | failed | 1 | 1 |") > second
    assert "| rates at 0.5 | 1.0000 ± 0.0000 | 2.0000 ± 1.4142 | 2 |" in page
    assert "the best tuned one (`rates`)" in page


def test_there_are_no_gaps_before_the_search_is_over():
    suite = told()
    suite.chosen = lambda workload, contender: suite.rows.get((workload.name, contender.name))  # one rate
    assert [standing.gaps for standing in standings(suite)] == [{}, {}, {}]
    assert "| zoom | – | – | – | 0 | 1 |" in markdown(standings(suite), [QUICK])


def test_a_run_that_ends_without_a_test_loss_has_failed():
    suite = told()
    suite.rows["quick", "zoom"] = a_row("alrao-zoom", [None, 1.0])
    rates, _, zoom = standings(suite)
    assert zoom.gaps == {"quick": inf}
    assert zoom.failed([QUICK]) == 1
    assert differences(zoom.rows["quick"], rates.rows["quick"]) == [inf, pytest.approx(-2 / 3)]
    assert differences(rates.rows["quick"], zoom.rows["quick"]) == [2.0]
    assert "| zoom | failed | failed | failed | 1 | 1 |" in markdown([rates, zoom], [QUICK])


def test_a_standing_without_runs_is_left_out():
    suite = told()
    suite.rows = {key: row for key, row in suite.rows.items() if key[1] != "zoom"}
    assert [standing.contender.name for standing in standings(suite)] == ["rates", "plain"]
    assert isinstance(standings(suite)[0], Standing)


def test_its_workloads_are_of_many_kinds_and_half_of_them_held_out():
    assert len(WORKLOADS) >= 8
    assert sum(workload.chosen_on for workload in WORKLOADS.values()) == 4
    kinds = {(workload.task, workload.model) for workload in WORKLOADS.values()}
    assert len(kinds) == len(WORKLOADS)
    for workload in WORKLOADS.values():
        assert workload.model in get_task(workload.task).models
        settings = workload.settings(Settings())
        assert settings.patience == settings.epochs, "no method stops early"
        assert workload.settings(Settings(budget="paper")).epochs is None


def test_its_contenders_can_all_be_resolved():
    keys = set()
    for contender in (CONTENDERS | ABLATIONS).values():
        for method in contender.methods:
            settings = Settings(method=method, schedule=contender.schedule, **contender.settings)
            resolved = resolve(settings)[1]
            assert resolved.method == method
            keys.add(resolved.digest(""))
    assert len(keys) == sum(len(c.methods) for c in (CONTENDERS | ABLATIONS).values()), "no two are the same"
    assert [len(c.methods) for c in CONTENDERS.values() if c.tuned] == [7, 7, 7]


@pytest.fixture
def ran(tmp_path):
    suite = Suite([QUICK], [RATES, ZOOM], Settings(threads=1), seeds=2, roots=[tmp_path])
    suite.run(lambda runs: runs.run())
    return suite


def test_grids_have_one_seed_and_the_best_rate_has_all(ran, tmp_path):
    runs = sorted(
        (str(s.method), s.schedule, s.seed)
        for s in (Settings(**directory.config["settings"]) for directory in find_runs([tmp_path]))
    )
    assert runs == [
        ("alrao-zoom", "cosine", 0),
        ("alrao-zoom", "cosine", 1),
        ("sgd@0.001", "none", 0),
        ("sgd@0.5", "none", 0),
        ("sgd@0.5", "none", 1),
        ("sgd@10000", "none", 0),
    ]
    assert ran.missing == 0
    tuned, zoom = standings(ran)
    assert tuned.gaps == {"quick": 0.0}
    row = tuned.rows["quick"]
    assert row.label == "sgd@0.5"
    assert tuned.failed([QUICK]) == 1, "sgd@10000, of the search"
    files = [json.loads((d.path / "result.json").read_text()) for d in find_runs([tmp_path])]
    steps = {result["steps"] for result in files if result["status"] == "finished"}
    assert steps == {6}, "all methods take the same number of steps"
    assert zoom.rows["quick"].runs[0].result["test"]["loss"] > 0


def test_nothing_is_trained_twice(ran, tmp_path):
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    again = Suite([QUICK], [RATES, ZOOM], Settings(threads=1), seeds=2, roots=[tmp_path])
    again.run(lambda runs: runs.run())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == times
    assert [s.gaps for s in standings(again)] == [s.gaps for s in standings(ran)]
    shown = Suite([QUICK], [RATES, ZOOM], Settings(threads=1), seeds=2, roots=[tmp_path])
    shown.choose()
    assert [len(s.rows["quick"].runs) for s in standings(shown)] == [2, 2], "of the best rate, all seeds"
    assert [s.gaps for s in standings(shown)] == [s.gaps for s in standings(ran)]


def test_the_command(tmp_path):
    page = tmp_path / "page.md"
    words = ["suite", "--workloads", "table", "--contenders", "adam,alrao-zoom", "--seeds", "1"]
    words += ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "none")]
    before = torch.get_num_threads()
    asked = CliRunner().invoke(cli, [*words, "--no-run"])
    assert asked.exit_code == 0
    assert "2 runs are missing" in asked.output
    done = CliRunner().invoke(
        cli, [*words, "--threads", "1", "--markdown", str(page), "--title", "Some title"]
    )
    assert done.exit_code == 0, done.output
    assert "workloads used for choosing" in done.output
    assert page.read_text().startswith("# Some title\n")
    assert "### table: diabetes, regression" in page.read_text()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--workloads", "vitt"], "did you mean vit"), (["--contenders", "sdg"], "did you mean sgd")],
)
def test_unknown_names(words, said):
    failed = CliRunner().invoke(cli, ["suite", *words], standalone_mode=False)
    assert isinstance(failed.exception, LabError)
    assert said in str(failed.exception)
