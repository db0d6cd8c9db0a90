"""A test run ends with one line that names what was skipped and how to get it."""

import subprocess
import sys

import pytest
from support.tools import ROOT

FILE = """
import pytest

@pytest.mark.skipif(True, reason="data is missing (set ALRAO_DATA)")
@pytest.mark.parametrize("x", range(3))
def test_with_data(x): ...

def test_with_a_package():
    pytest.importorskip("no_such_package", reason="needs no_such_package")

def test_with_nothing(): ...
"""


def last_line(place, text, *options):
    (place / "test_file.py").write_text(text)
    (place / "pytest.ini").write_text("[pytest]")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.skips", *options]
    environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": ""}
    ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_skipped_is_in_the_last_line(workers, tmp_path):
    assert last_line(tmp_path, FILE, "-n", str(workers)) == (
        "4 skipped: 3 × data is missing (set ALRAO_DATA), 1 × needs no_such_package"
    )


def test_nothing_skipped_adds_no_line(tmp_path):
    assert "1 passed" in last_line(tmp_path, "def test_with_nothing(): ...")
