"""Count the files and functions that one step of an optimizer runs through, and the changes of file.

    python tools/step_files.py [--capturable]

The step is one after the search of Auto, on the host, for a wrapped and for a plain network.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import alrao

ROOT = Path(alrao.__file__).parent


def followed(step: Any) -> list[tuple[str, str]]:
    """Return the file and the function of each call into alrao, in order."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            calls.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def trained(*, wrapped: bool, capturable: bool) -> Any:
    """Return an optimizer past its search, with gradients for one more step."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU())]
    net = nn.Sequential(*hidden, nn.Linear(16, 5))
    model = alrao.Alrao(net) if wrapped else net
    optimizer = alrao.Auto(model, steps=20, capturable=capturable)
    for left in reversed(range(13)):
        optimizer.zero_grad()
        x = torch.randn(8, 16)
        F.cross_entropy(model(x), x[:, :5].argmax(1)).backward()
        if left:
            optimizer.step()
    return optimizer


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--capturable", action="store_true", help="a step that can be captured")
    capturable = parser.parse_args().capturable
    for wrapped in (True, False):
        calls = followed(trained(wrapped=wrapped, capturable=capturable).step)
        files = [file for file, _ in calls]
        changes = sum(a != b for a, b in pairwise(files))
        name = "Auto(Alrao(net))" if wrapped else "Auto(net)"
        lines = [
            f"{name}: {len(set(files))} files, {changes} changes of file, {len(set(calls))} functions, "
            f"{len(calls)} calls"
        ]
        lines += [
            f"  {file}: {', '.join(sorted({each for at, each in calls if at == file}))}"
            for file in sorted(set(files))
        ]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
