"""Tiny runs of the workbench, and the content of their files: shared by test files."""

import faulthandler
import json
import os
import traceback
from pathlib import Path

import torch
from support.processes import DEADLINE

from alrao_lab.run import run
from alrao_lab.settings import Settings

TINY = {"task": "digits", "method": "alrao", "epochs": 2, "train_size": 200}


def settings(**changes):
    return Settings(**{**TINY, **changes})


def tiny(root, watch=None, **changes):
    """The directory of a run that takes a moment."""
    return run(settings(**changes), [Path(root)], watch)


def strict(text):
    """JSON without the nan and infinity that Python allows itself."""

    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def _timeless(value):
    if isinstance(value, dict):
        return {
            key: _timeless(item)
            for key, item in value.items()
            if key not in ("seconds", "cpu", "started", "commit")
        }
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def outcome(directory):
    """The content of a run's files, except for times; floats are exact in JSON."""
    path = directory.path
    files = {name: strict((path / name).read_text()) for name in ("config.json", "result.json")}
    files["metrics.jsonl"] = [strict(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    if (path / "features.json").exists():
        files["features.json"] = strict((path / "features.json").read_text())
    files["weights"] = {name: t.tolist() for name, t in directory.load(torch.device("cpu"))["best"].items()}
    return _timeless(files)


def start(work, deadline=DEADLINE):
    """Call it in a process of its own, which exits with 0 where it came to an end; the process's number.

    Where it takes too long, it shows its stack and exits with 1.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(deadline, exit=True, file=2)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def in_child(work, deadline=DEADLINE):
    """Call it in a process that may die; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(start(work, deadline), 0)[1])
