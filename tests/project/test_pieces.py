"""The tool that changes one piece of Auto at a time."""

import subprocess
import sys

import pytest
from support.tools import ROOT, tool


@pytest.fixture(scope="module")
def pieces():
    return tool("pieces")


def row(pieces, variant, seed, valid, workload="deep"):
    row = {"variant": variant, "workload": workload, "contender": "auto-plain", "seed": seed}
    return row | {"valid": valid, "best": valid, "cpu": 2.0, "commit": "abc"}


def test_variants_are_compared_with_the_same_seeds_of_auto_as_it_is(pieces):
    rows = [row(pieces, pieces.BASE, 0, 1.0), row(pieces, pieces.BASE, 1, 2.0)]
    rows += [row(pieces, "half the rate", 0, 1.1), row(pieces, "half the rate", 1, 2.2)]
    rows += [row(pieces, "half the rate", 2, 9.0)]  # no such seed of Auto as it is
    assert pieces.cell(pieces.compare(rows, "half the rate", "auto-plain")) == "+10.0 ± 0.0"
    assert "| half the rate | – | +10.0 ± 0.0 | 1 | deep +10.0 | 1.00 |" in pieces.table(rows)


def test_a_failed_run_counts_as_ten_times_the_loss(pieces):
    rows = [row(pieces, pieces.BASE, 0, 1.0), row(pieces, "half the rate", 0, float("inf"))]
    assert pieces.cell(pieces.compare(rows, "half the rate", "auto-plain")) == "+900.0"


def test_a_change_reaches_auto():
    """In a process of its own: it is for good."""
    code = """
import sys
sys.path.insert(0, "tools")
import alrao, alrao.auto.step, pieces, torch
pieces.change({"PERIOD": 7, "weight_decay": 8.0, "START": 9.0, "PRIOR": 10.0})
optimizer = alrao.Auto(torch.nn.Linear(2, 2))
assert alrao.auto.step.PERIOD == alrao.auto.matrices.PERIOD == 7
assert optimizer.defaults["weight_decay"] == 8.0
assert optimizer.search.distance == 9.0
assert alrao.auto.search.PRIOR == 10.0
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_variant_changes_something_that_is_there(pieces):
    names = {name for changed in pieces.VARIANTS.values() for name in changed}
    arguments = {"weight_decay", "betas", "linear"}
    assert all(name in arguments or any(hasattr(m, name) for m in pieces.MODULES) for name in names)


def test_held_out_workloads_are_refused(pieces, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pieces.py", "--workloads", "siren-15000"])
    with pytest.raises(SystemExit, match="siren-15000: held out"):
        pieces.main()
