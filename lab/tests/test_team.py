"""Several processes train one run: the numbers of one process, to rounding; killed, and resumed by others."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict

import pytest
import torch
from lab_support import ranks
from lab_support.pictures import as_binary, cifar
from lab_support.runs import settings, start
from support.processes import torchrun

from alrao_lab.errors import LabError
from alrao_lab.records import find_runs
from alrao_lab.resolve import resolve
from alrao_lab.run import require_share, run
from alrao_lab.store import RunDirectory
from alrao_lab.team import Team, launched

state = pytest.importorskip("accelerate.state", reason="several processes need alrao-lab[processes]")

CPU = torch.device("cpu")
SMALL = {"epochs": 2, "train_size": 75, "batch": 12, "threads": 1}  # the last batch has three rows
WAYS = {
    "auto": {"method": "auto"},
    "alrao": {"method": "alrao", "lr": "0.001:0.1", "model": "cnn", "copies": 4},
    "adam": {"method": "adam", "model": "cnn", "schedule": "cosine", "clip": 0.5},
    "schedulefree": {"method": "schedulefree", "model": "cnn"},
    "average": {"method": "sgd@0.1", "momentum": 0.9, "average": True, "model": "cnn"},
    "regression": {"task": "regression", "method": "alrao", "lr": "0.001:0.1"},
    "text": {"task": "text", "model": "gru", "method": "alrao", "lr": "0.01:1", "dropout": 0.0, "epochs": 1},
}


@pytest.fixture
def wanted(tmp_path):
    """The settings of the ways."""
    text = tmp_path / "some.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 150)
    found = {name: settings(**{**SMALL, **way}) for name, way in WAYS.items()}
    changes = {**SMALL, **WAYS["text"], "train_size": None, "data": str(text)}
    return found | {"text": settings(**changes)}


def written(folder, wanted):
    """A file for the script."""
    path = folder.with_suffix(".json")
    spelled = [
        {**asdict(each), "method": str(each.method), "lr": each.lr and str(each.lr)} for each in wanted
    ]
    path.write_text(json.dumps(spelled))
    return path


def together(folder, wanted, processes=2, die=0):
    """Train them in several processes, which die after some steps of each run, or not."""
    words = written(folder, wanted), folder, die
    code, said = torchrun(ranks.__file__, *words, processes=processes, deadline=400)
    assert (code == 0) == (die == 0), said
    assert bool(re.search(r"exitcode *: 77", said)) == bool(die), said


def assert_close_runs(a, b):
    """Whether two runs are the same to rounding: metrics, weights, rates."""
    assert a.name == b.name
    lines = [[(line["train"], line["valid"], line["test"]) for line in one.metrics()] for one in (a, b)]
    assert len(lines[0]) > 0
    torch.testing.assert_close(flat(lines[0]), flat(lines[1]), rtol=2e-4, atol=2e-4)
    # The bias before BatchNorm has a gradient of 0, and Adam divides rounding by rounding.
    weights = [
        {name: tensor for name, tensor in one.load(CPU)["best"].items() if tensor.ndim > 1 or "var" in name}
        for one in (a, b)
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=2e-4)
    assert a.result["copy_rates"] == b.result["copy_rates"]


def flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [number for each in value for number in flat(each)] if isinstance(value, list | tuple) else [value]


def forked(folder, wanted, processes):
    """The same without torchrun and its imports, which take longer than the runs."""
    path = written(folder, wanted)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}

    def work(rank):
        own = {**common, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
        os.environ.update({name: str(value) for name, value in own.items()})
        state.AcceleratorState._reset_state(reset_partial_state=True)  # of earlier tests, in one process
        state.GradientState._reset_state()
        ranks.main(path, folder)

    children = [start(lambda rank=rank: work(rank), deadline=300) for rank in range(processes)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * processes


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_are_as_good_as_one(tmp_path, wanted):
    forked(tmp_path / "two", wanted.values(), 2)
    for each in wanted.values():
        one = run(each, [tmp_path / "one"])
        assert_close_runs(one, RunDirectory(tmp_path / "two" / one.path.relative_to(tmp_path / "one")))


def member(rank, size):
    """One of several processes, without the others."""
    found = Team(CPU)
    found.rank, found.size = rank, size
    return found


@pytest.mark.parametrize(("rows", "size"), [(12, 2), (12, 3), (7, 2), (5, 4), (3, 4), (1, 2)])
@pytest.mark.parametrize("each", [1, 6])
def test_the_rows_of_a_batch(rows, size, each):
    """Every row belongs to one process, and the mean of their weighted means is that of the batch."""
    inputs = torch.rand(rows, 3, dtype=torch.float64)
    targets = inputs[:, :1].repeat(1, each).flatten()
    found, means = [], []
    for rank in range(size):
        x, y, factor = member(rank, size).share(inputs, targets)
        assert y.tolist() == x[:, :1].repeat(1, each).flatten().tolist()
        found += x.tolist() if factor else []
        means.append(factor * y.mean().item())
    assert found == inputs.tolist()
    assert sum(means) / size == pytest.approx(targets.mean().item(), rel=1e-12)


def test_the_state_of_the_rows():
    carry = (torch.rand(2, 12, 4), torch.rand(2, 12, 4))
    parts = [member(rank, 3).split_carry(carry) for rank in range(3)]
    for whole, *pieces in zip(carry, *parts, strict=True):
        assert torch.equal(torch.cat(pieces, 1), whole)
    assert member(0, 2).split_carry(None) is None
    assert member(0, 2).split_carry(()) == ()


def test_random_numbers_of_a_process():
    torch.manual_seed(1)
    drawn = []
    for rank in (0, 1, 0):
        with member(rank, 2).own_random_numbers(0, 1, 5):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    common = torch.rand(1)
    assert torch.equal(common, torch.manual_seed(1) and torch.rand(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 32}, r"--batch 32 cannot be divided by 3 processes: give --batch 33, or another number"),
        ({"batch": 1}, r"--batch 1 cannot be divided by 3 processes: give --batch 3"),
        (
            {"task": "pendulum"},
            r"--processes 3 is for tasks with batches .* pendulum has none: train it in one",
        ),
    ],
)
def test_runs_that_cannot_be_shared(changes, message):
    if "task" in changes:
        pytest.importorskip("stable_baselines3")
    task, resolved = resolve(settings(**{"epochs": 1, "train_size": None, **changes}))
    with pytest.raises(LabError, match=message):
        require_share(task.load(resolved, CPU), resolved, 3)


def test_processes_that_torchrun_started(monkeypatch):
    assert launched(None) == launched(2) == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "some")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched(None) == launched(4) == 4
    with pytest.raises(LabError, match="--processes 2, but torchrun started 4: leave --processes out"):
        launched(2)


def test_processes_that_do_not_see_the_same_directory(monkeypatch):
    monkeypatch.setattr(Team, "_gather", lambda self, value: [value, "0 steps", value])
    Team(CPU).require_same("0 steps")
    with pytest.raises(LabError, match=r"different checkpoints \(0 steps and 5 steps\): give --out a dir"):
        Team(CPU).require_same("5 steps")


def test_accelerate_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(LabError, match=r"needs the package accelerate, .*'alrao-lab\[processes\]'"):
        Team.join(CPU)


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(LabError, match=r"4 processes need a GPU each, and there are \d: start fewer"):
        Team.join(torch.device("cuda"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["auto", "alrao", "text"])
def test_killed_and_resumed_by_another_number_of_processes(tmp_path, wanted, way):
    one, cut = run(wanted[way], [tmp_path / "one"]), tmp_path / "cut"
    for processes, die, steps in ((2, 3, 2), (3, 2, 3)):
        together(cut, [wanted[way]], processes, die)
        [begun] = find_runs([cut])
        assert begun.load(CPU)["progress"]["total"] == steps
    assert_close_runs(one, run(wanted[way], [cut]))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dropout_differs_between_processes_and_resumes(tmp_path, wanted):
    """A run with dropout is repeated to the bit by the same number of processes, killed or not."""
    each = settings(**{**asdict(wanted["text"]), "dropout": 0.5})
    for name in ("whole", "cut"):
        if name == "cut":
            together(tmp_path / name, [each], die=3)
        together(tmp_path / name, [each])
    whole, cut = (next(find_runs([tmp_path / name])) for name in ("whole", "cut"))
    for a, b in zip(whole.metrics(), cut.metrics(), strict=True):
        assert (a["train"], a["valid"]) == (b["train"], b["valid"])


# The command.


def command(folder, *words):
    folder = ["--out", str(folder), "--data", str(folder / "cifar"), "--threads", "1"]
    return [sys.executable, "-m", "alrao_lab.cli", *map(str, words), *folder]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_killed_and_resumed(tmp_path, monkeypatch):
    monkeypatch.setenv("ALRAO_CACHE", str(tmp_path / "cache"))
    as_binary(cifar(), tmp_path / "cifar")
    words = ["train", "cifar10", "--epochs", 4, "--width", 0.25, "--batch", 8, "--method", "sgd@0.01"]
    begun = subprocess.Popen(command(tmp_path, *words, "--processes", 2), start_new_session=True)
    try:
        end = time.monotonic() + 200
        while not list(tmp_path.rglob("checkpoint.pt")):
            assert time.monotonic() < end
            assert begun.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
    said = done(command(tmp_path, *words, "--processes", 3))
    assert said.returncode == 2
    assert said.stderr == (
        "alrao: --batch 8 cannot be divided by 3 processes: give --batch 9, or another number of processes\n"
    )
    said = done(command(tmp_path, *words, "--processes", 4))
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.count("test, at the best epoch") == 1
    [resumed] = find_runs([tmp_path])
    assert_close_runs(resumed, run(resumed_settings(resumed), [tmp_path / "one"]))
    again = done(command(tmp_path, *words, "--processes", 2))
    assert again.stdout.splitlines()[-2:] == said.stdout.splitlines()[-2:], "it is not repeated"


def resumed_settings(found):
    return settings(**{**found.config["settings"], "train_size": None})


def done(words):
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_command_interrupted(tmp_path, number):
    """Ctrl-C reaches every process of the terminal; a kill only one of them."""
    words = command(tmp_path, "train", "digits", "--epochs", 500, "--processes", 2)
    begun = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 200
        while not list(tmp_path.rglob("checkpoint.pt")):
            assert time.monotonic() < end
            time.sleep(0.1)
        if number == signal.SIGINT:
            os.killpg(begun.pid, number)
        else:
            [owner] = tmp_path.rglob(".owner")
            os.kill(int(owner.read_text().split()[1]), number)
        _, errors = begun.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(begun.pid, signal.SIGKILL)
    if number == signal.SIGINT:
        assert (begun.returncode, errors.strip()) == (130, "interrupted: run the same command to resume")
    else:
        assert begun.returncode == 2
        last = errors.splitlines()[-1]  # the other process shows where it lost its partner
        assert re.fullmatch(r"alrao: a training process was ended by signal 9, .* to resume", last)
