"""The documentation site builds strictly and is complete, and the code on its pages runs."""

import ast
import copy
import functools
import importlib.util
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from support.tools import ROOT, tool

import alrao

for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(package, reason="the site needs alrao[docs]")

DOCS = ROOT / "docs"


docs_site, docs_griffe = tool("docs_site"), tool("docs_griffe")


# The site.


def build(root, site):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def exported():
    """Return the public names of the package and of each integration, with their full names."""
    found = {}
    for name in alrao.__all__:
        thing = getattr(alrao, name)
        found[f"alrao.{name}"] = f"{thing.__module__}.{name}"
    for path in (ROOT / "src/alrao/integrations").glob("[!_]*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                names = [f"alrao.integrations.{path.stem}.{name}" for name in ast.literal_eval(node.value)]
                found.update(zip(names, names, strict=True))
    return found


class Fetched(HTMLParser):
    """The addresses that a browser fetches when it shows a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "link" and attrs.get("rel") in ("canonical", "next", "prev"):
            return
        if tag in ("script", "link", "img", "iframe", "source"):
            self.found.append(attrs.get("src") or attrs.get("href") or "")


def check_nothing_is_fetched(site):
    for page in site.rglob("*.html"):
        outside = [url for url in Fetched(page.read_text("utf-8")).found if re.match("(https?:)?//", url)]
        assert not outside, page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet


def check_formulas(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert "arithmatex" not in text, page
        assert ":math:" not in text, page
        assert ".. math::" not in text, page
    assert (site / "how-it-works.html").read_text("utf-8").count("<math") > 10
    assert "<math" in (site / "api/posterior.html").read_text("utf-8")


def check_links_out_of_docs(site):
    page = (site / "integrations/tensorboard-onnx.html").read_text("utf-8")
    assert 'href="../source/examples/tensorboard_log.py.html"' in page
    script = (site / "source/examples/tensorboard_log.py.html").read_text("utf-8")
    assert "SummaryWriter" in script
    assert 'href="tutorial.html"' in (site / "index.html").read_text("utf-8")
    assert "largest difference: " in (site / "tutorial.html").read_text("utf-8")  # an output of the notebook


def test_the_site_builds_strictly_and_is_complete(tmp_path):
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    documented = docs_site.inventory(tmp_path / "objects.inv")
    names = exported()
    assert {"alrao.SGD", "alrao.integrations.sklearn.AlraoClassifier"} <= set(names)
    assert not [name for name, other in names.items() if documented.isdisjoint((name, other))]
    check_nothing_is_fetched(tmp_path)
    check_formulas(tmp_path)
    check_links_out_of_docs(tmp_path)
    assert not [page for page in tmp_path.rglob("*.html") if ":class:" in page.read_text("utf-8")]


@pytest.mark.slow
def test_broken_links_and_missing_names_fail_the_build(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for path in ("docs", "tools"):
        shutil.copytree(ROOT / path, root / path)
    for path in (
        "src",
        "examples",
        "benchmarks",
        "mkdocs.yml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "CITATION.cff",
    ):
        (root / path).symlink_to(ROOT / path)
    model = root / "docs/api/model.md"
    model.write_text(model.read_text("utf-8").replace("::: alrao.MixtureBCELoss", ""), "utf-8")
    broken = "[a](nowhere.md) [b](how-it-works.md#nowhere) [c](../examples/nowhere.py) [d][alrao.Nowhere]"
    (root / "docs/start.md").write_text(f"# Start\n\n{broken}\n", "utf-8")
    (root / "docs/lonely.md").write_text("# Not in the navigation\n", "utf-8")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    warnings = done.stderr[done.stderr.index("WARNING") :]
    for trouble in (
        "nowhere.md", "#nowhere", "../examples/nowhere.py", "'alrao.Nowhere'", "lonely.md",
        "alrao.MixtureBCELoss is public, but on none",
    ):  # fmt: skip
        assert trouble in warnings


# Its parts.


def test_a_public_name_without_a_page_or_a_docstring_causes_a_message(tmp_path):
    package = tmp_path / "alrao"
    (package / "integrations").mkdir(parents=True)
    (package / "__init__.py").write_text(
        '"""A."""\n__all__ = ["C", "f"]\nclass C:\n    """C."""\n    def told(self): """Told."""\n'
        "    def untold(self): ...\n    def _private(self): ...\n\ndef f(): ...\n"
    )
    (package / "integrations/__init__.py").write_text("")
    (package / "integrations/some.py").write_text('__all__ = ["g"]\ndef g():\n    """G."""\n')
    names = docs_site.public_names(tmp_path)
    assert set(names) == {"alrao.C", "alrao.f", "alrao.integrations.some.g"}
    complaints = docs_site.complaints(names, {"alrao.C", "alrao.f"})
    assert [complaint.split(" ")[0] for complaint in complaints] == [
        "alrao.integrations.some.g", "alrao.C.untold", "alrao.f",
    ]  # fmt: skip


def test_docstrings_become_markdown():
    text = textwrap.dedent(r"""
        See :class:`SGD`, :meth:`Alrao.collapse` and :class:`torch.nn.Linear`: :math:`a_j
        = 1`.

        .. math:: x
            \leftarrow y

        .. code-block:: python

            a = 1

            b = 2

        Example:
            >>> 1
            1

        Reference: a paper.
    """)
    assert docs_griffe.as_markdown(text, {"SGD": "alrao.SGD", "Alrao": "alrao.Alrao"}) == textwrap.dedent(r"""
        See [`SGD`][alrao.SGD], [`Alrao.collapse`][alrao.Alrao.collapse] and `torch.nn.Linear`: $a_j = 1$.

        $$
        x \leftarrow y
        $$

        ```python
        a = 1

        b = 2
        ```

        Examples:
            >>> 1
            1

        **Reference:** a paper.""")


def test_links_that_leave_the_docs_lead_to_pages():
    text = (
        "[a](../examples/quickstart.py) [b](results.md#x) [c](https://d.e) [f](../nowhere.py)\n"
        "```\n[a](../README.md)\n```"
    )
    assert docs_site.relinked(text, "docs", "how-to/page.md") == (
        "[a](../source/examples/quickstart.py.md) [b](../results.md#x) [c](https://d.e) [f](../nowhere.py)\n"
        "```\n[a](../README.md)\n```"
    )


# Pages and figures made from the records.


@pytest.fixture(scope="module")
def made():
    """The tools that read the suite's records."""
    for package in ("pandas", "plotly", "jinja2"):
        pytest.importorskip(package, reason="the workbench needs alrao-lab")
    return {name: tool(name) for name in ("evidence", "hero", "play")}


def test_the_tables_show_the_records_as_they_are(made):
    for path, content in made["evidence"].pages().items():
        assert path.read_text("utf-8") == content, "run: make pages"


def test_the_figure_of_the_readme_shows_the_records_as_they_are(made):
    for path, content in made["hero"].figures().items():
        assert path.read_text("utf-8") == content, "run: make pages"


def test_the_page_to_play_with_shows_the_records_as_they_are(made):
    assert made["play"].PAGE.read_text("utf-8") == made["play"].page(), "run: make pages"


def with_auto(folder, losses, workload="noisy-1000"):
    """Copy the records of one workload, with runs of Auto that end at some test losses."""
    from alrao_lab.records import read_rows, write_rows

    name = f"workload-{workload}.jsonl.xz"
    every = dict(read_rows(ROOT / "results" / name))
    rows = {
        run: row for run, row in every.items() if row["config"]["settings"]["method"]["name"] != "auto-plain"
    }
    model = next(
        row for row in rows.values() if row["config"]["settings"]["method"]["name"] == "dog-suggested"
    )
    for seed, loss in enumerate(losses):
        row = copy.deepcopy(model)
        settings = row["config"]["settings"]
        settings |= {"method": {"name": "auto-plain", "lr": None, "fraction": None}, "seed": seed}
        row["result"]["test"]["loss"] = loss
        row["run"] = f"{model['run'].rpartition('/')[0]}/auto-plain-{seed}-{seed:010d}"
        rows[row["run"]] = row
    write_rows(folder / name, rows)
    return folder


def test_runs_of_auto_are_a_row_and_a_line_across(made, tmp_path):
    evidence, hero, play = (made[name] for name in ("evidence", "hero", "play"))
    alone = evidence.Evidence()
    row = next(line for line in evidence.short_table(alone) if "<code>Auto</code>" in line)
    assert (re.findall(r">([^<>]+)</td>", row) == ["–"] * 5) == ("not been run" in evidence.coverage(alone))
    results = with_auto(tmp_path, [1.0, 1.2])
    found = evidence.Evidence(results)
    assert [each.name for each in found.workloads] == ["noisy-1000"]
    best = found.standings.best["noisy-1000"]
    reference = found.standings.losses.loc["noisy-1000"].iloc[:2][best].mean()
    lines = "\n".join(evidence.short_table(found)).splitlines()
    row = next(line for line in lines if "<code>Auto</code>" in line)
    assert re.findall(r">([^<>]+)</td>", row)[0] == f"{100 * (1.1 / reference - 1):+.1f}".replace("-", "−")
    drawn = hero.Hero(found, found.workloads[0])
    theme = hero.THEMES["dark"]
    assert drawn.auto == [1.0, 1.2]
    assert f'stroke="{hero.ALRAO}"' in drawn.draw(theme)
    drawn.auto = []
    assert "Auto is not measured yet" in drawn.draw(theme)
    (workload,) = play.data(results)
    assert workload["lines"]["Auto"] == {0: 1.0, 1: 1.2}


def test_the_sentences_of_the_faq_have_the_figures_of_the_table(made, tmp_path):
    evidence = made["evidence"]
    found = evidence.Evidence(with_auto(tmp_path, [1.0, 1.2]))
    mean, worst, points, seconds, tried = found.of(evidence.AUTO)
    text = " ".join(" ".join(evidence.sentences(found)).split())
    assert f"{mean} % on average, {worst} % at worst; {points} points" in text
    assert f"{seconds} times the seconds of tuned AdamW, in {tried} run" in text
    assert f"the tuned takes {found.best_tuned()[-1]} runs" in text
    assert "On 1 of the suite's 28 workloads, none of them held out" in text
    assert "chosen by *test* losses of these workloads" in text
    mean, worst = (f"{100 * each:+.1f}".replace("-", "−") for each in found.last)
    assert f"at the last step `Auto` is at a mean of {mean} and a worst of {worst}." in text


def test_the_workloads_held_out_stand_alone_once_auto_has_run_on_all_of_them(made, tmp_path, monkeypatch):
    evidence = made["evidence"]
    results = with_auto(with_auto(tmp_path, [1.0, 1.2]), [0.6, 0.7], "noisy-sphere")
    both = {name: evidence.WORKLOADS[name] for name in ("noisy-1000", "noisy-sphere")}
    found = evidence.Evidence(results)
    assert [each.name for each in found.workloads] == list(both)
    assert "1 of them held out" in evidence.scope(found)
    assert "losses of those that are not held out" in evidence.caution(found)
    monkeypatch.setattr(evidence, "WORKLOADS", both)
    found = evidence.Evidence(results)
    assert [each.name for each in found.workloads] == ["noisy-sphere"]
    assert "1 of the suite's 2 workloads, all of them held out" in evidence.scope(found)
    assert "chosen by" not in evidence.caution(found)


def test_a_contender_is_found_by_the_settings_of_its_runs(made):
    """The tables are those of the suite itself, whose searches know their runs by their settings."""
    runs = made["evidence"].runs()
    assert {"adamw", "adamw-0.001", "muon", "muon-default", "sgd"} <= set(runs["contender"])
    tuned = runs[runs["contender"].isin(["adamw", "adamw-wsd", "muon", "sgd"])]
    assert tuned["rate"].notna().all()
    assert runs[runs["contender"] == "adamw-0.001"]["rate"].isna().all()
    assert runs.groupby(["workload", "contender", "candidate", "seed"]).size().max() == 1


def test_a_run_of_auto_can_be_drawn():
    pytest.importorskip("plotly", reason="the workbench needs alrao-lab")
    pytest.importorskip("sklearn", reason="the digits are in scikit-learn")
    auto_run = tool("auto_run")
    run = auto_run.train(steps=70)
    assert run.over == next(step for step, (a, b) in enumerate(pairwise(run.rates), 2) if a > b)
    assert len(run.rates) == 70
    picture = auto_run.draw(run, auto_run.THEMES["light"])
    assert picture.count("<polyline") == 3
    assert f"search: {run.over} steps" in picture


def test_the_demo_is_a_recording_of_commands():
    demo = tool("demo")
    words = demo.fitted("\x1b[1mepoch 1  train loss 2  " + "x" * demo.COLUMNS + "\x1b[0m")
    assert words == ["epoch 1  train loss 2"]
    shown, end = demo.timed({"alrao list": [(9.0, "a < b"), (0.1, "c")]})
    assert [line for _, line in shown] == ["$ alrao list", "a < b", "c"]
    assert shown[1][0] - shown[0][0] == pytest.approx(demo.TYPING + demo.LONGEST)
    picture = demo.draw(shown, end)
    assert "a &lt; b" in picture
    assert picture.count("<text") == 3
    assert all(f"$ {command}" in demo.IMAGE.read_text("utf-8") for command in demo.COMMANDS)


def test_the_picture_of_imports_is_up_to_date():
    graph = tool("import_graph")
    assert (DOCS / "images/imports.svg").read_text("utf-8") == graph.svg("core"), "run: make pages"
    with pytest.raises(ValueError, match="a cycle of imports among"):
        graph.levels({"a": {"b"}, "b": {"a"}})


def test_the_page_of_results_shows_the_records_as_they_are():
    pytest.importorskip("pandas", reason="the workbench needs alrao-lab")
    from alrao_lab.records import read_runs
    from alrao_lab.render.markdown import page
    from alrao_lab.table import experiments

    names = re.search(r"^PAGE := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)[1].split()
    reading = read_runs(ROOT / "results" / f"{name}.jsonl.xz" for name in names)
    assert page(experiments(reading)) == (DOCS / "results.md").read_text("utf-8"), "run: make pages"


def test_no_run_of_the_papers_method_failed():
    """docs/paper-method.md says so."""
    pytest.importorskip("pandas", reason="the workbench needs alrao-lab")
    from alrao_lab.records import read_runs

    names = re.search(r"^PAGE := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)[1].split()
    records = read_runs(ROOT / "results" / f"{name}.jsonl.xz" for name in names).records
    runs = [record for record in records if record.settings.method.name == "alrao"]
    assert len(runs) > 30
    assert not any(record.diverged for record in runs)


def test_the_workbench_page_names_every_task_method_and_command():
    pytest.importorskip("click", reason="the workbench needs alrao-lab")
    from alrao_lab.cli.app import cli
    from alrao_lab.methods import METHODS
    from alrao_lab.tasks import TASKS

    text = (DOCS / "workbench.md").read_text("utf-8")
    assert not [name for name in (*TASKS, *METHODS) if not re.search(rf"`{name}[`@]", text)]
    assert not [name for name in cli.commands if f"alrao {name}" not in text]


# The commands on the pages.

PAGES_WITH_COMMANDS = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", ROOT / "lab/README.md",
    *sorted(DOCS.rglob("*.md")),
]  # fmt: skip
OTHERS = {
    ".venv/bin/pre-commit install": "pre-commit is in the development environment",
    "ray start --head": "Ray's own command",
    "torchrun --nproc-per-node 8 -m alrao_lab.cli train cifar10 --batch 256": "test_team.py runs torchrun",
    "--optimizer_type alrao.AutoScheduleFree --learning_rate 1.0 --optimizer_args weight_decay=0.3 "
    '"betas=0.5,0.99"':
        "the options of another program; test_trainers.py builds the optimizer as it does",
    "pip install peft": "another package",
}  # fmt: skip
"""Commands of other programs."""


def commands():
    """Return the lines of the shell blocks of all pages, without comments."""
    found = {}
    for page in PAGES_WITH_COMMANDS:
        for match in re.finditer(r"^( *)```sh\n(.*?)^\1```$", page.read_text("utf-8"), re.M | re.S):
            for line in textwrap.dedent(match[2]).splitlines():
                if line := re.sub(r"\s+# .*", "", line).strip():
                    found[line] = page.relative_to(ROOT)
    return found


COMMANDS = commands()


def check_make(words):
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert {word for word in words if "=" not in word} <= set(targets)


def check_pip(words):
    assert words[0] == "install"
    for word in words[1:]:
        folder, _, extras = word.partition("[")
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert set(filter(None, extras.rstrip("]").split(","))) <= set(project["optional-dependencies"])


def check_alrao(words):
    """Parse a command as the program does, without running it."""
    pytest.importorskip("click", reason="the workbench needs alrao-lab")
    from alrao_lab.cli.app import cli
    from alrao_lab.methods import METHODS
    from alrao_lab.tasks import TASKS

    command = cli.commands[words[0]]
    outer = cli.make_context("alrao", [words[0]])  # click keeps the options of its first look at a command
    given = command.make_context(words[0], words[1:], parent=outer).params
    task = given.get("task")
    assert task is None or task in TASKS or "." in task
    for name in filter(None, (given.get("methods") or "").split(",")):
        assert name in METHODS


def test_contributing_names_every_target_of_make():
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.M)
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert not [target for target in targets if f"make {target}" not in text]


CHECKS = {"make": check_make, "pip": check_pip, "alrao": check_alrao}


@pytest.mark.parametrize("line", sorted(set(COMMANDS) - set(OTHERS)))
def test_a_command_of_a_page_can_be_given(line):
    program, *words = shlex.split(line)
    CHECKS[program](words)


def test_commands_are_found():
    assert set(OTHERS) <= set(COMMANDS)
    assert {"make demo", "alrao export", "pip install . ./lab"} <= set(COMMANDS)
    assert len(COMMANDS) > 30


def test_the_commands_from_data_to_a_model_run(tmp_path, monkeypatch):
    """As docs/workbench.md has them; others of the page are run by the tests of the workbench."""
    for package in ("click", "pandas", "onnxscript", "onnxruntime", "sklearn"):
        pytest.importorskip(package, reason="the workbench needs alrao-lab")
    block = re.search(
        r"^```sh\n(alrao train iris.*?)^```$", (DOCS / "workbench.md").read_text("utf-8"), re.M | re.S
    )
    tool("demo").prepare(tmp_path)
    lines = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert [line.split()[1] for line in lines] == ["train", "predict", "export"]
    from click.testing import CliRunner

    from alrao_lab.cli.app import cli

    monkeypatch.chdir(tmp_path)
    for line in [*lines, "alrao table", "alrao report", "alrao list", "alrao params"]:
        done = CliRunner().invoke(cli, shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}: {done.output}"
    assert {"model.onnx", "model.pt2", "README.md"} <= {path.name for path in (tmp_path / "model").iterdir()}
    assert (tmp_path / "predictions.csv").exists()


SHORTER = {
    "train": ["--epochs", "1"],
    "compare": ["--epochs", "1", "--seeds", "1", "--grid-seeds", "1"],
    "triangle": ["--epochs", "1"],
    "suite": ["--no-run"],
    "recipes": ["--no-run"],
}
"""Options that make a command short: the last of two counts."""
SMALLER = ["--train-size", "200", "--valid-size", "100", "--test-size", "100"]
RUN_ELSEWHERE = ("--backend ray", "--processes", "reproduce", "alrao predict", "alrao export")
"""Of test_ray.py, test_team.py and test_reproduce.py; the last two need a run, and have one above."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the commands of the pages name."""
    image = pytest.importorskip("PIL.Image", reason="the workbench needs alrao-lab[all]")
    folder = tmp_path_factory.mktemp("workplace")
    tool("demo").prepare(folder)
    words = random.Random(0).choices(["one", "two", "three", "four", "five"], k=4000)
    (folder / "my.txt").write_text(" ".join(words))
    for number in range(60):
        picture = image.effect_noise((24, 24), 40 + 60 * (number % 2))
        path = folder / "my-pictures" / ("calm", "wild")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.convert("RGB").save(path)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted(line for line in COMMANDS if line.startswith("alrao ")))
def test_a_command_of_the_workbench_runs(line, workplace, monkeypatch):
    """With fewer epochs and examples."""
    if any(part in line for part in RUN_ELSEWHERE):
        pytest.skip("other tests run it")
    if "cifar10" in line and "ALRAO_DATA" not in os.environ:
        pytest.skip("needs the data that ALRAO_DATA points to")
    from click.testing import CliRunner

    from alrao_lab.cli.app import cli

    monkeypatch.chdir(workplace)
    _, command, *words = shlex.split(line)
    words = [str(workplace / "runs") if word == "/shared/runs" else word for word in words]
    words = [word for word in words if word != "--to-keep"]  # of a tree whose files are all committed
    words += SHORTER.get(command, []) + (SMALLER if "cifar10" in words else [])
    done = CliRunner().invoke(cli, [command, *words])
    assert done.exit_code == 0, done.output or done.exception


SCRIPT = re.compile(r"`python ((?:benchmarks|tools|examples)/\S+?\.py)((?: [^`]*)?)`")


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_scripts_that_a_page_names_exist_with_their_options(page):
    for script, rest in SCRIPT.findall(page.read_text("utf-8")):
        source = (ROOT / script).read_text("utf-8")
        for flag in re.findall(r"--[a-z-]+", rest):
            assert flag in source, f"{script} has no {flag}"


def test_pages_name_no_file_that_is_gone():
    for page in PAGES_WITH_COMMANDS:
        text = re.sub(r"at commit [0-9a-f]{7}|\([^()]* at commit [^()]*\)", "", page.read_text("utf-8"))
        for path in re.findall(r"`((?:docs|tools|tests|lab|src|benchmarks|examples)/[\w./-]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


# The code on the pages.

NOT_RUN = {
    "how-to/fastai.md": "fastai changes torch.Tensor; test_trainers.py runs it in a process of its own",
    "integrations/huggingface.md": "loads a pre-trained model; test_huggingface.py runs it with a small one",
    "integrations/reinforcement-learning.md": "trains for 200,000 steps; test_sb3.py runs it for a few",
}
VISION = "from support.vision import torchvision  # before others import it"
BEFORE = {
    "how-to/lora.md": VISION,
    "how-to/timm.md": VISION,
    "how-to/trainers.md": VISION,
    "integrations/lightning.md": VISION,
    "integrations/tensorboard-onnx.md": """
import torch, torch.nn as nn, torch.nn.functional as F, alrao
model = alrao.Alrao(nn.Linear(4, 3))
optimizer = alrao.SGD(model)
x = torch.randn(8, 4)
loader = [(x, torch.randint(3, (8,)))]
""",
}
NEEDS = {
    "how-to/lora.md": ["peft", "transformers"],
    "how-to/timm.md": ["timm"],
    "how-to/trainers.md": [
        "accelerate",
        "jsonargparse",
        "pytorch_optimizer",
        "skorch",
        "timm",
        "transformers",
    ],
    "integrations/lightning.md": ["lightning"],
    "integrations/sklearn.md": ["sklearn", "pandas"],
    "integrations/skorch.md": ["skorch"],
    "start.md": ["sklearn"],
    "integrations/tensorboard-onnx.md": ["tensorboard", "onnxscript"],
}


def blocks(page):
    """Return the Python blocks of a page, in order; blocks in lists are indented."""
    text = page.read_text("utf-8")
    return [textwrap.dedent(m[2]) for m in re.finditer(r"^( *)```python\n(.*?)^\1```$", text, re.M | re.S)]


KINDS = {"python", "sh", "diff", "bibtex", "yaml"}
"""Programs and commands, which tests run; edits, which `alrao recipes` makes; and two kinds of data."""


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_block_that_no_test_looks_at(page):
    fences = re.findall(r"^ *```(.*)$", page.read_text("utf-8"), re.M)
    assert set(fences[::2]) <= KINDS
    assert set(fences[1::2]) <= {""}


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_can_be_imported(script, monkeypatch):
    """Running one takes minutes."""
    pytest.importorskip("pandas", reason="the workbench needs alrao-lab")
    monkeypatch.syspath_prepend(str(script.parent))
    importlib.import_module(script.stem)


# The README, which is not on the site.


def test_the_links_and_pictures_of_the_readme_exist():
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(links) > 15
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_loop_of_the_readme_runs():
    (loop,) = blocks(ROOT / "README.md")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    before = net[0].weight.clone()
    loader = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(2)]
    names = {"__name__": "readme", "net": net, "loader": loader, "F": torch.nn.functional}
    exec(compile(loop, "README.md", "exec"), names)
    assert not torch.equal(net[0].weight, before)
    assert not names["net"].training


LONG = {"how-to/accelerators.md", "how-to/lora.md"}
"""Pages whose code runs for several seconds."""
WITH_CODE = {str(page.relative_to(DOCS)): page for page in sorted(DOCS.rglob("*.md")) if blocks(page)}


def test_code_is_found():
    assert {"index.md", "how-to/training-loop.md", "how-to/language-models.md"} <= set(WITH_CODE)
    assert any("WordModel" in block for block in blocks(WITH_CODE["how-to/language-models.md"]))  # indented
    assert set(NOT_RUN) | set(BEFORE) <= set(WITH_CODE)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile itself
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")  # torch.onnx itself
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in sorted(set(WITH_CODE) - set(NOT_RUN))
    ],
)
def test_the_code_on_a_page_runs(name, tmp_path, monkeypatch):
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{name} needs {package}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])  # which LightningCLI reads
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # of how Lightning calls it
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for key, value in address.items():
        monkeypatch.setenv(key, value)
    names = {"__name__": "page"}
    for number, code in enumerate([BEFORE.get(name, ""), *blocks(WITH_CODE[name])]):
        exec(compile(code, f"{name}, block {number}", "exec"), names)
    assert len(names) > 2, "a page's code makes something"  # beside its name and the builtins
