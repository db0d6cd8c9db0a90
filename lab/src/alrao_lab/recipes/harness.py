"""Runs of published programs: fetched, edited by search and replacement, run, and kept as rows.

A program is a git repository in a directory of the user's, ``owner+name`` or ``name``: a clone, a bare one,
or one in ``repo`` below it. Each run unpacks the commit into a temporary directory; nothing of a program is
changed in its place, and nothing is kept but the figure that it prints and the lines that were edited.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import mean
from typing import Any

import torch

from ..errors import LabError
from ..provenance import provenance, unclean
from ..store import replace_file

VARIANTS = ("own", "auto", "plain")
"""As its authors give it; Auto on the network with copies; Auto on the plain network."""
LATEST = 100
"""Matches that ``take = "last 100"`` averages."""
SAID = 2_000
"""Characters of the output that a failed run keeps."""


@dataclass(frozen=True)
class Recipe:
    """A program and what is done with it; ``recipes.toml`` describes the fields."""

    name: str
    title: str
    repository: str
    commit: str
    measure: str
    pattern: str
    command: Sequence[str]
    steps: int
    few: int
    edits: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    prepare: Sequence[Sequence[str]] = ()
    folder: str = ""
    paths: Sequence[str] = ()
    packages: Sequence[str] = ()
    higher: bool = False
    published: float | None = None
    source: str = ""
    note: str = ""
    take: str = "last"

    @property
    def variants(self) -> list[str]:
        return [variant for variant in VARIANTS if variant == "own" or variant in self.edits]

    def figure(self, output: str) -> float | None:
        """Return the figure that the program has printed, if it has."""
        found = [float(match) for match in re.findall(self.pattern, output)]
        if not found:
            return None
        chosen = {"last": found[-1:], "all": found, f"last {LATEST}": found[-LATEST:]}[self.take]
        return mean(chosen)


def recipes() -> dict[str, Recipe]:
    """Return the recipes by name."""
    listed = tomllib.loads(files(__package__).joinpath("recipes.toml").read_text("utf-8"))
    return {name: Recipe(name, **values) for name, values in listed.items()}


def repository(programs: Path, recipe: Recipe) -> Path:
    """Return the git repository of a program."""
    names = (recipe.repository.replace("/", "+"), recipe.repository.partition("/")[2])
    for place in (programs / name / below for name in names for below in ("repo", "")):
        if (place / ".git").exists() or (place / "HEAD").exists():
            return place
    raise LabError(
        f"{recipe.name} needs {recipe.repository} in {programs}: "
        f"git clone https://github.com/{recipe.repository} {programs / names[1]}"
    )


def unpack(programs: Path, recipe: Recipe, into: Path) -> None:
    """Unpack the program's commit into a directory."""
    command = ["git", "-C", str(repository(programs, recipe)), "archive", recipe.commit, *recipe.paths]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise LabError(f"{recipe.repository} has no commit {recipe.commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")


def edit(recipe: Recipe, variant: str, into: Path, **values: object) -> str:
    """Make the edits of a variant, and return their difference from what every run has."""
    difference = []
    for which in ("all", variant):
        for name, old, new in recipe.edits.get(which, ()):
            path = into / name
            before = path.read_text("utf-8")
            if before.count(old) != 1:
                raise LabError(f"{recipe.name}: {old!r} occurs {before.count(old)} times in {name}, not once")
            after = before.replace(old, new.format(**values))
            path.write_text(after, "utf-8")
            if which == variant:
                lines = difflib.unified_diff(
                    before.splitlines(), after.splitlines(), name, name, n=0, lineterm=""
                )
                difference += list(lines)
    return "\n".join(difference)


def run(
    recipe: Recipe,
    variant: str,
    seed: int,
    programs: Path,
    data: Path,
    *,
    short: bool,
    limit: float,
    keep: bool = False,
) -> dict[str, Any]:
    """Run a program once, and return its row; to ``keep`` it, only from a clean commit."""
    steps = recipe.few if short else recipe.steps
    row: dict[str, Any] = {"recipe": recipe.name, "variant": variant, "seed": seed, "steps": steps}
    row |= {"repository": recipe.repository, "program": recipe.commit, "measure": recipe.measure}
    row |= {"published": recipe.published, **provenance(torch.device("cpu"))}
    if keep:
        _require_clean(row)
    with tempfile.TemporaryDirectory() as made:
        into = Path(made)
        unpack(programs, recipe, into)
        row["diff"] = edit(recipe, variant, into, seed=seed, steps=steps)
        for name, place in recipe.data.items():
            if not (data / name).exists():
                raise LabError(f"{recipe.name} needs {name} in {data}")
            (into / place).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (data / name).is_dir() else shutil.copy
            copy(data / name, into / place)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
        environment["ALRAO_DATA"] = str(data)
        environment["PYTHONPATH"] = os.pathsep.join([str(into), *filter(None, sys.path)])
        for words in recipe.prepare:
            subprocess.run(
                [sys.executable, *words], cwd=into, env=environment, check=True, capture_output=True
            )
        more = recipe.arguments if variant != "own" else ()
        words = [word.format(seed=seed, steps=steps) for word in (*recipe.command, *more)]
        row["command"] = " ".join(words)
        began, used = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
        code, output = _output([sys.executable, *words], into / recipe.folder, environment, limit)
        spent = getrusage(RUSAGE_CHILDREN)
        row["seconds"] = round(time.perf_counter() - began, 1)
        row["cpu"] = round(spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime, 2)
    row["figure"] = recipe.figure(output) if code == 0 else None
    if row["figure"] is None:
        row["failed"] = f"exit code {code}: {output[-SAID:]}"
    return row


def _output(command: list[str], folder: Path, environment: dict[str, str], limit: float) -> tuple[int, str]:
    """The exit code and all that a command prints; one that takes too long is ended."""
    with tempfile.TemporaryFile() as file:
        into: dict[str, Any] = {
            "cwd": folder,
            "env": environment,
            "stdout": file,
            "stderr": subprocess.STDOUT,
        }
        try:
            code = subprocess.run(command, **into, timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        file.seek(0)
        return code, file.read().decode("utf-8", "replace")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are kept."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def missing(
    wanted: Collection[Recipe],
    seeds: int,
    rows: Sequence[Mapping[str, Any]],
    *,
    short: bool,
    variants: Sequence[str] = VARIANTS,
) -> Iterator[tuple[Recipe, str, int]]:
    """Yield the runs that are not among the rows, the first seed of everything first."""
    known = {(row["recipe"], row["variant"], row["seed"], row["steps"], row["program"]) for row in rows}
    for seed in range(seeds):
        for recipe in wanted:
            for variant in [each for each in recipe.variants if each in variants]:
                steps = recipe.few if short else recipe.steps
                if (recipe.name, variant, seed, steps, recipe.commit) not in known:
                    yield recipe, variant, seed


def add(path: Path, row: Mapping[str, Any], *, to_keep: bool) -> None:
    """Add a row to the file; with ``to_keep`` only one of a clean commit."""
    if to_keep:
        _require_clean(row)
    lines = [json.dumps(each, sort_keys=True) for each in (*read(path), row)]
    replace_file(path, ("\n".join(lines) + "\n").encode())


def _require_clean(row: Mapping[str, Any]) -> None:
    if (why := unclean(row["commit"], row["modified"])) is not None:
        raise LabError(f"the run of {row['recipe']} is not kept: {why}; commit all changes first")
