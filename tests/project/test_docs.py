"""The documentation site builds strictly and is complete, and the code on its pages runs."""

import ast
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from html.parser import HTMLParser

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


@pytest.fixture
def comparison():
    pytest.importorskip("pandas", reason="the workbench needs alrao-lab")
    return tool("comparison")


def test_the_comparison_shows_the_results_as_they_are(comparison):
    page = (DOCS / "comparison.md").read_text("utf-8")
    assert comparison.renewed(page) == page, "run: make pages"


def test_the_figure_of_the_readme_shows_the_records_as_they_are():
    pytest.importorskip("plotly", reason="the workbench needs alrao-lab")
    for path, content in tool("hero").figures().items():
        assert path.read_text("utf-8") == content, "run: make pages"
        assert content.count("<circle") == 7 + 5, "SGD at seven rates, Adam at five"


def test_the_page_of_results_shows_the_records_as_they_are():
    pytest.importorskip("pandas", reason="the workbench needs alrao-lab")
    from alrao_lab.records import read_runs
    from alrao_lab.render.markdown import page
    from alrao_lab.table import experiments

    names = re.search(r"^PAGE := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)[1].split()
    reading = read_runs(ROOT / "results" / f"{name}.jsonl.xz" for name in names)
    assert page(experiments(reading)) == (DOCS / "results.md").read_text("utf-8"), "run: make pages"


def test_the_comparison_says_of_the_results_what_is_true(comparison):
    found = comparison.found()
    rows = {name: experiment.rows for name, experiment in found.items()}
    for each in rows.values():
        assert (each.loc[each["method"].str.startswith("alrao"), "failed"] == 0).all(), (
            "no run of Alrao failed"
        )
    behind = {
        name: {k: float(gap) for k, gap in comparison.behind(each).items()} for name, each in found.items()
    }
    for gaps in behind.values():
        for method in ("DoG", "Schedule-Free"):
            assert gaps.get(method, -float("inf")) < gaps["Alrao"]
    for name in ("cifar10-small", "ptb-lstm"):
        assert behind[name]["Prodigy"] < behind[name]["Alrao"]
    for method in ("D-Adapt SGD", "D-Adapt Adam"):
        ahead = {gaps[method] < gaps["Alrao"] for gaps in behind.values() if method in gaps}
        assert ahead == {True, False}


def test_the_workbench_page_names_every_task_method_and_command():
    pytest.importorskip("click", reason="the workbench needs alrao-lab")
    from alrao_lab.cli.app import cli
    from alrao_lab.methods import METHODS
    from alrao_lab.tasks import TASKS

    text = (DOCS / "workbench.md").read_text("utf-8")
    assert not [name for name in (*TASKS, *METHODS) if not re.search(rf"`{name}[`@]", text)]
    assert not [name for name in cli.commands if f"alrao {name}" not in text]


# The code on the pages.

NOT_RUN = {
    "how-to/fastai.md": "fastai changes torch.Tensor; test_trainers.py runs it in a process of its own",
    "integrations/huggingface.md": "loads a pre-trained model; test_huggingface.py runs it with a small one",
    "integrations/reinforcement-learning.md": "trains for 200,000 steps; test_sb3.py trains for a few",
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


# The README, which is not on the site.


def test_the_links_and_pictures_of_the_readme_exist():
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(links) > 20
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_loop_of_the_readme_runs():
    (loop,) = blocks(ROOT / "README.md")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    before = net[0].weight.clone()
    loader = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(2)]
    names = {"net": net, "loader": loader, "F": torch.nn.functional}
    exec(compile(loop, "README.md", "exec"), names)
    assert not torch.equal(net[0].weight, before)
    assert type(names["plain"]) is torch.nn.Sequential


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
