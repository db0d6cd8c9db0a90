"""The commands of docs/how-to/scale.md, at small size."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from lab_support.pictures import as_binary, cifar
from support.tools import ROOT

PAGE = (ROOT / "docs/how-to/scale.md").read_text("utf-8")
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.splitlines()
    if re.match(r"alrao (train|compare|suite)|torchrun .* alrao_lab", line)
]
SMALL = "--epochs 1 --train-size 64 --threads 1"


def test_the_commands_are_found():
    starts = ["alrao compare digits", "alrao compare cifar10", "alrao train cifar10", "torchrun"]
    assert all(any(command.startswith(start) for command in COMMANDS) for start in starts)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page(command, tmp_path):
    for package in ("ray", "accelerate"):
        pytest.importorskip(package)
    data = as_binary(cifar(), tmp_path / "cifar-10-batches-bin")
    words = command.replace("/shared/runs", str(tmp_path / "runs")).replace("per-node 8", "per-node 2")
    words = words.replace("--seeds 3", "--seeds 1") + f" {SMALL}"
    python = shlex.quote(sys.executable)
    words = re.sub("^alrao", f"{python} -m alrao_lab.cli", words)
    words = re.sub("^torchrun", f"{python} -m torch.distributed.run --standalone", words)
    environment = {**os.environ, "ALRAO_DATA": str(data), "ALRAO_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        shlex.split(words), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        timeout=500,
    )  # fmt: skip
    if "--gpus" in command:
        assert done.returncode == 2
        assert "--gpus 0.25 is more than any node of the Ray cluster has (0)" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    expected = "test, at the best epoch on validation" if " train " in command else "runs to"
    assert done.stdout.count(expected) >= 1
