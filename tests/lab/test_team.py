"""Several processes train one run: the numbers of one process, to rounding; killed, and resumed by others."""

import json
from dataclasses import asdict

import pytest
import torch
from support.lab_runs import settings
from support.processes import torchrun

from alrao.lab.run import run
from alrao.lab.store import RunDirectory

pytest.importorskip("accelerate", reason="several processes need alrao[processes]")

CPU = torch.device("cpu")
SMALL = {"epochs": 2, "train_size": 75, "batch": 12, "threads": 1}  # the last batch has three rows
WAYS = {
    "auto": {"method": "auto"},
    "alrao": {"method": "alrao", "lr": "0.001:0.1", "model": "cnn", "copies": 4},
    "adam": {"method": "adam", "model": "cnn", "schedule": "cosine", "clip": 0.5},
    "schedulefree": {"method": "schedulefree", "model": "cnn"},
    "average": {"method": "sgd@0.1", "momentum": 0.9, "average": True, "model": "cnn"},
    "regression": {"task": "regression", "method": "alrao", "lr": "0.001:0.1"},
    "text": {"task": "text", "model": "gru", "method": "alrao", "lr": "0.01:1", "dropout": 0.0, "epochs": 1},
}


@pytest.fixture
def wanted(tmp_path):
    """The settings of the ways."""
    text = tmp_path / "some.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    found = {name: settings(**{**SMALL, **way}) for name, way in WAYS.items()}
    changes = {**SMALL, **WAYS["text"], "train_size": None, "data": str(text)}
    return found | {"text": settings(**changes)}


def together(folder, wanted, processes=2, die=0):
    """Train them in several processes, which die after some steps of each run, or not."""
    path = folder.with_suffix(".json")
    path.write_text(json.dumps([{**asdict(each), "method": str(each.method), "lr": each.lr and str(each.lr)}
                                for each in wanted]))  # fmt: skip
    code, written = torchrun("lab_ranks.py", path, folder, die, processes=processes, timeout=400)
    assert (code == 0) == (die == 0), written
    return written


def close(a, b):
    """Whether two runs are the same to rounding: metrics, weights, rates."""
    assert a.name == b.name
    lines = [[(line["train"], line["valid"], line["test"]) for line in one.metrics()] for one in (a, b)]
    assert len(lines[0]) > 0
    torch.testing.assert_close(flat(lines[0]), flat(lines[1]), rtol=2e-4, atol=2e-4)
    # The bias before BatchNorm has a gradient of 0, and Adam divides rounding by rounding.
    weights = [
        {name: tensor for name, tensor in one.load(CPU)["best"].items() if tensor.ndim > 1 or "var" in name}
        for one in (a, b)
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=2e-4)
    assert a.result["copy_rates"] == b.result["copy_rates"]


def flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [number for each in value for number in flat(each)] if isinstance(value, list | tuple) else [value]


@pytest.mark.timeout(400)
def test_two_processes_are_as_good_as_one(tmp_path, wanted):
    together(tmp_path / "two", wanted.values())
    for each in wanted.values():
        one = run(each, [tmp_path / "one"])
        close(one, RunDirectory(tmp_path / "two" / one.path.relative_to(tmp_path / "one")))
