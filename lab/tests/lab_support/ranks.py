"""Run by `torchrun`: runs of the workbench that several processes train together.

Usage: torchrun --nproc-per-node 2 lab/tests/lab_support/ranks.py runs.json folder [steps before it dies]
"""

import json
import os
import sys
from pathlib import Path

import torch

from alrao_lab import loop
from alrao_lab.run import run
from alrao_lab.settings import Settings
from alrao_lab.team import Team


def main(wanted, folder, die=0):
    torch.set_num_threads(1)
    team = Team.join(torch.device("cpu"))
    if int(die):
        loop.CHECKPOINT_SECONDS = -1  # a checkpoint after every step
    steps = []

    def watch(loop):
        steps.append(1)
        if len(steps) == int(die):
            os._exit(77)

    for settings in json.loads(Path(wanted).read_text()):
        steps.clear()
        run(Settings(**settings), [Path(folder)], watch, team=team)
    team.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
