"""How tests are run: the workflows on GitHub, and the last line of a run, which names what was skipped.

The workflows run make targets that exist, on the versions that the package declares.
"""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from support.tools import ROOT

import alrao

WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")
}
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LAB = tomllib.loads((ROOT / "lab/pyproject.toml").read_text("utf-8"))["project"]
PINS = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))


def steps(name):
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job.get("steps", ())]


def test_the_workflows_are_found():
    assert set(WORKFLOWS) == {"tests.yml", "docs.yml", "release.yml"}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_every_command_is_a_make_target(name):
    commands = [step["run"] for step in steps(name) if "run" in step]
    assert commands
    for command in commands:
        assert command.startswith("make ")
        assert command.split()[1] in TARGETS, command


@pytest.mark.parametrize("job", ["pinned", "core"])
def test_every_declared_python_is_tested(job):
    declared = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert WORKFLOWS["tests.yml"]["jobs"][job]["strategy"]["matrix"]["python"] == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_the_oldest_and_the_newest_torch_are_tested():
    oldest, *_, newest = WORKFLOWS["tests.yml"]["jobs"]["core"]["strategy"]["matrix"]["torch"]
    assert PROJECT["dependencies"] == [f"torch>={oldest.removesuffix('.0')}"]
    assert [int(part) for part in newest.split(".")] > [int(part) for part in PINS["torch"].split(".")]


def test_publishing_needs_no_token_and_follows_the_tests():
    jobs = WORKFLOWS["release.yml"]["jobs"]
    assert jobs["tests"]["uses"].endswith("/tests.yml")
    assert set(jobs["publish"]["needs"]) == {"tests", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text("utf-8")


# The version stands in the library; what cannot read it from there is compared with it.


def test_the_version_stands_in_the_package():
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", alrao.__version__)


def test_the_workbench_has_the_version_of_the_library_and_needs_it():
    assert f"alrao=={alrao.__version__}" in LAB["dependencies"]
    assert "version" in LAB["dynamic"]
    assert (ROOT / "lab/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("lab/src/alrao_lab/__init__.py", r'^__version__ = "(\S+)"$'),
        ("CITATION.cff", r"^version: (\S+)$"),
        ("docs/citing.md", r"version = \{(\S+)\}"),
        ("CHANGELOG.md", r"^## \[(\d[^]]*)\]"),
    ],
)
def test_files_name_the_version_of_the_package(file, pattern):
    assert re.search(pattern, (ROOT / file).read_text("utf-8"), re.M)[1] == alrao.__version__


# The last line of a test run.

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
