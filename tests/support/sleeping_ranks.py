"""Run by `torchrun`: two processes, the second of which never ends.

Usage: torchrun --nproc-per-node 2 tests/support/sleeping_ranks.py folder
"""

import os
import sys
import time
from pathlib import Path


def wait_for_the_other(rank, folder):
    Path(folder, rank).write_text(str(os.getpid()))
    if rank == "1":
        time.sleep(300)


if __name__ == "__main__":
    wait_for_the_other(os.environ["RANK"], sys.argv[1])
