"""Files of results: what is kept, what is refused, and what the committed rows say of their origin."""

import lzma
import os
import re
import subprocess

import pytest
from lab_support.runs import settings, tiny
from support.tools import ROOT

from alrao_lab import provenance
from alrao_lab.errors import LabError
from alrao_lab.provenance import require_clean, source_state, unclean
from alrao_lab.records import (
    KeptRun,
    experiment_file,
    find_runs,
    keep,
    locate,
    read,
    read_rows,
    read_runs,
    write_rows,
)
from alrao_lab.render.markdown import page
from alrao_lab.render.terminal import comparison_table
from alrao_lab.report.page import Report
from alrao_lab.run import run
from alrao_lab.settings import Settings
from alrao_lab.store import RunDirectory
from alrao_lab.table import experiments

COMMIT = "0123456789ab"


def committed(directory, commit=COMMIT, modified=False):
    """The run, as if started from a commit."""
    directory.write("config", {**directory.config, "commit": commit, "modified": modified})
    return directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return committed(tiny(tmp_path_factory.mktemp("finished"), seed=1, epochs=2))


@pytest.fixture
def place(tmp_path, finished):
    """A directory ``runs`` with a finished run, to which more may be added."""
    target = RunDirectory(tmp_path / "runs" / "digits" / "mlp" / finished.path.name)
    target.write("config", finished.config)
    target.write_metrics(finished.metrics())
    target.write("features", finished.features())
    target.write("result", finished.result)
    return tmp_path


def test_keeping_adds_a_row_for_each_finished_run(place, finished):
    unfinished = RunDirectory(place / "runs" / "digits" / "mlp" / "adam-0-0123456789")
    unfinished.write("config", finished.config)
    assert keep([place / "runs"], place / "results") == (1, [])
    assert os.listdir(place / "results") == ["digits-mlp.jsonl.xz"]
    content = (place / "results" / "digits-mlp.jsonl.xz").read_bytes()
    assert keep([place / "runs"], place / "results") == (0, [])
    assert (place / "results" / "digits-mlp.jsonl.xz").read_bytes() == content
    [kept] = find_runs([place / "results"])
    assert isinstance(kept, KeptRun)
    assert kept.config == finished.config
    assert (kept.result, kept.metrics(), kept.features()) == (
        finished.result, finished.metrics(), finished.features(),
    )  # fmt: skip
    assert kept.historical is False


def test_a_run_that_is_kept_is_not_run_again(place, monkeypatch):
    keep([place / "runs"], place / "results")
    monkeypatch.setattr("alrao_lab.run.train", lambda *_: pytest.fail("it trains"))
    found = run(settings(seed=1, epochs=2), [place / "new", place / "results"])
    assert isinstance(found, KeptRun)
    assert found.path.parent == place / "results" / "digits-mlp.jsonl.xz" / "digits" / "mlp"
    assert not (place / "new").exists()


def test_event_files_of_a_run_that_is_kept_go_to_the_runs(place):
    pytest.importorskip("tensorboard")
    keep([place / "runs"], place / "results")
    run(settings(seed=1, epochs=2, tensorboard=True), [place / "new", place / "results"])
    assert len(list((place / "new").rglob("events.out.tfevents.*"))) == 1


def test_a_directory_and_its_row_count_once(place):
    keep([place / "runs"], place / "results")
    assert len(list(find_runs([place / "runs", place / "results"]))) == 1
    [experiment] = experiments(read_runs([place / "results" / "digits-mlp.jsonl.xz"]))
    assert list(experiment.rows.index) == ["Alrao"]


def test_the_same_rows_are_the_same_bytes_in_any_order(tmp_path):
    rows = {name: {"run": name, "historical": False} for name in ("b/c/d", "a/b/c")}
    write_rows(tmp_path / "one", rows)
    write_rows(tmp_path / "two", dict(sorted(rows.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert list(read_rows(tmp_path / "one")) == ["a/b/c", "b/c/d"]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({"model": "cnn"}, "digits-cnn.jsonl.xz"),
        ({"experiment": "workload-cnn"}, "workload-cnn.jsonl.xz"),
        ({"experiment": "../over there/x"}, "over-there-x.jsonl.xz"),
    ],
)
def test_the_file_of_an_experiment(wanted, name):
    assert experiment_file(Settings(**wanted)) == name


@pytest.mark.parametrize("content", [b"", b"not xz", lzma.compress(b"{"), lzma.compress(b"[1]\n")])
def test_a_damaged_file_of_results(tmp_path, content):
    path = tmp_path / "digits-mlp.jsonl.xz"
    path.write_bytes(content)
    with pytest.raises(LabError, match=r"mlp\.jsonl\.xz is damaged .*: restore it from version control"):
        locate(settings(), "data", [tmp_path])
    assert "is damaged" in read_runs([tmp_path]).left_out[0], "the report is made all the same"


def test_keep_refuses_damaged_runs_and_keeps_the_others(place):
    run = place / "runs" / "digits" / "mlp" / "damaged"
    run.mkdir()
    for name, content in (("config.json", b"{}"), ("result.json", b"{")):
        (run / name).write_bytes(content)
    count, [said] = keep([place / "runs"], place / "results")
    assert count == 1
    assert "mlp/damaged" in said
    assert "is damaged" in said


def test_keep_refuses_a_run_whose_metrics_are_cut_off(place):
    [found] = find_runs([place / "runs"])
    with (found.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    count, [said] = keep([place / "runs"], place / "results")
    assert count == 0
    assert "metrics.jsonl is damaged from line 3 on" in said


@pytest.mark.parametrize(
    ("commit", "modified", "why"),
    [
        (None, False, "not run from a clone of the repository, so its commit is unknown"),
        ("0123456789ab+", False, "its commit is unknown"),
        (COMMIT, True, f"tracked files differed from the commit {COMMIT} when it started"),
        (COMMIT, None, "tracked files differed"),
    ],
)
def test_keep_refuses_runs_without_a_clean_commit(place, commit, modified, why):
    [found] = find_runs([place / "runs"])
    committed(found, commit, modified)
    count, [said] = keep([place / "runs"], place / "results")
    assert count == 0
    assert said.startswith(f"{found.path} is not kept: ")
    assert why in said
    assert said.endswith("commit all changes, delete its directory and run it again with --to-keep")
    assert not (place / "results").exists()


# The state of the code.


@pytest.fixture
def clone(tmp_path):
    """A file in a repository with one commit."""
    file = tmp_path / "src" / "code.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    (tmp_path / "other.py").write_text("y = 1\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "digits.jsonl").write_text("")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return file


def test_a_clean_clone_has_a_commit(clone):
    commit, modified = source_state(clone)
    assert re.fullmatch("[0-9a-f]{12}", commit)
    assert modified is False
    (clone.parent / "untracked.py").write_text("")
    assert source_state(clone) == (commit, False)
    assert unclean(commit, modified) is None


def test_a_modified_file_anywhere_in_the_repository_counts(clone):
    commit, _ = source_state(clone)
    (clone.parents[1] / "other.py").write_text("y = 2\n")
    assert source_state(clone) == (commit, True)


def test_records_may_be_modified(clone):
    commit, _ = source_state(clone)
    records = clone.parents[1] / "results" / "digits.jsonl"
    assert records.exists()
    records.write_text("{}\n")
    assert source_state(clone) == (commit, False)
    clone.write_text("x = 2\n")
    assert source_state(clone) == (commit, True)


def test_code_outside_a_repository_has_no_commit(clone, tmp_path):
    installed = clone.parent / "installed.py"  # inside another's repository
    installed.write_text("")
    assert source_state(installed) == (None, False)


def test_a_run_that_is_to_be_kept_does_not_start_from_modified_files(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "source_state", lambda: (COMMIT, True))
    with pytest.raises(LabError, match=f"as in commit {COMMIT}: commit or stash the changes"):
        tiny(tmp_path, to_keep=True)
    assert not list(tmp_path.rglob("config.json"))
    config = tiny(tmp_path, epochs=1).config
    assert (config["commit"], config["modified"]) == (COMMIT, True)
    monkeypatch.setattr(provenance, "source_state", lambda: (None, False))
    with pytest.raises(LabError, match="--to-keep needs the code of a git clone"):
        require_clean()


@pytest.fixture
def historical(place):
    """A file with a row that was kept before commits were recorded, and one of a clean commit."""
    keep([place / "runs"], place / "results")
    [file] = (place / "results").iterdir()
    [row] = read_rows(file).values()
    old = {**row, "run": row["run"].replace("alrao-1-", "alrao-2-"), "historical": True}
    old["config"] = {**row["config"], "settings": {**row["config"]["settings"], "seed": 2}}
    write_rows(file, {one["run"]: one for one in (row, old)})
    return file


def test_tables_and_pages_say_what_rests_on_historical_runs(historical):
    said = "1 of these 2 runs is historical: no clean commit was recorded at their start."
    reading = read_runs([historical])
    [experiment] = experiments(reading)
    assert experiment.rows.loc["Alrao", "historical"] == 1
    assert said in page([experiment])
    assert said in comparison_table(experiment).caption
    assert said in Report.of(reading).html()


def test_a_historical_row_stays_so_when_others_are_kept(historical, place):
    [found] = find_runs([place / "runs"])
    target = RunDirectory(found.path.with_name("alrao-3-0123456789"))
    target.write("config", {**found.config, "settings": {**found.config["settings"], "seed": 3}})
    target.write("result", found.result)
    assert keep([place / "runs"], place / "results") == (1, [])
    assert [row["historical"] for row in read_rows(historical).values()] == [False, True, False]


# What is committed.

FILES = sorted((ROOT / "results").glob("*.jsonl.xz"))


def test_there_are_committed_rows():
    assert len(FILES) >= 10
    others = {"auto-pieces.jsonl", "compatibility.jsonl"}  # of tools/pieces.py and tools/compatibility.py
    others |= {"recipes.jsonl"}  # of `alrao recipes`
    assert {path.name for path in (ROOT / "results").iterdir()} - others == {path.name for path in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_every_committed_row_is_historical_or_of_a_clean_commit(file):
    rows = read_rows(file)
    assert rows
    for row in rows.values():
        config = row["config"]
        assert row["historical"] is (unclean(config["commit"], config["modified"]) is not None), row["run"]
        assert row["result"]["status"] in ("finished", "diverged")
        own = read([KeptRun(file, row)]).records[0].settings
        assert isinstance(config["settings"]["method"], dict), "a typed value, not its spelling"
        name = f"{own.task}/{own.model}/{own.method}-{own.seed}-".replace(":", "_")
        assert re.fullmatch(re.escape(name) + "[0-9a-f]{10}", row["run"])


def test_committed_rows_can_all_be_read():
    reading = read_runs([ROOT / "results"])
    assert reading.left_out == []
    assert len(reading.records) >= 921
    assert sum(record.run.historical for record in reading.records) <= 12, "no row becomes historical later"
