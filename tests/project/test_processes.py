"""The processes that tests start show where they hang or fail, and none is left."""

import os
import signal
import time

import pytest
import torch.multiprocessing as mp
from lab_support.runs import in_child
from support.processes import together, torchrun

FOREVER = 300


def write_number(rank, folder):
    (folder / f"{rank}").write_text(str(os.getpid()))


def wait_for_the_other(rank, folder):
    write_number(rank, folder)
    if rank:
        time.sleep(FOREVER)


def fail(rank, folder):
    write_number(rank, folder)
    if rank:
        raise ValueError("some reason")
    time.sleep(FOREVER)


def crash(rank, folder):
    write_number(rank, folder)
    os.kill(os.getpid(), signal.SIGSEGV)


def assert_ended(folder):
    for rank in ("0", "1"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / rank).read_text()), 0)


@pytest.mark.parametrize(
    ("work", "kind", "shown"),
    [
        (wait_for_the_other, RuntimeError, "Timeout.*in wait_for_the_other"),
        (fail, mp.ProcessRaisedException, "in fail.*ValueError: some reason"),
        (crash, RuntimeError, "SIGSEGV.*Segmentation fault.*in crash"),
    ],
)
def test_processes_that_do_not_end_well(tmp_path, work, kind, shown):
    with pytest.raises(kind, match=f"(?s){shown}"):
        together(work, 2, tmp_path, deadline=2)
    assert_ended(tmp_path)


def test_a_forked_process_that_hangs(capfd):
    assert in_child(lambda: time.sleep(FOREVER), deadline=1) == 1
    assert "test_a_forked_process_that_hangs" in capfd.readouterr().err


@pytest.mark.slow
def test_a_script_that_hangs(tmp_path):
    code, written = torchrun("sleeping_ranks.py", tmp_path, deadline=20)
    assert code == 1
    assert "in wait_for_the_other" in written
    assert_ended(tmp_path)
