"""The GitHub workflows run make targets that exist, on the versions that the package declares."""

import re
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


# The version stands in one place; what cannot read it from there is compared with it.


def test_the_version_stands_in_the_package():
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", alrao.__version__)


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CITATION.cff", r"^version: (\S+)$"),
        ("docs/citing.md", r"version = \{(\S+)\}"),
        ("CHANGELOG.md", r"^## \[(\d[^]]*)\]"),
    ],
)
def test_files_name_the_version_of_the_package(file, pattern):
    assert re.search(pattern, (ROOT / file).read_text("utf-8"), re.M)[1] == alrao.__version__
