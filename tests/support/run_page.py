"""Run by `torchrun` in several processes: the code on a page of the documentation.

Usage: torchrun --nproc-per-node 2 tests/support/run_page.py folder page
"""

import os
import re
import sys
from pathlib import Path

import torch


def main(folder, page):
    torch.set_num_threads(1)
    os.chdir(folder)
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", Path(page).read_text("utf-8"), re.M | re.S):
        exec(compile(block, page, "exec"), names)
    torch.save(names["model"].posterior.tolist(), f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
