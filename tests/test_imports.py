"""What the package is made of: light imports that point one way, documented names, examples that run."""

import ast
import doctest
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import alrao

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "alrao"
CORE = sorted(path.stem for path in SOURCE.glob("*.py"))
EXAMPLES = {
    "accelerate_loop.py": ["--epochs", "1"],
    "export_onnx.py": ["--steps", "20"],
    "huggingface_trainer.py": ["--epochs", "1"],
    "lightning_digits.py": ["--epochs", "1"],
    "other_optimizers.py": ["--epochs", "1"],
    "quickstart.py": ["--epochs", "1", "--seeds", "1"],
    "sklearn_estimators.py": [],
    "skorch_search.py": ["--epochs", "1"],
    "tensorboard_log.py": ["--steps", "11"],
}
NEEDS = {
    "accelerate_loop.py": ["accelerate", "sklearn"],
    "export_onnx.py": ["onnxruntime", "onnxscript", "sklearn"],
    "huggingface_trainer.py": ["accelerate", "sklearn", "transformers"],
    "lightning_digits.py": ["lightning", "sklearn"],
    "other_optimizers.py": ["sklearn"],
    "sklearn_estimators.py": ["sklearn", "pandas"],
    "skorch_search.py": ["skorch"],
    "tensorboard_log.py": ["tensorboard"],
}
IMPORT_TORCHVISION = {"huggingface_trainer.py", "lightning_digits.py"}
"""Indirectly, which needs some care on some machines; see run_example.py."""
LONG = {*IMPORT_TORCHVISION, "skorch_search.py"}


def imports(module):
    """The modules that one imports, in functions too; those of the package start with a dot."""
    found = set()
    for node in ast.walk(ast.parse((SOURCE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = [node.module] if node.module else [alias.name for alias in node.names]
            found.update("." * node.level + name for name in inside)
    return found


def reachable(module):
    """The modules of the core that one needs, directly or not."""
    found, new = set(), {module}
    while new:
        new = {name.lstrip(".") for each in new for name in imports(each) if name.startswith(".")} - found
        found |= new
    return found


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_torch_and_the_standard_library_alone(module):
    outside = {name.split(".")[0] for name in imports(module) if not name.startswith(".")}
    assert outside <= {"torch", *sys.stdlib_module_names}


def test_imports_of_modules_are_seen():
    # Of the helper above: without this, the other tests could pass for nothing.
    assert {"torch", ".model", ".rates"} <= imports("optimizer")
    assert {"model", "heads", "averaging", "features"} <= reachable("optim")


@pytest.mark.parametrize("module", [name for name in CORE if name != "__init__"])
def test_imports_go_one_way(module):
    needed = reachable(module)
    assert module not in needed, "a circle"
    assert needed <= set(CORE) - {"__init__"}, "lab and integrations import the core, never the reverse"


@pytest.mark.parametrize(
    ("module", "later"),
    [
        ("features", set(CORE) - {"warn"}),
        ("averaging", set(CORE)),
        ("rates", {"optim", "optimizer", "averaging", "heads", "model"}),
        ("heads", {"model", "optim", "optimizer", "rates"}),
        ("model", {"optim", "optimizer", "rates"}),
    ],
)
def test_the_layout(module, later):
    assert reachable(module).isdisjoint(later)


LAB = sorted(path for path in (SOURCE / "lab").rglob("*.py"))
COMMANDS = {"cli", "cli_report", "cli_reproduce", "main"}


def lab_imports(path):
    """What a module of the workbench imports of the package, in functions too: ``lab.run``, ``model``."""
    home = ("alrao", *path.relative_to(SOURCE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = home[: len(home) - node.level] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            found.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
    return {name.removeprefix("alrao.") for name in found if name.startswith("alrao.")}


def test_imports_of_the_workbench_are_seen():
    assert {"lab.resolve", "lab.tasks.Problem", "lab.store.locate"} <= lab_imports(SOURCE / "lab" / "run.py")
    assert "lab.settings" in lab_imports(SOURCE / "lab" / "tasks" / "digits.py")
    assert "lab.cli" in lab_imports(SOURCE / "lab" / "main.py")


@pytest.mark.parametrize("module", CORE)
def test_the_core_knows_nothing_of_the_workbench(module):
    text = (SOURCE / f"{module}.py").read_text(encoding="utf-8")
    assert not re.search(r"import.*\blab\b|\balrao\.lab\b", text)


@pytest.mark.parametrize("path", LAB, ids=[str(path.relative_to(SOURCE)) for path in LAB])
def test_the_workbench_imports_its_command_line_nowhere(path):
    if path.stem not in COMMANDS:
        needed = {name.split(".")[1] for name in lab_imports(path) if name.startswith("lab.")}
        assert needed.isdisjoint(COMMANDS)


@pytest.mark.parametrize(
    ("folder", "later"),
    [
        ("data", {"tasks", "zoo", "methods", "learner", "run", "runset", "compare", "table"}),
        ("zoo", {"tasks", "data", "methods", "learner", "run", "store", "runset", "compare", "table"}),
        ("tasks", {"methods", "learner", "runset", "compare", "table", "display"}),
    ],
)
def test_the_layout_of_the_workbench(folder, later):
    for path in (SOURCE / "lab" / folder).glob("*.py"):
        needed = {name.split(".")[1] for name in lab_imports(path) if name.startswith("lab.")}
        assert needed.isdisjoint(later), path


@pytest.mark.parametrize("name", alrao.__all__)
def test_public_names_have_a_docstring_of_their_own(name):
    text = getattr(alrao, name).__doc__  # not inherited
    assert text is not None
    assert len(text.split()) > 5


@pytest.mark.parametrize("module", CORE)
def test_doctests(module):
    module = importlib.import_module("alrao" if module == "__init__" else f"alrao.{module}")
    assert doctest.testmod(module).failed == 0


def test_there_are_doctests():
    finder = doctest.DocTestFinder()
    with_examples = {
        name for name in alrao.__all__ for test in finder.find(getattr(alrao, name)) if test.examples
    }
    assert {"Alrao", "SGD", "Switch", "LogUniform"} <= with_examples


def test_every_example_is_run_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in EXAMPLES]
)
def test_examples_run(name):
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{name} needs {package}")
    runner = [str(ROOT / "tests" / "run_example.py")] if name in IMPORT_TORCHVISION else []
    script = [*runner, str(ROOT / "examples" / name), *EXAMPLES[name]]
    command = [sys.executable, "-W", "error::UserWarning", *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Alrao" in done.stdout
