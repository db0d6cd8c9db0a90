"""Scripts that tests run in several processes by torchrun."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path


def torchrun(script, *arguments, processes=2, timeout=110):
    """The exit code and what was written, of a script beside this file; no process outlives the call."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    command += [str(Path(__file__).parent / script), *map(str, arguments)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            written, _ = process.communicate(timeout=timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, written
