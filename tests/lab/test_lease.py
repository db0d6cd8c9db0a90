"""One process at a time works on a run, whatever host it is on; the run of a dead process is taken over."""

import os
import signal
import time
from contextlib import contextmanager

import pytest
from rich.console import Console
from support.lab_runs import in_child, start, tiny

from alrao.lab import lease as leases
from alrao.lab import run as runs
from alrao.lab.cli import records, training
from alrao.lab.cli.app import cli
from alrao.lab.errors import LabError
from alrao.lab.lease import Lease
from alrao.lab.records import find_runs
from alrao.lab.store import BusyError, RunDirectory


@pytest.fixture
def quick(monkeypatch):
    """An owner is dead after half a second."""
    monkeypatch.setattr(leases, "LEASE", 0.5)
    monkeypatch.setattr(leases, "HEARTBEAT", 0.05)


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


def hold(folder, host=None):
    """Take the lease as a process of that host, and keep it."""

    def work():
        if host is not None:
            leases._host = lambda: host
        lease = Lease(folder)
        assert lease.take()
        (folder / "ready").touch()
        signal.pause()

    return work


def test_a_lease_has_one_owner(tmp_path):
    first, second = Lease(tmp_path), Lease(tmp_path)
    assert first.take()
    assert not second.take()
    assert second.owner == f"process {os.getpid()} on {os.uname().nodename}"
    first.release()
    assert second.take()
    second.check()
    with pytest.raises(LabError, match=r"another process took over .* run the same command to resume"):
        first.check()
    first.release()  # which the second owner does not notice
    second.check()
    assert not Lease(tmp_path).take()
    assert [path.name for path in tmp_path.iterdir()] == [".lock.2"]


def test_never_two_at_once(tmp_path):
    """Four processes take and release a lease; the file system says whether two hold it at once."""

    def work():
        for _ in range(25):
            while not (lease := Lease(tmp_path)).take():
                pass
            (tmp_path / "inside").touch(exist_ok=False)
            (tmp_path / "inside").unlink()
            lease.release()

    children = [start(work) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == [".lock.100"]


def test_a_process_so_slow_that_others_have_come_and_gone(tmp_path, monkeypatch):
    first, slow = Lease(tmp_path), Lease(tmp_path)
    assert first.take()
    first.release()
    seen = slow._last()
    for _ in range(2):  # the second and the third generation; only the third is left
        other = Lease(tmp_path)
        assert other.take()
        other.release()
    answers = iter([seen])
    (tmp_path / ".lock.1").write_text(leases.RELEASED)  # as it was
    real = slow._last
    monkeypatch.setattr(slow, "_last", lambda: next(answers, None) or real())
    assert not slow.take()
    assert not (tmp_path / ".lock.2").exists()


def test_kill_9_of_the_owner_on_this_host(tmp_path):
    with child(hold(tmp_path), tmp_path) as pid:
        assert not Lease(tmp_path).take()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert Lease(tmp_path).take()  # although its parent has not waited for it, so that it has a number


def test_kill_9_of_the_owner_whose_parent_waited_for_it(tmp_path):
    with child(hold(tmp_path), tmp_path):
        pass
    assert Lease(tmp_path).take()


def test_kill_9_of_the_owner_on_another_host(tmp_path, quick):
    with child(hold(tmp_path, "elsewhere 1"), tmp_path) as pid:
        waiting, end = Lease(tmp_path), time.monotonic() + 1.5
        while time.monotonic() < end:  # thrice as long as a dead owner keeps it
            assert not waiting.take()
            time.sleep(0.02)
        assert waiting.owner == f"process {pid} on elsewhere"
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_for(waiting.take)
        assert time.monotonic() - killed >= 0.4


def test_an_owner_that_died_before_it_wrote_its_name(tmp_path, quick):
    (tmp_path / ".lock.3").touch()
    lease = Lease(tmp_path)
    assert not lease.take()
    assert lease.owner == "a process that just started"
    wait_for(lease.take)
    assert [path.name for path in tmp_path.iterdir()] == [".lock.4"]


def test_an_owner_that_was_stopped_and_comes_back(tmp_path, quick):
    """It was taken for dead: it must not write any more."""
    directory = RunDirectory(tmp_path / "run")

    def work():
        with directory.locked():
            directory.write("config", {"owner": 1})
            (tmp_path / "ready").touch()
            wait_for((tmp_path / "go").exists)
            try:
                directory.write("config", {"owner": 1})
            except LabError as error:
                (tmp_path / "said").write_text(str(error))

    with child(work, tmp_path) as pid:
        os.kill(pid, signal.SIGSTOP)
        with RunDirectory(directory.path).locked(wait=30):
            directory.write("config", {"owner": 2})
            (tmp_path / "go").touch()
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text())
            assert directory.config == {"owner": 2}
            assert "another process took over" in (tmp_path / "said").read_text()


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
