"""Processes that tests start: none outlives its test, and one that hangs shows where."""

import faulthandler
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.multiprocessing as mp

DEADLINE = 80
"""Seconds after which a process shows its stack and ends; pytest's own limit shows nothing of it."""
STARTING = 20
"""More seconds for its imports."""
START = "forkserver" if sys.platform == "linux" else "spawn"
"""How processes start. The server has done the imports. Processes forked from that of the tests could not use
autograd once a test has used it on another device than the CPU."""

multiprocessing.set_forkserver_preload(["torch.distributed.tensor", "alrao"])


def together(work, processes, *arguments, deadline=DEADLINE):
    """Call ``work(rank, *arguments)`` in several processes; raise what the first raised that failed.

    They are forked from a server: on a busy machine the imports of new processes take minutes, and the work
    some seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        stacks = [Path(folder, str(rank)) for rank in range(processes)]
        words = (work, stacks, deadline, arguments)
        group = mp.start_processes(_traced, words, processes, join=False, start_method=START)
        end = time.monotonic() + deadline + STARTING
        try:
            while not group.join(max(0, end - time.monotonic()), grace_period=5):
                if time.monotonic() > end:
                    raise TimeoutError(f"the processes neither ended nor failed in {deadline + STARTING} s")
        except mp.ProcessExitedException as error:
            written = [stack.read_text() for stack in stacks if stack.exists()]
            raise RuntimeError("\n".join([str(error), *written])) from None
        finally:
            for process in group.processes:
                process.kill()
                process.join()


def _traced(rank, work, stacks, deadline, arguments):
    with stacks[rank].open("w") as file:
        faulthandler.enable(file)  # shows a crash too
        faulthandler.dump_traceback_later(deadline, exit=True, file=file)
        work(rank, *arguments)
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()


def as_by_torchrun(work, processes, *arguments, deadline=DEADLINE):
    """Call ``work(*arguments)`` in processes whose environment is that of torchrun; see :func:`together`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    together(_member, processes, work, processes, port, arguments, deadline=deadline)


def _member(rank, work, processes, port, arguments):
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ["OMP_NUM_THREADS"] = "1"
    work(*arguments)


def torchrun(script, *arguments, processes=2, deadline=DEADLINE):
    """The exit code and what was written, of a script (a path from here); no process outlives the call."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    command += [here / "traced.py", deadline, here / script, *arguments]
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            written, _ = process.communicate(timeout=deadline + STARTING)
        except subprocess.TimeoutExpired:
            process.terminate()
            return 1, process.communicate()[0]
        except BaseException:
            process.terminate()  # torchrun ends its processes, which are in sessions of their own
            raise
    return process.returncode, written
