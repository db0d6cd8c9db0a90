"""What the package is made of: light imports that point one way, documented names, examples that run."""

import ast
import doctest
import functools
import importlib.util
import subprocess
import sys

import pytest
from support.tools import ROOT, tool

import alrao

import_graph = tool("import_graph")
CORE = import_graph.modules("core")
GRAPH = import_graph.graph("core")
LAB = import_graph.modules("lab")
LAB_GRAPH = import_graph.graph("lab")
ORDER = [
    "warn",
    "calls",
    "watch",
    "shortcuts",
    "finite",
    "evidence",
    "rates",
    "features",
    "posterior",
    "runtime",
    "tensors",
    "heads",
    "contrib.__init__",
    "contrib.adaptive",
    "contrib.copy_parallel",
    "losses",
    "statistics",
]
ORDER += [
    "clipping",
    "output_layer",
    "first_forward",
    "wrapper",
    "model",
    "plain",
    "trainable",
    "optim",
    "contrib.zoom",
    "paper",
    "recalibration",
    "auto",
    "prepare",
    "summary",
    "__init__",
]
"""The rooms of the core: each imports only those before it."""
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
    "word_language_model.py": ["--words", "300", "--steps", "2"],
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


def room(module):
    """The folder or file of a module; each of contrib stands for itself."""
    return module if module.startswith("contrib.") else module.split(".")[0]


def reachable(module, graph=GRAPH):
    """The modules of a graph that one needs, directly or not."""
    found, new = set(), {module}
    while new:
        new = {name for each in new for name in graph.get(each, ())} - found
        found |= new
    return found


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_torch_and_the_standard_library_only(module):
    outside = {name.split(".")[0] for name in import_graph.imports(CORE[module])}
    assert outside <= {"alrao", "torch", *sys.stdlib_module_names}


def test_imports_of_modules_are_seen():
    # Of the tool: without this, the other tests could pass for nothing.
    assert {"trainable", "rates"} <= GRAPH["optim.base"]
    assert {"model", "heads.linear", "posterior", "features"} <= reachable("optim.__init__")
    assert "settings" in LAB_GRAPH["tasks.images"]
    assert "alrao.posterior" in import_graph.imports(LAB["render.terminal"])


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_no_integration(module):
    assert GRAPH[module] <= set(CORE)


@pytest.mark.parametrize("module", [*CORE, *import_graph.modules("integrations")])
def test_the_library_never_imports_the_workbench(module):
    path = (CORE | import_graph.modules("integrations"))[module]
    assert not [name for name in import_graph.imports(path) if name.startswith("alrao_lab")]


def test_the_order_of_the_rooms_is_complete():
    assert sorted(ORDER) == sorted({room(module) for module in CORE})


@pytest.mark.parametrize("module", CORE)
def test_imports_go_one_way(module):
    assert module not in reachable(module), "a circle"
    allowed = ORDER[: ORDER.index(room(module)) + 1]
    assert {room(name) for name in GRAPH[module]} <= set(allowed)


@functools.cache
def private_names(path):
    """The private names that a module defines, and all that it uses of whatever it has not defined."""
    defined, used = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined.add(node.attr) if getattr(node.value, "id", "") == "self" else used.add(node.attr)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.level:
            used.update(alias.name for alias in node.names)
    private = [
        {n for n in names if n.startswith("_") and not n.startswith("__")} for names in (defined, used)
    ]
    return private[0], private[1] - private[0]


@pytest.mark.parametrize("module", CORE)
def test_no_module_of_the_core_uses_a_private_name_of_another(module):
    of_others = set().union(*(private_names(path)[0] for name, path in CORE.items() if name != module))
    assert not private_names(CORE[module])[1] & of_others


GUARDS = {"isfinite", "isinf", "isnan", "nan_to_num", "nan_to_num_"}
"""Functions that look for numbers that are not finite; those of arguments in ``rates`` raise an error."""


@pytest.mark.parametrize("module", sorted(set(CORE) - {"finite", "rates"}))
def test_guards_against_numbers_that_are_not_finite_are_in_one_module(module):
    nodes = list(ast.walk(ast.parse(CORE[module].read_text(encoding="utf-8"))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    assert not names & GUARDS


def test_private_names_are_seen():
    defined, used = private_names(CORE["rates"])
    assert "_check_rate" in defined
    assert all(name.startswith("_foreach_") for name in used), "torch's own"
    assert (
        "_get_predict_nonlinearity"
        in private_names(import_graph.modules("integrations")["integrations.skorch"])[0]
    )


@pytest.mark.parametrize("module", LAB)
def test_the_workbench_imports_its_command_line_nowhere(module):
    if not module.startswith("cli."):
        assert not [name for name in LAB_GRAPH[module] if name.startswith("cli")]


@pytest.mark.parametrize(
    ("folder", "later"),
    [
        ("zoo", {"tasks", "methods", "learner", "loop", "run", "store", "runset", "rl"}),
        ("tasks", {"methods", "loop", "run", "runset", "table", "render", "rl"}),
        ("rl", {"loop", "run", "runset", "table", "render"}),
        ("render", {"report", "paper", "suite", "cli"}),
        ("report", {"paper", "suite", "cli", "runset"}),
        ("suite", {"paper", "cli"}),
        ("paper", {"suite", "cli"}),
    ],
)
def test_the_layout_of_the_workbench(folder, later):
    for module, needed in LAB_GRAPH.items():
        if module.startswith(f"{folder}."):
            assert {name.split(".")[0] for name in needed}.isdisjoint(later), module


def test_the_workbench_has_no_import_cycle():
    graph = LAB_GRAPH
    for module in graph:
        assert module not in reachable(module, graph), module


@pytest.mark.parametrize("name", alrao.__all__)
def test_public_names_have_a_docstring_of_their_own(name):
    text = getattr(alrao, name).__doc__  # not inherited
    assert text is not None
    assert len(text.split()) > 5


@pytest.mark.parametrize("module", CORE)
def test_doctests(module):
    module = importlib.import_module(f"alrao.{module}".removesuffix(".__init__"))
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
    runner = [str(ROOT / "tests" / "support" / "run_example.py")] if name in IMPORT_TORCHVISION else []
    script = [*runner, str(ROOT / "examples" / name), *EXAMPLES[name]]
    command = [sys.executable, "-W", "error::UserWarning", *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Alrao" in done.stdout


@pytest.mark.parametrize("name", alrao.FORMER)
def test_a_former_name_works_and_says_where_it_is_now(name):
    with pytest.warns(DeprecationWarning, match=f"alrao.{name} is {alrao.FORMER[name]} now"):
        found = getattr(alrao, name)
    module, _, new = alrao.FORMER[name].rpartition(".")
    assert found is getattr(importlib.import_module(module), new)
    assert name not in alrao.__all__


def test_a_name_that_never_was_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        alrao.Nothing  # noqa: B018
