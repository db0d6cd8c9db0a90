"""The suite: its figures against ones worked out by hand, its runs on a workload of seconds."""

import json
import math
from dataclasses import replace
from io import StringIO
from math import inf, isnan

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.records import find_runs
from alrao_lab.resolve import resolve
from alrao_lab.settings import Settings
from alrao_lab.suite.contenders import ADAMW, CONTENDERS, GROUPS, Candidate, Contender
from alrao_lab.suite.page import RUNS, Suite, dots, markdown, profile, sensitivity, table
from alrao_lab.suite.runs import COLUMNS, Search, every, lacking, recorded
from alrao_lab.suite.standings import Standings, crossing
from alrao_lab.suite.workloads import KNOWN, WORKLOADS, Workload
from alrao_lab.tasks import get_task

MINI = {"epochs": 2, "every": 3, "train_size": 96}
QUICK = Workload("quick", "digits", "new", "perceptron", "digits", "mlp", MINI, 2.3)
OTHER = Workload("other", "wider", "cifar10", "CNN", "digits", "cnn", MINI, 2.3)
RATES = Contender(ADAMW, "sgd", rates=(0.01, 0.1, 1.0))
SEARCHED = (0.01, 0.03, 0.1, 0.3, 1.0)
"""The rates of a search that finds 0.1 best."""
PLAIN = Contender("plain", "adam")
OURS = Contender("auto", "auto")
CONTENDED = [RATES, PLAIN, OURS]


def row(workload, contender, candidate, seed, chosen, last=None, valid=1.0, failed=False, curve=()):
    last = chosen if last is None else last
    figures = {f"valid {when}": valid for when in ("chosen", "last")}
    figures |= {"test chosen": chosen, "test last": last, "score chosen": 0.5, "score last": 0.4}
    found = {
        "workload": workload.name, "contender": contender.name, "candidate": candidate,
        "rate": candidate.rate,
        "seed": seed, "failed": failed, "steps": 100, "cpu": 2.0, "seconds": 3.0, "curve": list(curve),
        "measures": ("loss", "accuracy"), "historical": False, "commit": "0123456789ab",
    }  # fmt: skip
    return {**found, **figures}


def runs(workload, contender, tests, last=None, searched=True, **changes):
    """Made-up runs: a test loss for each seed, and other candidates of a search, which are worse."""
    best = Candidate(contender.method, 0.1 if contender.tuned else None)
    last = last or tests
    rows = [
        row(workload, contender, best, i, *both, **changes)
        for i, both in enumerate(zip(tests, last, strict=True))
    ]
    for rate in SEARCHED if searched and contender.tuned else ():
        if rate != 0.1:
            rows += [
                row(workload, contender, Candidate("sgd", rate), seed, 9.0, valid=5.0) for seed in range(3)
            ]
    return rows


def frame(*groups):
    return pd.DataFrame([each for rows in groups for each in rows], columns=COLUMNS)


def told(searched=True):
    failed = [row(OTHER, PLAIN, Candidate("adam"), 0, inf, failed=True)]
    return frame(
        runs(QUICK, RATES, [1.0, 3.0], [2.0, 4.0], searched, curve=[(50, 1.0, 1.5), (100, 2.0, 1.0)]),
        runs(QUICK, PLAIN, [4.0, 6.0, 99.0], [4.0, 6.0, 99.0]),
        runs(QUICK, OURS, [1.0, 2.0], [3.0, 3.0], curve=[(50, 0.5, 2.0), (100, 1.0, 0.0)]),
        runs(OTHER, RATES, [1.0, 1.0], searched=searched),
        failed,
        runs(OTHER, OURS, [2.2, 2.3]),
    )


def test_gaps_are_of_the_seeds_that_both_have():
    found = Standings(told(), CONTENDED)
    assert found.best == {"quick": ADAMW, "other": ADAMW}
    gaps = found.gaps
    assert gaps.loc[ADAMW].tolist() == [0.0, 0.0]
    assert gaps.loc["plain", "quick"] == pytest.approx(5 / 2 - 1), "the third seed has no partner"
    assert gaps.loc["plain", "other"] == inf
    assert gaps.loc["auto"].tolist() == pytest.approx([1.5 / 2 - 1, 2.25 - 1])
    last = Standings(told(), CONTENDED, "last")
    assert last.gaps.loc["auto", "quick"] == pytest.approx(0.0)


def test_a_tuned_contender_is_shown_at_what_is_best_on_validation_data_at_that_time():
    better_last = [
        row(QUICK, RATES, Candidate("sgd", 0.3), seed, 5.0, last=0.5)
        | {"valid chosen": 2.0, "valid last": 0.1}
        for seed in range(3)
    ]
    rows = [r for r in runs(QUICK, RATES, [1.0] * 3) if r["rate"] != 0.3]
    found = frame(rows, better_last, runs(QUICK, RATES, [])[-3:])
    assert set(Standings(found, [RATES], "chosen").chosen["rate"]) == {0.1}
    assert set(Standings(found, [RATES], "last").chosen["rate"]) == {0.3}


def test_what_contenders_achieved_together():
    found = Standings(told(), CONTENDED).over([QUICK, OTHER])
    assert found.loc["auto", "mean"] == pytest.approx((-0.25 + 1.25) / 2)
    assert found.loc["auto", "worst"] == pytest.approx(1.25)
    assert found.loc["plain", "failed"] == 1
    assert found.loc["auto", "at chance"] == 2, "2.2 and 2.3 where chance is 2.3"
    assert found.loc[ADAMW, "tried"] == 14
    assert found.loc["auto", "tried"] == 1
    assert found.loc["auto", "score"] == 0.0
    # On quick, AdamW ends at a validation loss of 1, and 1.01 is between 2.0 at step 50 and 0.0 at step 100.
    assert found.loc["auto", ["steps", "cpu"]].tolist() == pytest.approx([0.7475, 0.37375])
    assert found.loc[ADAMW, "steps"] == pytest.approx(0.99)
    assert isnan(found.loc["plain", "steps"]), "it has no curve, so it never gets there"


def test_a_curve_crosses_a_loss_between_two_evaluations():
    curve = [(10, 1.0, 4.0), (20, 2.0, 2.0), (30, 3.0, 3.0)]
    assert crossing(curve, 3.0) == (15.0, 1.5)
    assert crossing(curve, 5.0) == (10, 1.0)
    assert crossing(curve, 1.0) == (inf, inf)
    assert crossing([], 1.0) == (inf, inf)


def test_the_interval_is_over_workloads_and_seeds():
    same = frame(*(runs(each, RATES, [1.0] * 4) + runs(each, OURS, [1.1] * 4) for each in (QUICK, OTHER)))
    assert Standings(same, [RATES, OURS]).interval("auto", [QUICK, OTHER]) == pytest.approx((0.1, 0.1))
    apart = frame(
        runs(QUICK, RATES, [1.0] * 4), runs(QUICK, OURS, [1.1] * 4),
        runs(OTHER, RATES, [1.0] * 4), runs(OTHER, OURS, [1.3] * 4),
    )  # fmt: skip
    low, high = Standings(apart, [RATES, OURS]).interval("auto", [QUICK, OTHER])
    assert (low, high) == pytest.approx((0.1, 0.3)), "with two workloads, one of them may be drawn twice"
    fixed = Standings(apart, [RATES, OURS]).interval("auto", [QUICK, OTHER], fixed=True)
    assert fixed == pytest.approx((0.2, 0.2)), "the seeds do not differ"
    assert Standings(told(), CONTENDED).interval("plain", [OTHER]) is None


def test_a_workload_that_is_drawn_twice_has_seeds_drawn_twice():
    """The interval of a mean of two workloads that are alike is narrower than that of one of them."""
    spread = [runs(each, OURS, [1.0 + i / 10 for i in range(8)]) for each in (QUICK, OTHER)]
    both = frame(*(runs(each, RATES, [1.0] * 8) for each in (QUICK, OTHER)), *spread)
    found = Standings(both, [RATES, OURS])
    widths = [high - low for low, high in (
        found.interval("auto", [QUICK], fixed=True), found.interval("auto", [QUICK, OTHER]),
    )]  # fmt: skip
    assert widths[1] == pytest.approx(widths[0] / math.sqrt(2), rel=0.06)


def test_the_runs_that_find_settings_are_those_of_searches():
    """The seeds that are added to the best of a search are not among them."""
    found = Standings(frame(runs(QUICK, RATES, [1.0] * 10), runs(QUICK, OURS, [1.0] * 10)), [RATES, OURS])
    assert found.over([QUICK]).loc[[ADAMW, "auto"], "tried"].tolist() == [3 * 5, 1]


def test_the_page_says_where_the_highest_decay_is_the_best():
    decays = replace(CONTENDERS[ADAMW], rates=RATES.rates)
    rates = [Candidate("adamw", rate) for rate in SEARCHED]
    more = [Candidate(method, rate, decay) for method, decay in decays.others for rate in SEARCHED[1:4]]
    best = Candidate("adamw", 0.1, 1.0)
    rows = [
        row(workload, decays, each, seed, 1.0, valid=1.0 if each == chosen else 2.0 + (each.rate != 0.1))
        for workload, chosen in ((QUICK, best), (OTHER, Candidate("adamw", 0.1)))
        for each in (*rates, *more)
        for seed in range(3)
    ]
    suite = Suite(frame(rows), [decays])
    assert suite.highest_decay([QUICK, OTHER]) == ["quick"]
    assert "That was the best on quick.\n" in markdown(suite, [QUICK, OTHER])


def test_the_noise_of_times_is_that_of_adamw_on_the_worst_workload():
    found = frame(runs(QUICK, RATES, [1.0] * 7), runs(OTHER, RATES, [1.0] * 7), runs(OTHER, OURS, [1.0]))
    found["cpu"] = [*[1.0] * 19, *(1.0 + i / 18 for i in range(19)), 99.0]
    assert Suite(found, [RATES, OURS]).noise([QUICK, OTHER]) == pytest.approx(1.9 / 1.1)
    assert Suite(found, [RATES, OURS]).noise([QUICK]) == 1.0


def test_both_of_the_best_candidates_are_named():
    other = [
        row(QUICK, RATES, Candidate("sgd", 0.3), seed, 5.0, last=0.5)
        | {"valid chosen": 2.0, "valid last": 0.1}
        for seed in range(3)
    ]
    rows = [each for each in runs(QUICK, RATES, [1.0] * 3) if each["rate"] != 0.3]
    page = markdown(Suite(frame(rows, other), [RATES]), [QUICK])
    assert "| adamw: sgd@0.1; last sgd@0.3 | 1.0000 ± 0.0000 |" in page


def test_the_deviation_is_that_of_the_reference():
    found = Standings(frame(runs(QUICK, RATES, [1.0, 2.0, 3.0])), [RATES])
    assert found.deviation("quick") == pytest.approx(0.5)


def test_there_are_no_gaps_before_the_search_is_over():
    found = Suite(told(searched=False), CONTENDED)
    assert found.chosen.gaps.size == 0
    missing = lacking(found.every, [QUICK], CONTENDED, 10)
    page = markdown(found, [QUICK], missing=missing)
    assert "## Missing runs" in page
    assert "A workload whose searches are not over is in no table of gaps." in page
    assert "| quick | yes | digits | 6 | the task's | not run |" in page


def test_the_page_has_both_halves_apart():
    page = markdown(Suite(told(), CONTENDED), [QUICK, OTHER])
    first, second = page.index("## Workloads held out"), page.index("## Workloads used for choosing")
    assert first < page.index("| auto | -25.0 | -25.0 | -25.0 |") < second
    assert page.index("| plain | failed | failed | failed | failed | failed |") > second
    assert page.index("| auto | +0.0 | 0 | never | never | 1 | 0 | 2 / 2 |") > second, (
        "at chance at both times"
    )
    assert "Missing runs" not in page
    assert "| quick | `adamw` | +0.0 / +0.0 | -25.0 / +0.0 |" in page
    assert "| adamw: sgd@0.1 | 2.0000 ± 1.4142 | 0.500 ± 0.000 | 3.0000 ± 1.4142 |" in page
    assert "| 0.400 ± 0.000 | 75 / 0.7 | 2 | 2.0 |" in page, "auto on quick, in 100 steps and 2 seconds"
    assert "| 0.400 ± 0.000 | never | 3 | 2.0 |" in page, "plain on quick has no curve"
    assert max(line.count("|") for line in page.splitlines()) <= 9, "a table that can be read"
    assert "historical" not in page
    assert "Runs of auto are of commit 0123456. Those of the others are of 0123456." in page
    mixed = told()
    mixed.loc[mixed["contender"] == "auto", "commit"] = ["a" * 12, *["b" * 12] * 3]
    said = "Runs of auto are of different commits, and are no single method: aaaaaaa, bbbbbbb."
    assert said in markdown(Suite(mixed, CONTENDED), [QUICK, OTHER])


def test_a_method_without_runs_has_no_figure():
    """A contender that has run on one of two workloads has no mean, no interval, no place in the profile."""
    found = frame(
        runs(QUICK, RATES, [1.0] * 10), runs(OTHER, RATES, [1.0] * 10), runs(QUICK, OURS, [1.1] * 2)
    )
    both = [QUICK, OTHER]
    missing = lacking(found, both, [RATES, PLAIN, OURS], 10)
    assert missing == {
        ("quick", "plain"): 5, ("other", "plain"): 5, ("quick", "auto"): 3, ("other", "auto"): 5,
    }  # fmt: skip
    suite = Suite(found, [RATES, PLAIN, OURS])
    page = markdown(suite, both, missing=missing)
    assert "At least 18 runs are still to come" in page
    assert "| plain, auto | all workloads | 18 |" in page
    assert "Not in the performance profile, because they lack runs on workloads of the tables: auto." in page
    assert "| other | `adamw` | +0.0 / +0.0 | missing / missing |" in page
    assert "| auto | missing | missing | missing | missing | missing | missing | missing |" in page, (
        "no counts"
    )
    assert "–" not in page
    assert [trace["name"] for trace in profile(suite.chosen, both).plot.data] == [ADAMW]


def test_a_search_lacks_what_it_calls_for_next():
    first = frame(runs(QUICK, RATES, [], searched=False))
    assert lacking(first, [QUICK], [RATES], 10) == {("quick", ADAMW): 3 * 3}
    over = frame(runs(QUICK, RATES, [1.0] * 4))
    assert lacking(over, [QUICK], [RATES], 10) == {("quick", ADAMW): RATES.seeds - 4}


def test_names_are_not_cut_in_a_narrow_terminal():
    console = Console(width=60, file=StringIO())
    long = replace(OURS, name="a-name-of-some-length")
    found = Suite(frame(runs(QUICK, RATES, [1.0]), runs(QUICK, long, [1.0])), [RATES, long])
    console.print(table(found, [QUICK], "title"))
    assert long.name in console.file.getvalue()


def test_figures_have_a_mark_for_every_gap():
    found = Suite(told(), CONTENDED).chosen
    drawn = {trace["name"]: trace for trace in dots(found, [QUICK, OTHER]).plot.data}
    assert drawn["plain"]["x"] == [50.0, 50.0], "what is farther away stands at the edge"
    assert drawn["auto"]["y"] == ["quick (held out)", "other"]
    steps = {trace["name"]: trace for trace in profile(found, [QUICK, OTHER]).plot.data}
    assert steps[ADAMW]["y"][-1] == 1.0, "it is the best on both"
    assert steps["plain"]["y"] == [0.0, 0.0], "never within 50 %"


def test_the_valleys_are_of_the_searches():
    muon = Contender("muon", "muon", rates=(0.01, 0.1, 1.0))
    rows = [row(QUICK, muon, Candidate("muon", rate), s, 1 + rate) for rate in SEARCHED for s in range(3)]
    drawn = sensitivity(Standings(frame(rows, runs(QUICK, OURS, [1.5])), [muon, OURS]), [QUICK]).plot.data
    [valley] = [trace for trace in drawn if trace["name"] == "muon"]
    assert valley["x"] == list(SEARCHED)
    assert valley["y"] == pytest.approx([1 + rate for rate in SEARCHED])
    [line] = [trace for trace in drawn if trace["name"] == "auto"]
    assert line["y"] == [1.5, 1.5]


def test_a_suite_without_any_run():
    found = Suite(frame(), CONTENDED)
    assert found.chosen.contenders == []
    assert markdown(found, [QUICK]).startswith("# The suite")


def test_half_of_its_workloads_are_held_out_by_the_rule():
    held_out = [each for each in WORKLOADS.values() if not each.chosen_on]
    choosing = [each for each in WORKLOADS.values() if each.chosen_on]
    assert 24 <= len(WORKLOADS) <= 30
    assert len(held_out) >= 12
    assert len(choosing) - len(held_out) <= 4  # names were known from a published program
    for each in held_out:
        assert each.data not in KNOWN["data"] or each.network not in KNOWN["network"]
    seen = {(each.data, each.network) for each in choosing}
    assert not seen & {(each.data, each.network) for each in held_out}
    lengths = {each.mini["epochs"] * each.mini["every"] for each in choosing if each.data == "picture"}
    assert lengths == {150, 1_500, 15_000}
    for half in (held_out, choosing):
        batches = {each.mini["batch"] for each in half if "batch" in each.mini}
        assert {4, 512} <= batches
        assert max(each.mini["epochs"] * each.mini["every"] for each in half) == 15_000


def test_all_of_its_runs_fit_into_twelve_hours_of_two_cores():
    assert all(each.seconds > 0 for each in WORKLOADS.values())
    assert sum(each.seconds for each in WORKLOADS.values()) * RUNS / 2 <= 12 * 3600


def test_its_workloads_are_settings_of_tasks():
    keys = {json.dumps(each.settings(Settings()).key()) for each in WORKLOADS.values()}
    assert len(keys) == len(WORKLOADS)
    for workload in WORKLOADS.values():
        assert workload.model in get_task(workload.task).models
        settings = resolve(workload.settings(Settings(method="adam")))[1]
        assert settings.patience == settings.epochs, "no method stops early"
        assert workload.settings(Settings(budget="paper")).epochs is None


def test_its_contenders_can_all_be_resolved():
    keys = set()
    for contender in CONTENDERS.values():
        for candidate in contender.first:
            resolved = resolve(contender.settings(Settings(), candidate, 0))[1]
            keys.add(resolved.digest(""))
    assert len(keys) == sum(len(each.first) for each in CONTENDERS.values()), "no two are the same"
    assert GROUPS["references"] == ("sgd", "adamw", "adamw-wsd", "muon")
    assert GROUPS["ours"] == ("auto", "auto-plain")
    assert all(CONTENDERS[name].seeds == 10 for name in (*GROUPS["references"], *GROUPS["ours"]))


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
    while following := RATES.next_candidates(losses):
        assert not losses.keys() & following, "nothing twice"
        losses |= {each: abs(math.log(each.rate / best)) for each in following}
    assert {each.rate for each in losses} == tried


def test_a_search_passes_over_rates_that_fail():
    losses = {Candidate("sgd", rate): loss for rate, loss in ((0.01, 1.0), (0.1, inf), (1.0, inf))}
    assert RATES.next_candidates(losses) == [Candidate("sgd", 0.001)]
    following = RATES.next_candidates({**losses, Candidate("sgd", 0.001): 2.0})
    assert [each.rate for each in following] == [0.003, 0.03]


def test_other_decays_are_tried_around_the_best_rate():
    adamw = CONTENDERS[ADAMW]
    losses = {}
    while following := adamw.next_candidates(losses):
        losses |= {each: abs(math.log(each.rate / 1e-3)) + each.decay for each in following}
    others = {each for each in losses if each.method == "adam" or each.decay}
    assert others == {
        Candidate(m, r, d)
        for m, d in (("adam", 0.0), ("adamw", 0.1), ("adamw", 0.3), ("adamw", 1.0))
        for r in (3e-4, 1e-3, 3e-3)
    }
    settings = adamw.settings(Settings(), Candidate("adamw", 1e-3, 0.1), 2)
    assert (str(settings.method), settings.weight_decay, settings.seed) == ("adamw@0.001", 0.1, 2)


def test_nothing_of_ours_runs_on_a_workload_that_is_held_out():
    with pytest.raises(LabError, match="quick is held out"):
        Search(QUICK, [OURS], Settings(), seeds=1, roots=[])


def search_in(root):
    plain = replace(PLAIN, seeds=2)
    return Search(QUICK, [RATES, plain], Settings(threads=1), seeds=2, roots=[root])


@pytest.fixture
def ran(tmp_path):
    search = search_in(tmp_path)
    search.run()
    return search


def test_its_runs_have_what_the_tables_need_and_nothing_is_trained_twice(ran, tmp_path):
    found = every([ran])
    assert set(found["seed"]) == {0, 1}
    assert set(found["steps"]) == {6}, "all methods take the same number of steps"
    assert all([step for step, _, _ in curve] == [3, 6] for curve in found[~found["failed"]]["curve"])
    assert (found[~found["failed"]]["cpu"] > 0).all()
    last = [
        run.metrics()[-1]["test"]["loss"]
        for run in find_runs([tmp_path])
        if run.result["status"] == "finished"
    ]
    assert sorted(found[~found["failed"]]["test last"]) == pytest.approx(sorted(last))
    assert {run.config["settings"]["experiment"] for run in find_runs([tmp_path])} == {"workload-quick"}
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    again = search_in(tmp_path)
    again.run()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == times
    read = recorded([tmp_path], [QUICK], ran.contenders, Settings(threads=1))
    keys = ["contender", "rate", "seed"]
    both = [each.sort_values(keys).drop(columns="rate").to_dict("records") for each in (read, found)]
    assert both[0] == both[1]
    longer = replace(QUICK, mini={**MINI, "epochs": 3})
    assert recorded([tmp_path], [longer], ran.contenders, Settings(threads=1)).empty, "another length"
    before = Standings(found, ran.contenders)
    assert Standings(every([again]), ran.contenders).gaps.equals(before.gaps)


def test_the_command(tmp_path):
    page = tmp_path / "page.md"
    words = ["suite", "--workloads", "noisy-1000", "--contenders", "adamw-0.001", "--seeds", "1"]
    words += ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "none")]
    before = torch.get_num_threads()
    asked = CliRunner().invoke(cli, [*words, "--no-run"])
    assert asked.exit_code == 0, asked.output
    assert "1 runs are missing" in asked.output
    done = CliRunner().invoke(
        cli, [*words, "--threads", "1", "--markdown", str(page), "--title", "Some title"]
    )
    assert done.exit_code == 0, done.output
    assert page.read_text().startswith("# Some title\n")
    assert "**noisy-1000**: 1,000 rows" in page.read_text()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--workloads", "vitt"], "did you mean vit"), (["--contenders", "sdg"], "did you mean sgd")],
)
def test_unknown_names(words, said):
    failed = CliRunner().invoke(cli, ["suite", *words], standalone_mode=False)
    assert isinstance(failed.exception, LabError)
    assert said in str(failed.exception)
