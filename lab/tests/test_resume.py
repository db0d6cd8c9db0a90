"""A run that is killed at any moment and started again ends with the same numbers to the bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lab_support.runs import in_child, outcome, settings, tiny

from alrao_lab import loop, store
from alrao_lab.run import run
from alrao_lab.store import RunDirectory

DIED = 77
WAYS = {
    "alrao": {"method": "alrao"},
    "adam": {"method": "adam", "schedule": "cosine"},
    "sgd": {"method": "sgd@0.1", "momentum": 0.9, "schedule": "step", "clip": 1.0},
    "dog": {"method": "dog", "model": "cnn"},
    "schedulefree": {"method": "schedulefree", "model": "cnn"},
    "alrao-adam": {"method": "alrao-adam", "schedule": "linear"},
    "average": {"method": "alrao", "model": "cnn", "average": True},
    "adamw": {"method": "adamw@0.01"},
    "frozen": {"method": "frozen@0.1:0.5"},
    "prodigy": {"method": "prodigy"},
    "dadapt-sgd": {"method": "dadapt-sgd"},
    "dadapt-adam": {"method": "dadapt-adam"},
}


@pytest.fixture
def text(tmp_path):
    """A text for an LSTM; its state goes from batch to batch."""
    words, draw = ("the", "rate", "of", "a", "feature", "is", "drawn", "once"), random.Random(0)
    path = tmp_path / "some.txt"
    path.write_text(" ".join(draw.choice(words) for _ in range(1500)))
    return {"task": "text", "data": str(path), "width": 0.1, "dropout": 0.3, "dropout_everywhere": True,
            "train_size": 3000, "epochs": 2, "batch": 10}  # fmt: skip


class Death:
    """Ends the process at its nth write of a file: in the midst, before the renaming or right after it."""

    def __init__(self, monkeypatch, at, moment):
        self.left, self.moment = at, moment
        self.replace, self.file = os.replace, store.replace_file
        monkeypatch.setattr(store.os, "replace", self.rename)
        monkeypatch.setattr(store, "replace_file", self.write)

    def write(self, path, write):
        self.left -= 1
        if self.left or self.moment != "midst":
            return self.file(path, write)

        def half(file):
            write(file) if callable(write) else file.write(write)
            file.flush()
            os.truncate(file.fileno(), file.tell() // 2)
            os._exit(DIED)

        return self.file(path, half)

    def rename(self, source, target):
        if self.left == 0 and self.moment == "before":
            os._exit(DIED)
        self.replace(source, target)
        if self.left == 0 and self.moment == "after":
            os._exit(DIED)


def die_often(wanted, root, moments=("midst", "before", "after")):
    """Run in processes that die at their first, second, third … write, until one comes to an end."""
    for attempt in range(1, 200):

        def work(attempt=attempt):
            with pytest.MonkeyPatch.context() as patch:
                Death(patch, attempt, moments[attempt % len(moments)])
                run(wanted, [root])

        code = in_child(work)
        assert code in (0, DIED)
        if code == 0:
            return attempt
    raise AssertionError("no end")


def names(directory):
    return sorted(path.name for path in directory.path.iterdir())


@pytest.mark.parametrize("way", list(WAYS))
def test_death_at_the_writes_of_an_epoch(tmp_path, way):
    wanted = settings(**WAYS[way], epochs=3)
    whole = run(wanted, [tmp_path / "whole"])
    assert die_often(wanted, tmp_path / "cut") > 3
    cut = run(wanted, [tmp_path / "cut"])
    assert outcome(cut) == outcome(whole)
    assert names(cut) == names(whole)


@pytest.mark.parametrize("way", ["alrao", "sgd", "dog", "schedulefree", "alrao-adam"])
def test_death_inside_an_epoch(tmp_path, monkeypatch, way):
    wanted = settings(**WAYS[way])
    whole = run(wanted, [tmp_path / "whole"])
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    assert die_often(wanted, tmp_path / "cut") > 4
    assert outcome(run(wanted, [tmp_path / "cut"])) == outcome(whole)


@pytest.mark.parametrize("method", ["alrao", "adam"])
def test_death_inside_a_text(tmp_path, monkeypatch, text, method):
    wanted = settings(**text, method=method)
    whole = run(wanted, [tmp_path / "whole"])
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    assert die_often(wanted, tmp_path / "cut") > 3
    assert outcome(run(wanted, [tmp_path / "cut"])) == outcome(whole)


def test_the_state_that_is_carried_along_matters(tmp_path, monkeypatch, text):
    # Of the test above: without the state, and without the generator's, the numbers are others.
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    whole = run(settings(**text), [tmp_path / "whole"])

    def forget(what, value):
        with pytest.MonkeyPatch.context() as patch:
            load = RunDirectory.load
            patch.setattr(RunDirectory, "load", lambda *a: (s := load(*a)) and {**s, what: value(s[what])})
            root = tmp_path / what
            in_child(lambda: run(settings(**text), [root], lambda loop: loop.step == 3 and os._exit(DIED)))
            return run(settings(**text), [root])

    assert outcome(forget("best", lambda old: old)) == outcome(whole)
    assert outcome(forget("carry", lambda old: None)) != outcome(whole)
    assert outcome(
        forget("random", lambda old: {"cpu": torch.Generator().manual_seed(5).get_state()})
    ) != outcome(whole)


@pytest.mark.parametrize("changes", [{}, {"method": "adam"}, {"model": "cnn", "method": "dog"}])
def test_two_runs_are_identical(tmp_path, changes):
    assert outcome(tiny(tmp_path / "a", **changes)) == outcome(tiny(tmp_path / "b", **changes))


def test_another_seed_is_another_run(tmp_path):
    a, b = tiny(tmp_path, seed=0), tiny(tmp_path, seed=1)
    assert a.path != b.path
    assert a.metrics() != b.metrics()


def test_what_was_cut_off_leaves_nothing(tmp_path):
    in_child(lambda: die_once(tmp_path))
    [path] = (tmp_path / "digits" / "mlp").iterdir()
    assert list(path.glob(".*-*"))
    tiny(tmp_path)
    assert {file.name for file in path.glob(".*")} == {".lock", ".owner"}


def die_once(root):
    with pytest.MonkeyPatch.context() as patch:
        Death(patch, 3, "midst")
        tiny(root)


def test_an_epoch_that_was_cut_off_is_not_in_the_metrics_twice(tmp_path):
    """Killed between the metrics and the checkpoint, an epoch is trained again, and its line replaced."""
    saves = []

    def work():
        with pytest.MonkeyPatch.context() as patch:
            save = RunDirectory.save
            patch.setattr(
                RunDirectory,
                "save",
                lambda *a: os._exit(DIED) if saves.append(1) or len(saves) == 2 else save(*a),
            )
            tiny(tmp_path, epochs=3)

    assert in_child(work) == DIED
    [path] = (tmp_path / "digits" / "mlp").iterdir()
    assert [line["epoch"] for line in RunDirectory(path).metrics()] == [1, 2]
    assert [line["epoch"] for line in tiny(tmp_path, epochs=3).metrics()] == [1, 2, 3]


def command(root, *options):
    return [sys.executable, "-m", "alrao_lab.cli", "train", "digits", "--out", str(root), *options]


def kill_until_done(arguments, root, seed, kills):
    """Start the command, kill it at a random moment of its training, start it again, and so on."""
    draw = random.Random(seed)
    killed = 0
    while True:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            if killed < kills:
                begun = {path: path.stat().st_mtime_ns for path in root.rglob("checkpoint.pt")}
                deadline = time.monotonic() + 60
                while process.poll() is None and time.monotonic() < deadline:
                    now = {path: path.stat().st_mtime_ns for path in root.rglob("checkpoint.pt")}
                    if now != begun:  # it trains
                        time.sleep(draw.uniform(0, 0.1))  # a few of the epochs
                        break
                    time.sleep(0.01)
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    killed += 1
            _, errors = process.communicate(timeout=100)
        finally:
            process.kill()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors
            return killed


def found(root):
    [config] = Path(root).rglob("config.json")
    return RunDirectory(config.parent)


@pytest.mark.slow
@pytest.mark.timeout(300)  # processes that import torch, on a machine that may be busy
def test_kill_9(tmp_path):
    options = ["--method", "alrao", "--epochs", "8", "--train-size", "600", "--threads", "1"]
    whole = tiny(tmp_path / "whole", epochs=8, train_size=600, threads=1)
    assert kill_until_done(command(tmp_path / "cut", *options), tmp_path / "cut", 0, kills=1) == 1
    assert outcome_of_run(tmp_path / "cut") == outcome_of_run(whole.path)


def outcome_of_run(root):
    """Without what the machine and the user's spelling put into the configuration."""
    said = outcome(found(root))
    del said["config.json"]
    return said


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["alrao", "adam", "dog", "schedulefree", "alrao-adam"])
def test_kill_9_again_and_again(tmp_path, way):
    changes = {**WAYS[way], "epochs": 12, "train_size": 600, "threads": 1}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in changes.items()]
    whole = tiny(tmp_path / "whole", **changes)
    assert kill_until_done(command(tmp_path / "cut", *options), tmp_path / "cut", len(way), kills=4) > 1
    assert outcome_of_run(tmp_path / "cut") == outcome_of_run(whole.path)
