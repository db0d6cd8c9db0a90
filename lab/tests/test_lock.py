"""One process at a time works on a run; the run of a dead process is taken over at once."""

import errno
import fcntl
import os
import platform
import shutil
import signal
import time
from contextlib import contextmanager

import pytest
from lab_support.runs import in_child, outcome, start, tiny
from rich.console import Console

from alrao_lab import run as runs
from alrao_lab.cli import records, training
from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.records import find_runs
from alrao_lab.store import BusyError, RunDirectory


@contextmanager
def child(work, folder):
    """Its process id, once it has written the file ``ready``; the process is killed at the end."""
    pid = start(work)
    try:
        wait_for(lambda: (folder / "ready").exists())
        yield pid
    finally:
        for number in (signal.SIGCONT, signal.SIGKILL):
            os.kill(pid, number)
        os.waitpid(pid, 0)


def wait_for(condition, seconds=100):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def hold(directory):
    """Hold the run until the process is killed."""

    def work():
        with directory.locked():
            (directory.path / "ready").touch()
            signal.pause()

    return work


def free(path):
    """Whether a command that does not wait would get the run."""
    try:
        with RunDirectory(path).locked():
            return True
    except BusyError:
        return False


LEFT = {
    "of another host": "4194303\nanother-host 0f3c 4026531836\n",
    "of a process number that is another's now": f"{os.getpid()}\n{platform.node()}\n",
    "empty, from a full disk": "",
    "without a number": "no number\nhere\n",
    "not text": "\udcff\0",
}


@pytest.mark.parametrize("content", LEFT.values(), ids=LEFT)
def test_train_resumes_whatever_file_a_killed_process_left(tmp_path, monkeypatch, capsys, content):
    """After a reboot, in a new container, on another host: nothing but the files of the run is left."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits", "--epochs", "2", "--train-size", "100"]

    def killed(loop):
        if loop.progress.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(lambda: tiny("runs", killed, method="auto", train_size=100)) == -signal.SIGKILL
    [path] = (tmp_path / "runs" / "digits" / "mlp").iterdir()
    hidden = [file for file in path.iterdir() if file.name.startswith(".")]
    assert hidden
    for file in hidden:
        file.write_text(content, errors="surrogateescape")
    cli.main(words, standalone_mode=False)
    assert "test, at the best epoch" in capsys.readouterr().out
    [found] = find_runs([tmp_path / "runs"])
    assert outcome(found) == outcome(tiny(tmp_path / "b", method="auto", train_size=100))


def test_never_two_at_once(tmp_path):
    """Four processes hold and release a run; the file system says whether two hold it at once."""

    def work():
        for _ in range(25):
            with RunDirectory(tmp_path / "run").locked(wait=60):
                (tmp_path / "inside").touch(exist_ok=False)
                (tmp_path / "inside").unlink()

    children = [start(work) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4


def test_kill_9_of_the_owner(tmp_path):
    directory = RunDirectory(tmp_path)
    with child(hold(directory), tmp_path) as pid:
        assert not free(tmp_path)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert free(tmp_path)  # although its parent has not waited for it, so that it has a number


def test_an_owner_that_is_stopped_keeps_its_run(tmp_path):
    with child(hold(RunDirectory(tmp_path)), tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        message = rf"process {pid} on {platform.node()} is working on the run"
        with pytest.raises(BusyError, match=message), RunDirectory(tmp_path).locked(wait=1):
            pass


@pytest.mark.parametrize("how", ["the server released it", "the directory was removed"])
def test_an_owner_that_lost_its_lock_writes_nothing_more(tmp_path, how):
    mine, other = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with mine.locked():
        mine.write("config", {"owner": 1})
        if how == "the server released it":
            (tmp_path / "run" / ".lock").unlink()  # another file has another lock
        else:
            shutil.rmtree(tmp_path / "run")
        with other.locked():
            other.write("config", {"owner": 2})
            with pytest.raises(LabError, match=r"another process took over .* run the same command to resum"):
                mine.write("config", {"owner": 1})
            assert mine.config == {"owner": 2}
            other.write("config", {"owner": 3})


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    message = rf"the file system of .*run has no locks \({os.strerror(number)}\): give --out a directory"
    with pytest.raises(LabError, match=message), RunDirectory(tmp_path / "run").locked():
        pass


def test_two_processes_do_not_work_on_one_run(tmp_path):
    directory = RunDirectory(tmp_path / "run")

    def other():
        message = rf"process {os.getppid()} on .* is working on the run .*run: wait for it, or stop it"
        with pytest.raises(BusyError, match=message), RunDirectory(tmp_path / "run").locked():
            pass

    def killed():
        with RunDirectory(tmp_path / "run").locked():
            os.kill(os.getpid(), signal.SIGKILL)

    with directory.locked():
        assert in_child(other) == 0
    assert in_child(killed) == -signal.SIGKILL
    with directory.locked():
        pass


def test_a_run_that_ended_while_it_was_waited_for_is_not_repeated(tmp_path, monkeypatch):
    done = tiny(tmp_path / "a")
    result = done.result
    (done.path / "result.json").unlink()
    monkeypatch.setattr(runs, "train", lambda *_: pytest.fail("it trains"))
    locked = RunDirectory.locked

    @contextmanager
    def ends_meanwhile(self, wait):
        with locked(self, wait):
            self.write("result", result)
            yield

    monkeypatch.setattr(RunDirectory, "locked", ends_meanwhile)
    assert tiny(tmp_path / "a").result == result


WANTED = "compare digits --methods adam,sgd@0.1,alrao --seeds 2 --epochs 1 --train-size 100 --threads 1"


def compare(root, log, hang=False):
    """The command as another process would start it; the log names each run that it trains."""
    train = runs.train

    def logged(problem, settings, directory, *rest):
        with log.open("a") as file:
            file.write(f"{directory.path.name}\n")
        while hang:
            time.sleep(1)
        train(problem, settings, directory, *rest)

    runs.train = logged
    with log.with_suffix(".out").open("w") as file:
        training.out = records.out = Console(file=file, width=100)
        cli.main([*WANTED.split(), "--out", str(root)], standalone_mode=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_comparisons_at_once_train_each_run_once(tmp_path):
    """A third one is killed with kill -9 while it holds a run: the others take it over."""
    logs = [tmp_path / name for name in ("killed", "one", "two")]
    hanging = start(lambda: compare(tmp_path / "runs", logs[0], hang=True))
    try:
        wait_for(logs[0].exists)
        others = [start(lambda log=log: compare(tmp_path / "runs", log)) for log in logs[1:]]
        wait_for(lambda: any(log.exists() for log in logs[1:]))
    finally:
        os.kill(hanging, signal.SIGKILL)
        os.waitpid(hanging, 0)
    assert [os.waitpid(pid, 0)[1] for pid in others] == [0, 0]
    trained = [log.read_text().split() if log.exists() else [] for log in logs]
    assert len(trained[0]) == 1
    found = sorted(run.path.name for run in find_runs([tmp_path / "runs"]))
    assert sorted(trained[1] + trained[2]) == found, "each once, that of the killed process too"
    assert len(found) == 6
    tables = [log.with_suffix(".out").read_text().partition("report")[0].split("┏")[1] for log in logs[1:]]
    assert tables[0] == tables[1]
    assert all(f"{method} " in tables[0] for method in ("Alrao", "Adam", "SGD 0.1"))
