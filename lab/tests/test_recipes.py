"""Published programs: a program of the test's own stands for them, in a repository of its own."""

import json
import re
import subprocess
from dataclasses import replace

import pytest
from click.testing import CliRunner

from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.recipes import harness
from alrao_lab.recipes.harness import Recipe, recipes
from alrao_lab.recipes.page import markdown

PROGRAM = """
import random, sys
random.seed(int(sys.argv[1]))
x, rate = random.random(), 0.1
for step in range(int(sys.argv[2])):
    x -= rate * 2 * (x - 3)
    print(f"loss: {(x - 3) ** 2}")
print(open("data.txt").read())
"""
LINE = "x, rate = random.random(), 0.1"
TRAINED = """
import sys, torch
import torch.nn.functional as F
torch.manual_seed(int(sys.argv[1]))
x, net = torch.randn(64, 4), torch.nn.Linear(4, 2)
y = (x.sum(1) > 0).long()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(int(sys.argv[2])):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss: {loss.item()}")
"""
OPTIMIZER = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)"


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def given(tmp_path):
    """The recipe, the directory of programs, and that of the data."""
    clone = tmp_path / "programs" / "someone+some"
    clone.mkdir(parents=True)
    (clone / "main.py").write_text(PROGRAM)
    (clone / "trained.py").write_text(TRAINED)
    git(clone, "init", "-q")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "a program")
    recipe = Recipe(
        "some", "A program", "someone/some", git(clone, "rev-parse", "HEAD"), "loss", r"loss: ([\d.]+)",
        ["main.py", "{seed}", "{steps}"], 8, 2,
        edits={
            "plain": [["main.py", LINE, "x, rate = random.random(), 0.2"]],
            "auto": [["main.py", LINE, "x, rate = random.random(), 0.3"]],
        },
        data={"data.txt": "data.txt"}, published=0.5, source="its README",
    )  # fmt: skip
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.txt").write_text("some data")
    return recipe, clone.parent, tmp_path / "data"


@pytest.mark.slow
def test_a_program_with_auto_in_the_place_of_its_optimizer(given):
    recipe, programs, data = given
    edits = {
        "plain": [["trained.py", OPTIMIZER, "import alrao; optimizer = alrao.Auto(net)"]],
        "auto": [
            ["trained.py", OPTIMIZER, "import alrao; net = alrao.Alrao(net); optimizer = alrao.Auto(net)"]
        ],
    }
    trained = replace(recipe, command=["trained.py", "{seed}", "{steps}"], few=200, edits=edits)
    for variant in trained.variants:
        row = harness.run(trained, variant, 0, programs, data, short=True, limit=300)
        assert row["figure"] is not None, row["failed"]
        assert row["figure"] < 0.6, "it learned"


def test_a_program_runs_as_it_is_and_edited(given):
    recipe, programs, data = given
    rows = {
        each: harness.run(recipe, each, 0, programs, data, short=True, limit=60) for each in recipe.variants
    }
    assert set(rows) == {"own", "auto", "plain"}
    assert rows["own"]["diff"] == ""
    assert f"-{LINE}" in rows["plain"]["diff"]
    assert rows["own"]["command"] == "main.py 0 2"
    for row in rows.values():
        assert 0 < row["figure"] < 9, row.get("failed")
        assert row["cpu"] > 0
        assert row["program"] == recipe.commit
    assert rows["plain"]["figure"] != rows["own"]["figure"]
    assert (programs / "someone+some" / "main.py").read_text() == PROGRAM, "nothing is changed in its place"
    again = harness.run(recipe, "own", 0, programs, data, short=True, limit=60)
    assert again["figure"] == rows["own"]["figure"], "a seed is a seed"


def test_a_program_that_fails_keeps_what_it_printed(given):
    recipe, programs, data = given
    broken = replace(recipe, edits={"plain": [["main.py", LINE, "raise SystemExit('no such thing')"]]})
    row = harness.run(broken, "plain", 0, programs, data, short=True, limit=60)
    assert row["figure"] is None
    assert "exit code 1: " in row["failed"]
    assert "no such thing" in row["failed"]
    forever = replace(recipe, edits={"plain": [["main.py", LINE, "import time; time.sleep(60)"]]})
    row = harness.run(forever, "plain", 0, programs, data, short=True, limit=0.5)
    assert row["failed"].startswith("exit code -1")


def test_what_is_wrong_with_a_recipe_is_said(given):
    recipe, programs, data = given
    twice = replace(recipe, edits={"plain": [["main.py", "rate", "x"]]})
    with pytest.raises(LabError, match=r"'rate' occurs 2 times in main\.py, not once"):
        harness.run(twice, "plain", 0, programs, data, short=True, limit=60)
    with pytest.raises(
        LabError, match=r"needs someone/else in .*: git clone https://github.com/someone/else"
    ):
        harness.run(
            replace(recipe, repository="someone/else"), "own", 0, programs, data, short=True, limit=60
        )
    with pytest.raises(LabError, match="has no commit 123"):
        harness.run(replace(recipe, commit="123"), "own", 0, programs, data, short=True, limit=60)
    with pytest.raises(LabError, match=r"needs data\.txt in"):
        harness.run(recipe, "own", 0, programs, programs, short=True, limit=60)


def test_a_figure_is_the_last_match_or_a_mean(given):
    recipe, _, _ = given
    output = "loss: 1\nloss: 2\nloss: 6\n"
    assert recipe.figure(output) == 6
    assert replace(recipe, take="all").figure(output) == 3
    assert replace(recipe, take="last 100").figure("".join(f"loss: {i}\n" for i in range(300))) == 249.5
    assert recipe.figure("nothing") is None


def test_only_missing_runs_are_made_and_the_page_shows_them(given, tmp_path, monkeypatch):
    recipe, programs, data = given
    monkeypatch.setattr(harness, "recipes", lambda: {"some": recipe})
    kept, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    words = ["recipes", "--programs", str(programs), "--data", str(data), "--results", str(kept)]
    for seeds in ("1", "1"):
        done = CliRunner().invoke(cli, [*words, "--seeds", seeds, "--markdown", str(page)])
        assert done.exit_code == 0, done.output
        assert "3 rows in" in done.output
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    own, auto = (
        f"{next(r['figure'] for r in rows if r['variant'] == each):.4g} (1 of 5 seeds)"
        for each in ("own", "auto")
    )
    text = page.read_text()
    assert f"| [some](#some) | loss (lower is better) | 0.5 | {own} | {auto} |" in text
    assert f"-{LINE}" in text
    assert "alrao recipes --programs DIR --only some --variants own --seeds 5 --to-keep" in text
    assert f"| as its authors give it | {rows[0]['figure']:.4g} |" in text
    with pytest.raises(LabError, match="is not kept"):
        harness.add(kept, {**rows[0], "modified": True}, to_keep=True)


def test_only_the_variants_that_are_asked_for_are_run(given, tmp_path, monkeypatch):
    recipe, programs, data = given
    monkeypatch.setattr(harness, "recipes", lambda: {"some": recipe})
    kept = tmp_path / "rows.jsonl"
    words = ["recipes", "--programs", str(programs), "--data", str(data), "--results", str(kept)]
    done = CliRunner().invoke(cli, [*words, "--seeds", "2", "--variants", "own"])
    assert done.exit_code == 0, done.output
    assert [(row["variant"], row["seed"]) for row in harness.read(kept)] == [("own", 0), ("own", 1)]
    wrong = CliRunner().invoke(cli, [*words, "--variants", "owm"], standalone_mode=False)
    assert "did you mean own" in str(wrong.exception)


def test_a_page_has_no_figure_of_another_program_or_length(given):
    """What is not run is called so; a row of another commit or number of steps does not count."""
    recipe, _, _ = given
    row = {"recipe": "some", "variant": "own", "seed": 0, "steps": 8, "program": recipe.commit, "cpu": 3.0}
    row |= {"seconds": 4.0, "diff": "", "commit": "0123456789ab", "figure": 1.0}
    whole = [{**row, "seed": seed, "figure": 1.0 + seed} for seed in range(5)]
    text = markdown({"some": recipe}, whole)
    assert "| 0.5 | 3 ± 1.58 | not run | not run | 3 / – / – |" in text
    assert "| as its authors give it | 1, 2, 3, 4, 5 | 3 | 4 | 0123456 |" in text
    assert "--variants own" not in text
    assert "--variants auto" in text
    other = [{**row, "program": "f" * 40}, {**row, "steps": 2}]
    assert "| 0.5 | not run | not run | not run | not run |" in markdown({"some": recipe}, other)
    assert "failed 1 of 5" in markdown({"some": recipe}, [{**whole[0], "figure": None}, *whole[1:]])
    without = replace(recipe, edits={}, without={"auto": "no head", "plain": "no net"})
    assert "| 3 ± 1.58 | none: no head | none: no net | 3 |" in markdown({"some": without}, whole)


def test_the_recipes_that_are_listed():
    listed = recipes()
    assert len(listed) >= 9
    for recipe in listed.values():
        assert re.fullmatch("[0-9a-f]{40}", recipe.commit)
        assert re.compile(recipe.pattern).groups == 1
        assert set(recipe.edits) | set(recipe.without) >= {"auto", "plain"}
        assert set(recipe.edits) <= {"all", "auto", "plain"}
        assert recipe.published is None or recipe.source
        for edits in recipe.edits.values():
            for _, old, new in edits:
                assert old != new.format(seed=9, steps=1)


def test_the_page_says_where_auto_is_worse(given):
    recipe, _, _ = given
    recipe = replace(recipe, edits={**recipe.edits, "all": [["main.py", "a\nb", "a\n{{c}} {seed}"]]})
    row = {
        "recipe": "some",
        "steps": 8,
        "program": recipe.commit,
        "seconds": 4.0,
        "diff": "",
        "commit": "0" * 12,
    }
    figures = {"own": (2.0, 2.2, 2.1), "auto": (3.0, 3.2, 3.1), "plain": (2.0, 2.1, 2.2)}
    rows = [
        {**row, "variant": variant, "seed": seed, "figure": figure, "cpu": 1.0 + (variant == "auto")}
        for variant, both in figures.items()
        for seed, figure in enumerate(both)
    ]
    text = markdown({"some": recipe}, rows)
    worse = "| [some](#some) | `Auto`, copies | −47.6 % ± 10.8 | **worse** | 2.00 | 3, 3 |"
    level = "| [some](#some) | `Auto`, plain | +0.0 % ± 10.8 | undecided | 1.00 | 3, 3 |"
    assert f"{worse}\n{level}\n" in text, "the worst first"
    assert "Command: `python main.py SEED 8`." in text
    assert "--- main.py\n-b\n+{c} {seed}\n" in text
    higher = markdown({"some": replace(recipe, higher=True)}, rows)
    assert "| `Auto`, copies | +47.6 % ± 10.8 | better |" in higher
    failed = [{**each, "figure": None} if each["variant"] == "auto" else each for each in rows]
    assert worse not in markdown({"some": recipe}, failed)
    assert "better by" not in markdown({"some": recipe}, rows[:4])
    same = markdown({"some": recipe}, [{**each, "figure": 1.0} for each in rows])
    assert "| `Auto`, plain | +0.0 % ± 0.0 | equal |" in same
    waited = [{**each, "seconds": 20.0} if each["variant"] == "own" else each for each in rows]
    busy = markdown({"some": recipe}, waited)
    assert worse.replace("2.00", "other load") in busy, "20 seconds of wall-clock for one of the processor"
