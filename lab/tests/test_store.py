"""Run directories: full disks, places that cannot be written, damaged files, locks, names of runs."""

import dataclasses
import errno
import os
import random
import re
import resource
import signal
import stat
from pathlib import Path

import pytest
import torch
from lab_support.runs import in_child, outcome, settings, strict, tiny

from alrao_lab import store
from alrao_lab.errors import LabError
from alrao_lab.records import find_runs, locate
from alrao_lab.resolve import resolve
from alrao_lab.run import run
from alrao_lab.settings import Settings, option
from alrao_lab.store import RunDirectory, replace_file

CPU = torch.device("cpu")


def interrupted(root, **changes):
    """A run that was stopped in its second epoch."""

    def stop(loop):
        if loop.progress.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny(root, stop, **changes)
    [config] = Path(root).rglob("config.json")
    return RunDirectory(config.parent)


def no_room(size):
    """Let no file of this process grow beyond that size: what a full disk is to it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize(("size", "name"), [(100, "config.json"), (3000, "checkpoint.pt")])
def test_a_full_disk_names_the_file(tmp_path, size, name):
    said = tmp_path / "said"
    said.touch()
    file = os.open(said, os.O_WRONLY)

    def work():
        no_room(size)
        with pytest.raises(LabError) as caught:
            tiny(tmp_path / "runs", method="adam")
        os.write(file, str(caught.value)[-90:].encode())

    assert in_child(work) == 0
    os.close(file)
    assert said.read_text().endswith(f"{name} could not be written: File too large")
    assert not list((tmp_path / "runs").rglob(".*-*")), "what was begun is removed"
    assert outcome(tiny(tmp_path / "runs", method="adam")) == outcome(tiny(tmp_path / "b", method="adam"))


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    replace_file(path, lambda file: file.write(b"old"))

    def full(file):
        file.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LabError, match="file could not be written: No space left on device"):
        replace_file(path, full)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_is_full_when_the_file_is_flushed(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(LabError, match=r"\.owner could not be written: No space left"):
        tiny(tmp_path)
    assert not list(tmp_path.rglob("*.json*"))


def test_a_bug_in_saving_is_not_called_a_full_disk(tmp_path):
    with pytest.raises(Exception, match=r"[Pp]ickle|lambda"):
        RunDirectory(tmp_path).save({"state": lambda: None})


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="could not be written: Not a directory"):
        tiny(tmp_path / "file" / "runs")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)

    def work():
        if os.geteuid() == 0:  # whom no mode stops
            os.seteuid(65534)
        denied = pytest.raises(LabError, match=r"could not be written: Permission denied")
        with denied, RunDirectory(closed / "run").locked():
            pass

    assert in_child(work) == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    directory = interrupted(tmp_path)
    (directory.path / name).write_bytes(content)
    with pytest.raises(LabError, match=rf"{name} is damaged .*delete the run's directory"):
        tiny(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"threads": 100000}', '{"threads": "1"}'])
def test_a_config_that_lacks_the_threads(tmp_path, content):
    directory = interrupted(tmp_path)
    (directory.path / "config.json").write_text(content)
    with pytest.raises(LabError, match=r"config\.json is damaged \(it names no number of threads\)"):
        tiny(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "half", "text", "list", "tensor", "inside", "keys", "shapes"])
def test_a_damaged_checkpoint_is_named_and_can_be_deleted(tmp_path, damage):
    directory = interrupted(tmp_path)
    path = directory.path / "checkpoint.pt"
    state, content = directory.load(CPU), path.read_bytes()
    if damage in ("empty", "half", "text"):
        path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "text": b"hello"}[damage])
    elif damage == "shapes":
        weights = state["learner"]["model"]
        torch.save({**state, "learner": {"model": {n: w[..., :1] for n, w in weights.items()}}}, path)
    else:
        whole = {"list": [1], "tensor": torch.ones(3), "keys": {**state, "progress": {"epochs": 2}}}
        torch.save({**whole, "inside": {**state, "learner": torch.ones(3)}}[damage], path)
    with pytest.raises(LabError, match=r"checkpoint\.pt is .*: delete it to start the run again"):
        tiny(tmp_path)
    path.unlink()
    assert outcome(tiny(tmp_path)) == outcome(tiny(tmp_path / "b"))


def flat(value):
    """A state without tensors: what they hold, to the bit."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.numpy().tobytes())
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    return [flat(item) for item in value] if isinstance(value, list | tuple) else value


def test_flipped_bits_in_a_checkpoint_are_noticed(tmp_path):
    """Each either changes nothing that is loaded, or is named."""
    directory = interrupted(tmp_path, method="adam")
    path = directory.path / "checkpoint.pt"
    content, good = path.read_bytes(), flat(directory.load(CPU))
    generator, said = random.Random(0), []
    for _ in range(300):
        flipped = bytearray(content)
        flipped[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        try:
            assert flat(directory.load(CPU)) == good
        except LabError as error:
            said.append(str(error))
    assert len(said) > 200
    assert all(re.search(r"checkpoint\.pt is damaged .*: delete it to start", sentence) for sentence in said)


@pytest.mark.parametrize("content", [None, b"", b'{"epoch"', b"[]\n", b"\xff\n"])
def test_damaged_metrics_are_named(tmp_path, content):
    path = interrupted(tmp_path).path / "metrics.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LabError, match=r"metrics\.jsonl is damaged \(1 epochs are done, .* up to 0\)"):
        tiny(tmp_path)


def test_a_line_that_was_cut_off_ends_the_metrics(tmp_path):
    directory = tiny(tmp_path)
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    assert [line["epoch"] for line in directory.metrics()] == [1, 2]


def test_numbers_that_json_has_not(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write("result", {"a": float("nan"), "b": [float("inf"), {"c": (-float("inf"), 1.5)}]})
    assert strict((tmp_path / "result.json").read_text()) == {"a": None, "b": [None, {"c": [None, 1.5]}]}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_usual_permissions(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        directory = tiny(tmp_path, epochs=1)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.path.glob("[!.]*")}
    assert set(modes) == {"config.json", "metrics.jsonl", "checkpoint.pt", "features.json", "result.json"}
    assert set(modes.values()) == {mode}


# Names of runs.


def digest(**changes):
    return resolve(settings(**changes))[1].digest("data")


SAME = [
    ({"method": "sgd", "lr": "0.10"}, {"method": "sgd@0.1"}),
    ({"method": "alrao"}, {"method": "alrao", "lr": "0.00001:10", "copies": 10, "model": "mlp"}),
    ({"task": "text"}, {"task": "text", "level": "char", "dropout": 0.2}),
    ({"method": "adam", "copies": 5}, {"method": "adam"}),
    ({"threads": 1, "data": "a", "device": "cpu", "tensorboard": True}, {}),
    ({"epochs": None}, {"epochs": 30, "batch": 32}),
    ({"method": "frozen@0.1:.50"}, {"method": "frozen@1e-1:0.5"}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_of_one_run(one, other):
    assert digest(**one) == digest(**other)


def test_every_setting_that_repeats_a_run_makes_another_one():
    plain, fields = Settings(), dataclasses.fields(Settings)
    repeating = {field.name for field in fields if field.metadata["repeats"]}
    assert {"task", "model", "method", "lr", "seed", "epochs", "theta", "width", "target"} <= repeating
    names = {plain.digest("data"), plain.digest("other data")}
    others = {"lr": "1:2"}  # which has a spelling
    for name in repeating:
        names.add(dataclasses.replace(plain, **{name: others.get(name, "another")}).digest("data"))
    assert len(names) == len(repeating) + 2
    for name in {field.name for field in fields} - repeating:
        assert dataclasses.replace(plain, **{name: "another"}).digest("data") == plain.digest("data")


def test_a_setting_that_is_added_later_leaves_runs_what_they_were():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(Settings):
        added: int = option(3, "something new")

    values = dataclasses.asdict(resolve(settings(seed=2))[1])
    assert Later(**values).digest("data") == Settings(**values).digest("data")
    assert Later(**values, added=4).digest("data") != Settings(**values).digest("data")


def test_names_of_runs_stay_what_they_are():
    """Results that are kept are found by these names: a change here would lose them."""
    assert Settings(method="alrao").digest("data") == "4ee836ea10"
    assert digest(epochs=None, train_size=None) == "15c4e6dbd8"
    assert digest(epochs=None, train_size=None, method="sgd@0.1", seed=2) == "07b4789b12"


def test_a_directory_has_a_name_to_read(tmp_path):
    wanted = resolve(settings(method="frozen@0.1:0.5", seed=3))[1]
    path = locate(wanted, "data", [tmp_path]).path
    assert path.relative_to(tmp_path).parts[:2] == ("digits", "mlp")
    assert path.name == f"frozen@0.1_0.5-3-{wanted.digest('data')}"


def test_runs_are_found_once_and_finished_if_they_are_so_anywhere(tmp_path):
    whole = tiny(tmp_path / "results", epochs=3)
    cut = interrupted(tmp_path / "runs", epochs=3)
    other = tiny(tmp_path / "runs", method="adam")
    for roots in ([tmp_path / "runs", tmp_path / "results"], [tmp_path]):
        found = {directory.path for directory in find_runs(roots)}
        assert found == {whole.path, other.path}
    assert {directory.path for directory in find_runs([tmp_path / "runs"])} == {cut.path, other.path}
    assert run(settings(epochs=3), [tmp_path / "runs", tmp_path / "results"]).path == whole.path
    assert list(find_runs([tmp_path / "none"])) == []


def test_ctrl_c_during_a_write_comes_after_it(tmp_path):
    import signal

    path, written = tmp_path / "file", []

    def write(file):
        signal.raise_signal(signal.SIGINT)
        file.write(b"whole")
        written.append(True)

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, write)
    assert written == [True]
    assert not list(tmp_path.glob(".file*")), "nothing is left behind"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # the handler is as it was
