"""Comparisons and triangles: which runs there are, none of them twice, a failure in one no matter."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from lab_support.runs import outcome, settings
from rich.console import Console

from alrao_lab import run as runs
from alrao_lab import spread
from alrao_lab.errors import LabError
from alrao_lab.records import read
from alrao_lab.render.cells import verdict
from alrao_lab.render.terminal import comparison_table, ended, live_table, triangle_table
from alrao_lab.run import run
from alrao_lab.runset import Comparison, RunSet, Triangle
from alrao_lab.settings import Interval, MethodSpec
from alrao_lab.spread import Processes
from alrao_lab.store import RunDirectory
from alrao_lab.table import experiments

SMALL = {"train_size": 64, "epochs": 1}


def compared(root, methods, seeds=1, grid_seeds=1, **changes):
    roots = [root] if isinstance(root, Path) else root
    wanted = settings(**{**SMALL, **changes})
    return Comparison(wanted, methods.split(","), seeds=seeds, grid_seeds=grid_seeds, roots=roots)


def names(comparison):
    return [(str(planned.settings.method), planned.settings.seed) for planned in comparison.planned.values()]


def grouped(comparison):
    """The one experiment, and what is left out."""
    reading = read(comparison.runs)
    [experiment] = experiments(reading)
    return experiment, reading.left_out


def shown(renderable, width=120):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(renderable)
    return console.export_text()


@pytest.fixture
def told():
    """Who was told of a run that ended."""
    seen = []
    return seen, lambda planned, error: seen.append(
        (str(planned.settings.method), planned.settings.seed, error)
    )


def test_which_runs(tmp_path):
    comparison = compared(tmp_path, "alrao,adam@0.01,sgd", seeds=2)
    assert names(comparison) == [
        ("alrao", 0), ("adam@0.01", 0),
        *[(f"sgd@{rate}", 0) for rate in ("1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10")],
        ("alrao", 1), ("adam@0.01", 1),
    ]  # fmt: skip


def test_names_that_come_twice(tmp_path):
    assert names(compared(tmp_path, "adam,alrao,adam,sgd@0.10,sgd@.1")) == [
        ("adam", 0),
        ("alrao", 0),
        ("sgd@0.1", 0),
    ]
    assert len(compared(tmp_path, "sgd,sgd@0.1,sgd").planned) == 7


def test_an_interval_is_for_alrao_alone(tmp_path):
    found = compared(tmp_path, "alrao,alrao-adam,adam", lr="1e-3:1").planned.values()
    assert [planned.settings.lr for planned in found] == [Interval(0.001, 1), Interval(0.001, 1), None]
    with pytest.raises(LabError, match=r"--lr is for the methods of Alrao.*adam@0\.01"):
        compared(tmp_path, "adam,sgd", lr="0.1")


def test_first_the_grid_then_the_best_rate_with_all_seeds(tmp_path, told):
    seen, tell = told
    comparison = compared(tmp_path, "adam,sgd", seeds=3)
    comparison.run(tell=tell)
    best = comparison.best_rate()
    assert best in (MethodSpec("sgd", 0.1), MethodSpec("sgd", 1.0))
    rates = [name for name, _, _ in seen if name.startswith("sgd")]
    assert len(rates) == 7 + 2
    assert [entry[:2] for entry in seen[-2:]] == [(str(best), 1), (str(best), 2)]
    assert [error for *_, error in seen] == [None] * 12
    group, left_out = grouped(comparison)
    assert left_out == []
    name = f"SGD {best.rates}"
    found = group.rows[["seeds", "searched"]]
    assert list(found.itertuples(name=None)) == [(name, 3, 7), ("Adam", 3, 1)]
    text = shown(comparison_table(group))
    assert f"{name}, best of 7" in text
    assert "mean ± standard deviation" in text


def test_nothing_is_run_twice(tmp_path, told, monkeypatch):
    seen, tell = told
    compared(tmp_path, "alrao,adam").run()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    monkeypatch.setattr(runs, "train", lambda *_: pytest.fail("it trains"))
    compared(tmp_path, "alrao,adam").run(tell=tell)
    assert seen == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before


def test_kept_runs_are_used(tmp_path, told):
    seen, tell = told
    compared(tmp_path / "results", "alrao").run()
    comparison = compared([tmp_path / "runs", tmp_path / "results"], "alrao,adam")
    comparison.run(tell=tell)
    assert seen == [("adam", 0, None)]
    assert [path.name for path in (tmp_path / "runs/digits/mlp").iterdir()] != []
    group, _ = grouped(comparison)
    assert list(group.rows.index) == ["Alrao", "Adam"]


def explode(monkeypatch, method, error):
    """Runs of a method fail with that error."""
    train = runs.train

    def maybe(problem, wanted, *rest):
        if str(wanted.method) == method:
            raise error
        train(problem, wanted, *rest)

    monkeypatch.setattr(runs, "train", maybe)


@pytest.mark.parametrize("error", [RuntimeError("boom [red]"), MemoryError("no more"), LabError("boom")])
def test_a_run_that_fails_is_reported_and_the_others_are_kept(tmp_path, told, monkeypatch, error):
    seen, tell = told
    explode(monkeypatch, "adam", error)
    comparison = compared(tmp_path, "adam,sgd@0.1,alrao")
    comparison.run(tell=tell)
    said = {name: why for name, _, why in seen}
    assert str(error) in said["adam"]
    assert said["sgd@0.1"] is said["alrao"] is None
    assert list(comparison.failed.values()) == [said["adam"]]
    group, left_out = grouped(comparison)
    assert list(group.rows.index) == ["Alrao", "SGD 0.1"]
    assert len(left_out) == 1
    assert "failed" in shown(live_table(comparison))
    [adam] = [p for p in comparison.planned.values() if p.settings.method.name == "adam"]
    assert ended(adam, said["adam"]) == f"Adam, seed 0: failed: {said['adam']}"


def test_a_grid_that_fails_has_no_best_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "train", lambda *_: 1 / 0)
    comparison = compared(tmp_path, "sgd", seeds=2)
    comparison.run()
    assert comparison.best_rate() is None
    assert set(comparison.failed.values()) == {"ZeroDivisionError: division by zero"}


def test_rates_that_diverge_are_not_the_best(tmp_path):
    comparison = compared(tmp_path, "sgd@1e30,sgd@1e31,sgd@0.1,sgd", epochs=1)
    comparison.run()
    group, _ = grouped(comparison)
    assert group.rows["searched"].iloc[0] == 9
    assert len(group.failures) == 2
    assert "SGD 1e+30, seed 0: diverged at step 2" in group.failures


@pytest.mark.timeout(300)  # processes that import torch, on a machine that may be busy
def test_two_at_a_time_give_the_same_numbers(tmp_path):
    wanted = {"methods": "alrao,adam", "threads": 1}
    one, two = compared(tmp_path / "one", **wanted), compared(tmp_path / "two", **wanted)
    one.run(Processes(1))
    two.run(Processes(2))
    assert two.failed == {}
    for a, b in zip(one.runs, two.runs, strict=True):
        assert outcome(a) == outcome(b)


def _die(*_):
    os._exit(9)


def test_a_process_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(spread, "_run_one", _die)
    with pytest.raises(LabError, match=r"was killed, perhaps for lack of memory: try fewer --jobs"):
        compared(tmp_path, "alrao,adam").run(Processes(2))


def test_the_live_table(tmp_path):
    comparison = compared(tmp_path, "alrao,adam,sgd@1e30")
    assert "3 waiting" in shown(live_table(comparison))
    comparison.run()
    text = shown(live_table(comparison))
    assert "done" in text
    assert "1/1" in text
    assert "diverged at step 2" in text
    assert "waiting" not in text


def test_the_live_table_while_more_is_planned(tmp_path):
    comparison = compared(tmp_path, "adam,alrao")

    class Growing(dict):
        def items(self):
            for number, item in enumerate(list(super().items())):
                self[Path(str(number))] = item[1]
                yield item

    comparison.planned = Growing(comparison.planned)
    assert "2 waiting" in shown(live_table(comparison))


def test_a_validation_that_was_never_finite(tmp_path, monkeypatch):
    nothing = {"loss": float("nan"), "accuracy": 0.0}
    monkeypatch.setattr("alrao_lab.tasks.task.evaluate", lambda *_: nothing)
    comparison = compared(tmp_path, "adam")
    comparison.run()
    [planned] = comparison.planned.values()
    assert ended(planned, None) == "Adam, seed 0: diverged (no finite validation loss)"
    assert "no finite validation loss" in shown(live_table(comparison))


# Triangles.


def test_the_triangle(tmp_path):
    triangle = Triangle(settings(**SMALL), (0.1, 1e-2, 0.1), roots=[tmp_path])
    assert triangle.rates == [0.01, 0.1]
    assert {key: (str(p.settings.method), p.settings.lr) for key, p in triangle.cells.items()} == {
        (0.01, 0.01): ("sgd@0.01", None),
        (0.01, 0.1): ("alrao", Interval(0.01, 0.1)),
        (0.1, 0.1): ("sgd@0.1", None),
    }
    assert "–" in shown(triangle_table(triangle))
    triangle.run()
    text = shown(triangle_table(triangle))
    for planned in triangle.cells.values():
        assert f"{planned.run.result['test']['loss']:.3f}" in text
    # The diagonal is what a comparison has too.
    assert run(settings(**SMALL, method="sgd@0.1"), [tmp_path]).path in triangle.planned


def test_the_triangle_where_runs_fail(tmp_path, monkeypatch):
    explode(monkeypatch, "sgd@0.1", RuntimeError("boom"))
    triangle = Triangle(settings(**SMALL), (0.1, 1e30), roots=[tmp_path])
    triangle.run()
    text = shown(triangle_table(triangle))
    assert "failed" in text
    assert "×" in text


def test_a_test_figure_that_is_not_finite(tmp_path):
    triangle = Triangle(settings(**SMALL), (0.1,), roots=[tmp_path])
    triangle.run()
    [planned] = triangle.cells.values()
    result = planned.run.result
    RunDirectory(planned.run.path).write("result", {**result, "test": {"loss": float("inf")}})
    assert "×" in shown(triangle_table(triangle))


def test_the_triangle_of_adam(tmp_path):
    triangle = Triangle(settings(**SMALL, method="alrao-adam"), (0.1, 1), roots=[tmp_path])
    assert [str(p.settings.method) for p in triangle.cells.values()] == ["adam@0.1", "alrao-adam", "adam@1"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("sgd@0.1", "about alrao and alrao-adam, got --method sgd@0.1"),
        ("arlao", "did you mean alrao"),
    ],
)
def test_triangles_that_cannot_be(tmp_path, method, message):
    with pytest.raises(LabError, match=message):
        Triangle(settings(method=method), (1.0,), roots=[tmp_path])


def test_runs_that_are_wanted_twice_are_planned_once(tmp_path):
    several = RunSet(settings(), [tmp_path])
    first = several.plan(settings(method="sgd", lr="0.1"))
    assert several.plan(settings(method="sgd@0.1")) is first
    assert several.plan(replace(settings(), seed=1)) is not first
    assert len(several.runs) == 2


# Who won.


def judged(scores, measure="loss", higher=False):
    """The sentence about methods with these test figures, one for each seed."""
    column = f"test {measure}"
    ended = pd.DataFrame(
        [{"label": name, column: score} for name, values in scores.items() for score in values]
    )
    rows = ended.groupby("label")[[column]].mean().reindex(list(scores))
    counts = pd.Series([len(values) for values in scores.values()], rows.index, dtype=object)
    rows = rows.assign(failed=0, searched=1, seeds=counts)
    return verdict(SimpleNamespace(measure=measure, higher=higher, rows=rows, ended=ended))


def test_the_verdict_says_who_won_by_how_much_and_how_certain_that_is():
    said = judged({"Adam": [0.9, 1.0, 1.1], "Auto": [0.29, 0.30, 0.31]})
    assert said.startswith("Auto has the lowest test loss, 0.3; next is Adam, 1: a difference of 0.7 (95 %")
    assert "over 3 and 3 seeds: 0.45 to 0.95)" in said
    said = judged({"Adam": [0.9, 1.0, 1.1], "Auto": [0.8, 1.0, 1.0]})
    assert "no clear winner, a difference of 0.067 (95 % interval over 3 and 3 seeds: -0.1" in said


def test_the_verdict_of_a_score_is_the_highest():
    said = judged({"Adam": [80.0, 81.0], "Auto": [90.0, 91.0]}, "accuracy", higher=True)
    assert said.startswith("Auto has the highest test accuracy, 90.5; next is Adam, 80.5: a difference of 10")


def test_the_verdict_of_single_runs_has_no_uncertainty():
    said = judged({"Adam": [1.0], "Auto": [0.5]})
    assert said.endswith("without an uncertainty (it takes two seeds of each)")
    assert judged({"Auto": [0.5]}).startswith("no verdict")
