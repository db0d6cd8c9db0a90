"""The suite: its gaps against figures worked out by hand, its runs on a workload of seconds."""

import hashlib
import json
import math
from dataclasses import replace
from io import StringIO
from math import inf
from pathlib import Path

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from alrao.lab.cli.app import cli
from alrao.lab.errors import LabError
from alrao.lab.records import Record, find_runs
from alrao.lab.resolve import resolve
from alrao.lab.settings import Settings
from alrao.lab.store import RunDirectory
from alrao.lab.suite.contenders import CONTENDERS, Contender
from alrao.lab.suite.page import dots, markdown, profile, table
from alrao.lab.suite.runs import Search, Standings, every
from alrao.lab.suite.workloads import ROWS, WORKLOADS, Workload
from alrao.lab.table import frame
from alrao.lab.tasks import get_task

WHEN = {"first": 9, "design": 6, "new": 6, "new-held-out": 12, "second": 12, "third": 1, "held-out": 8}
"""How many workloads were listed when."""
QUICK = Workload("quick", "digits for two epochs", "digits", "mlp", {"epochs": 2, "train_size": 96}, 2.3)
OTHER = Workload(
    "other", "the same, wider", "digits", "cnn", {"epochs": 1, "train_size": 64}, 2.3, chosen_on=True
)
RATES = Contender("rates", "sgd", rates=(0.01, 0.1, 1.0))
SEARCHED = (0.01, 0.03, 0.1, 0.3, 1)
"""The rates of a search that finds 0.1 best."""
PLAIN = Contender("plain", "adam")
OURS = Contender("ours", "alrao-adam", "cosine")


CONTENDED = [RATES, PLAIN, OURS]


def runs(workload, contender, method, tests, valid=1.0, failed=(), searched=True):
    """The frame of made-up runs: a test loss for each seed; of the other rates of a grid, one each, worse."""

    def record(spec, seed, test, loss=valid, status="finished"):
        result = {
            "status": status, "measures": ["loss"], "steps": 6, "seconds": 1.0, "diverged_at": None,
            "train": {}, "valid": {"loss": loss}, "test": {"loss": test},
        }  # fmt: skip
        path = Path("digits", "mlp", f"{spec}-{seed}")
        return Record(RunDirectory(path), Settings(method=spec, seed=seed), {}, result, [])

    found = [record(method, seed, test) for seed, test in enumerate(tests)]
    found += [record(method, seed, None, None, "diverged") for seed in failed]
    if searched:
        others = [f"sgd@{rate}" for rate in SEARCHED] if contender.tuned else []
        found += [record(spec, 0, 90.0, 90.0) for spec in others if spec != method]
    return frame(found).assign(workload=workload.name, contender=contender.name)


def told(searched=True):
    return pd.concat(
        [
            runs(QUICK, RATES, "sgd@0.1", [1.0, 3.0], searched=searched),
            runs(QUICK, PLAIN, "adam", [2.5]),
            runs(QUICK, OURS, "alrao-adam", [1.0]),
            runs(OTHER, RATES, "sgd@0.1", [4.0], searched=searched),
            runs(OTHER, PLAIN, "adam", [4.0], failed=[1]),
        ]
    )


def gaps(standings, contender):
    return standings.gaps.loc[contender.name].dropna().to_dict()


def test_gaps_are_parts_of_the_best_tuned_mean():
    found = Standings(told(), CONTENDED)
    assert gaps(found, RATES) == {"quick": 0.0, "other": 0.0}
    assert gaps(found, PLAIN) == {"quick": 1.5, "other": inf}, "over the seeds that both have"
    assert gaps(found, OURS) == {"quick": 0.0}
    quick, both = found.over([QUICK]), found.over([QUICK, OTHER])
    assert list(both["failed"]) == [0, 1, 0]
    assert list(quick["failed"]) == [0, 0, 0]
    assert list(quick.loc["plain", ["worst", "mean"]]) == [1.5, 1.5]
    assert list(quick["at chance"]) == [1, 1, 0], "3 and 2.5, where chance is 2.3"
    assert list(both.loc["plain", ["worst", "mean"]]) == [inf, inf]
    assert both.loc["ours", ["worst", "mean"]].isna().all(), "it has not run on both"
    assert list(both["runs"]) == [5, 1, 1]


def test_the_interval_is_that_of_resampled_seeds():
    """Two seeds, three equally likely kinds of resample: both, or one of them twice."""
    found = Standings(
        pd.concat([runs(QUICK, RATES, "sgd@0.1", [1.0, 1.0]), runs(QUICK, OURS, "alrao-adam", [1.1, 1.3])]),
        [RATES, OURS],
    )
    assert found.gaps.loc["ours", "quick"] == pytest.approx(0.2)
    assert found.interval("ours", [QUICK]) == pytest.approx((0.1, 0.3))
    assert found.interval("rates", [QUICK]) == (0.0, 0.0)
    assert found.interval("ours", [QUICK, OTHER]) is None, "it has not run there"


def test_differences_are_between_runs_of_one_seed():
    def differences(ours, theirs, failed=()):
        """In the losses of two contenders, both ways."""
        told = [runs(QUICK, OURS, "alrao-adam", ours), runs(QUICK, PLAIN, "adam", theirs, failed=failed)]
        found = Standings(pd.concat(told), [OURS, PLAIN])
        return [found.differences("quick", *pair) for pair in (("ours", "plain"), ("plain", "ours"))]

    assert differences([1.0, 3.0, 5.0], [2.0, 2.0]) == [[-0.5, 0.5], [1.0, pytest.approx(-1 / 3)]]
    assert differences([1.0, None], [1.0], failed=[1])[0] == [0.0], "where theirs failed, nothing can be said"
    assert differences([2.0, 2.0], [], failed=[0])[1] == [inf]


def test_the_page_pairs_alrao_with_the_best_constant_rate():
    sgd, ours = replace(RATES, name="sgd"), replace(OURS, name="auto")
    found = [runs(QUICK, sgd, "sgd@0.1", [1.0, 4.0]), runs(QUICK, ours, "alrao-adam", [0.9, 4.2])]
    page = markdown(Standings(pd.concat(found), [sgd, ours]), [QUICK, OTHER])
    assert "| quick | no | -2.5 ± 10.6 | 2 | 1 |" in page
    assert "seed by seed" not in markdown(Standings(told(), CONTENDED), [QUICK, OTHER])


def test_names_are_not_cut_in_a_narrow_terminal():
    console = Console(width=60, file=StringIO())
    long = replace(OURS, name="a-name-of-some-length")
    found = Standings(runs(QUICK, long, "alrao-adam", [1.0]), [long])
    console.print(table(found, [replace(QUICK, name=f"workload-{i}") for i in range(5)], "title"))
    assert long.name in console.file.getvalue()


def test_the_page_has_both_groups_apart():
    page = markdown(Standings(told(), CONTENDED), [QUICK, OTHER])
    first, second = (
        page.index("## Workloads held out"),
        page.index("## Workloads used for choosing"),
    )
    assert first < page.index("| plain | +150 | +150 | – | 0 | 1 | 1 |") < second
    assert page.index("| plain | failed | failed | – | 1 | 2 | 1 |") > second
    assert first < page.index("| quick | +0.0 | +150 | +0.0 |") < second
    assert "| rates at 0.1 | 1.0000 ± 0.0000 | 2.0000 ± 1.4142 | 2 | 1.0 |" in page
    assert "the best tuned one (`rates`)" in page
    assert "historical" not in page


def test_figures_have_a_mark_for_every_gap():
    found = Standings(told(), CONTENDED)
    drawn = {trace["name"]: trace for trace in dots(found, [QUICK, OTHER]).plot.data}
    assert drawn["plain"]["x"] == [150 / 3, 50], "what is farther away stands at the edge"
    assert drawn["ours"]["y"] == ["quick (held out)"]
    assert drawn["plain"]["y"] == ["quick (held out)", "other"]
    steps = {trace["name"]: trace for trace in profile(found, [QUICK, OTHER]).plot.data}
    assert steps["rates"]["y"][-1] == 1.0, "it is the best on both"
    assert "ours" not in steps, "it has not run on both"
    assert steps["plain"]["y"] == [0.0, 0.0], "never within 50 %"


def test_the_page_says_what_rests_on_historical_runs():
    page = markdown(Standings(told().assign(historical=True), CONTENDED), [QUICK])
    assert f"{len(told())} of these {len(told())} runs are historical" in page


def test_there_are_no_gaps_before_the_search_is_over():
    found = Standings(told(searched=False), CONTENDED)
    assert found.gaps.size == 0
    assert "a search for a rate that is not over: quick" in markdown(found, [QUICK])


def test_a_run_that_ends_without_a_test_loss_has_failed():
    lost = runs(QUICK, OURS, "alrao-adam", [None, 1.0])
    found = Standings(pd.concat([runs(QUICK, RATES, "sgd@0.1", [1.0, 3.0]), lost]), [RATES, OURS])
    assert gaps(found, OURS) == {"quick": inf}
    assert found.over([QUICK]).loc["ours", "failed"] == 1
    assert found.differences("quick", "ours", "rates") == [inf, pytest.approx(-2 / 3)]
    assert found.differences("quick", "rates", "ours") == [2.0]
    assert "| ours | failed | failed | – | 1 | 1 | 1 |" in markdown(found, [QUICK])


def test_a_contender_without_runs_is_left_out():
    found = told()
    standings = Standings(found[found["contender"] != "ours"], CONTENDED)
    assert standings.contenders == [RATES, PLAIN]


def test_a_suite_without_any_run():
    found = Standings(frame([]).assign(workload="", contender=""), CONTENDED)
    assert found.contenders == []
    assert markdown(found, [QUICK]).startswith("# The suite")


def test_its_workloads_are_of_many_kinds_and_some_of_them_held_out():
    held_out = {workload.name for workload in WORKLOADS.values() if not workload.chosen_on}
    assert len(WORKLOADS) == 54
    listed = {when: {row["name"] for row in ROWS if row["listed"] == when} for when in WHEN}
    assert held_out == listed["held-out"]
    assert {when: len(names) for when, names in listed.items()} == WHEN
    assert sum(map(len, listed.values())) == len(WORKLOADS)
    assert {row["name"] for row in ROWS if row["kind"]} == listed["new"] | listed["new-held-out"]
    keys = {json.dumps(workload.settings(Settings()).key()) for workload in WORKLOADS.values()}
    assert len(keys) == len(WORKLOADS)
    for workload in WORKLOADS.values():
        assert workload.model in get_task(workload.task).models
        settings = workload.settings(Settings())
        assert settings.patience == settings.epochs, "no method stops early"
        assert workload.settings(Settings(budget="paper")).epochs is None


@pytest.mark.parametrize("name", ["table", "cancer", "wine", "dense", "autoencoder", "finetune-digits"])
def test_tiny_data_sets_are_split_differently_with_every_seed(name):
    def rows_to_test(**changes):
        task, settings = resolve(replace(WORKLOADS[name].settings(Settings()), **changes))
        return torch.cat([x for x, _ in task.load(settings, torch.device("cpu")).evaluation("test")])

    assert torch.equal(rows_to_test(seed=1), rows_to_test(seed=1))
    assert not torch.equal(rows_to_test(seed=1), rows_to_test(seed=2))
    assert torch.equal(rows_to_test(seed=1, resplit=False), rows_to_test(seed=2, resplit=False))


def test_its_contenders_can_all_be_resolved():
    keys = set()
    for contender in CONTENDERS.values():
        for method in contender.methods:
            settings = Settings(method=method, schedule=contender.schedule, **contender.settings)
            resolved = resolve(settings)[1]
            assert resolved.method == method
            keys.add(resolved.digest(""))
    assert len(keys) == sum(len(c.methods) for c in CONTENDERS.values()), "no two are the same"
    assert [c.name for c in CONTENDERS.values() if c.tuned] == ["sgd", "sgd-cosine", "adamw-cosine"]
    assert {c.name for c in CONTENDERS.values() if c.seeds == 5} >= {"auto", "auto-steps", "prodigy"}


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.1, {0.01, 0.03, 0.1, 0.3, 1.0}),
        (1.0, {0.01, 0.1, 0.3, 1.0, 3.0, 10.0}),
        (1e-4, {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 0.01, 0.1, 1.0}),
        (1e9, {0.01, 0.1, 1.0, 10.0, 100.0, 300.0, 1000.0, 3000.0}),  # it gives up three decades away
    ],
)
def test_a_search_goes_on_until_the_best_rate_is_surrounded(best, tried):
    losses = {}
    while rates := RATES.next_rates(losses):
        assert not losses.keys() & rates, "no rate twice"
        losses |= {rate: abs(math.log(rate / best)) for rate in rates}
    assert set(losses) == tried


def test_a_search_passes_over_rates_that_fail():
    losses = {0.01: 1.0, 0.1: inf, 1.0: inf}
    assert RATES.next_rates(losses) == [0.001]
    assert RATES.next_rates({**losses, 0.001: 2.0}) == [0.003, 0.03]


def test_what_was_held_out_first_follows_from_the_names_of_a_kind():
    for kind in {row["kind"] for row in ROWS} - {""}:
        names = [row["name"] for row in ROWS if row["kind"] == kind]
        ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        held_out = {row["name"] for row in ROWS if row["kind"] == kind and row["listed"] == "new-held-out"}
        assert held_out == set(ordered[::2])


def search_in(root):
    return Search(QUICK, [RATES, OURS], Settings(threads=1), seeds=2, roots=[root])


@pytest.fixture
def ran(tmp_path):
    search = search_in(tmp_path)
    search.run()
    return search


def test_grids_have_one_seed_and_the_best_rate_has_all(ran, tmp_path):
    runs = sorted(
        (str(s.method), s.schedule, s.seed)
        for s in (Settings(**directory.config["settings"]) for directory in find_runs([tmp_path]))
    )
    assert runs == [
        ("alrao-adam", "cosine", 0),
        ("alrao-adam", "cosine", 1),
        *(("sgd@" + rate, "none", 0) for rate in ("0.01", "0.1", "0.3")),
        *(("sgd@1", "none", seed) for seed in (0, 1)),
        *(("sgd@" + rate, "none", 0) for rate in ("10", "3")),
    ]
    assert all(run.result for run in ran.runs)
    found = Standings(every([ran]), ran.contenders)
    assert gaps(found, RATES) == {"quick": 0.0}
    of = dict(iter(found.chosen.groupby("contender")))
    assert set(of["rates"]["label"]) == {"SGD 1"}
    files = [json.loads((d.path / "result.json").read_text()) for d in find_runs([tmp_path])]
    steps = {result["steps"] for result in files if result["status"] == "finished"}
    assert steps == {6}, "all methods take the same number of steps"
    assert (of["ours"]["test loss"] > 0).all()
    assert {run.config["settings"]["experiment"] for run in find_runs([tmp_path])} == {"suite-quick"}


def test_nothing_is_trained_twice(ran, tmp_path):
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    again = search_in(tmp_path)
    again.run()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == times
    before = Standings(every([ran]), ran.contenders)
    assert Standings(every([again]), ran.contenders).gaps.equals(before.gaps)
    shown = search_in(tmp_path)
    while shown.grow():
        continue
    found = Standings(every([shown]), ran.contenders)
    assert list(found.losses.count()) == [2, 2], "all seeds"
    assert found.gaps.equals(before.gaps)


def test_the_command(tmp_path):
    page = tmp_path / "page.md"
    words = ["suite", "--workloads", "table", "--contenders", "adam,alrao", "--seeds", "1"]
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
