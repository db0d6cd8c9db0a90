"""Both wheels, each installed into a new environment that has only what the wheel asks for."""

import csv
import json
import os
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.tools import ROOT

pytest.importorskip("hatchling", reason="building the packages needs hatchling")
pytest.importorskip("build", reason="building the packages needs build")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IMPORT = """
import importlib.util, json, sys
before = set(sys.modules)
import alrao, torch
absent = [name for name in ("alrao_lab", "numpy", "click") if importlib.util.find_spec(name) is None]
model = alrao.Alrao(torch.nn.Linear(4, 3))
optimizer = alrao.Auto(model)
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
    optimizer.step()
kinds = [type(model).__name__, type(model.collapse()).__name__]
print(json.dumps({"absent": absent, "kinds": kinds, "from": alrao.__file__}))
"""


def call(*words, **options):
    clean = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # only what is installed
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=400, check=False, env=clean, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels, each built from its sdist, as a release is."""
    out = tmp_path_factory.mktemp("dist")
    for package in (ROOT, ROOT / "lab"):
        call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, package)
    (library,), (lab,) = out.glob("alrao-*.whl"), out.glob("alrao_lab-*.whl")
    return {"alrao": library, "alrao-lab": lab}


def requirements(name, found):
    """Collect the installed packages that one needs, itself included."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    if package.name not in found:
        found[package.name] = package
        for needed in map(Requirement, package.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                requirements(needed.name, found)


class Environment:
    """A new environment; packages of this one are lent to it as links: torch is too large to install."""

    def __init__(self, path):
        venv.create(path, symlinks=True)
        self.bin = path / "bin"
        (self.site,) = (path / "lib").glob("python*/site-packages")

    def lend(self, *names):
        found = {}
        for name in names:
            requirements(name, found)
        assert "alrao" not in found
        for package in found.values():
            tops = {Path(file).parts[0] for file in package.files if ".." not in file.parts}
            for top in tops - {"__pycache__", "bin"}:
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(Path(package.locate_file(top)))

    def install(self, wheel):
        """Install without an index: pip fails if the environment lacks a requirement of the wheel."""
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python", "--disable-pip-version-check")
        call(*pip, "install", "--no-index", "--no-compile", wheel)


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("new"))
    made.lend("torch")
    made.install(wheels["alrao"])
    return made


def test_the_library_needs_only_torch(environment, tmp_path):
    assert not (environment.bin / "alrao").exists()
    done = json.loads(call(environment.bin / "python", "-IW", "ignore", "-c", IMPORT, cwd=tmp_path))
    assert done["absent"] == ["alrao_lab", "numpy", "click"]
    assert done["kinds"] == ["Alrao", "Linear"]
    assert Path(done["from"]).is_relative_to(environment.site)


@pytest.fixture(scope="module")
def workbench(wheels, environment):
    """The same environment with the workbench, and what it declares."""
    needed = map(
        Requirement, tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]["dependencies"]
    )
    environment.lend(*(each.name for each in needed if each.name != "alrao"))
    environment.install(wheels["alrao-lab"])
    return environment


def test_the_workbench_adds_the_command(workbench, tmp_path):
    assert "alrao, version" in call(workbench.bin / "alrao", "--version", cwd=tmp_path)
    call(workbench.bin / "alrao", "train", "digits", "--epochs", "1", "--threads", "1", cwd=tmp_path)
    (result,) = (tmp_path / "runs").rglob("result.json")
    assert json.loads(result.read_text("utf-8"))


DATA = """
from sklearn.datasets import load_iris
data = load_iris(as_frame=True)
frame = data.data.assign(kind=data.target_names[data.target]).sample(frac=1, random_state=0)
frame[:120].to_csv("iris.csv", index=False)
frame[120:].drop(columns="kind").to_csv("new.csv", index=False)
"""


HOSTILE = """
from pathlib import Path
Path("mixed.csv").write_text("a,kind\\n" + "".join(f"{n},{'xy'[n % 2]}\\n" for n in range(40)) + "wide,x\\n")
Path("latin.csv").write_bytes("a,kind\\n1,caf\\xe9\\n".encode("latin-1"))
"""


def test_what_cannot_be_used_is_refused_in_one_line(workbench, tmp_path):
    call(workbench.bin / "python", "-I", "-c", HOSTILE, cwd=tmp_path)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words, said in {
        "train mixed.csv --target kind": "mixed.csv, line 42: 'wide' in column a is not a number",
        "train latin.csv --target kind": "latin.csv is not UTF-8",
        "predict mixed.csv": "there is no finished run",
    }.items():
        command = [str(workbench.bin / "alrao"), *words.split()]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 2, words
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_without_onnx_a_plain_installation_exports_the_other_format(workbench, tmp_path):
    """Before the packages of ONNX are lent to the environment."""
    call(workbench.bin / "python", "-I", "-c", DATA, cwd=tmp_path)
    alrao = workbench.bin / "alrao"
    call(alrao, "train", "iris.csv", "--target", "kind", "--epochs", "1", "--threads", "1", cwd=tmp_path)
    assert "without ONNX, which needs onnxscript and onnxruntime" in call(alrao, "export", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["README.md", "model.pt2"]


def test_from_a_csv_file_to_an_exported_model_in_three_commands(workbench, tmp_path):
    workbench.lend("onnx", "onnxruntime", "onnxscript")
    call(workbench.bin / "python", "-I", "-c", DATA, cwd=tmp_path)
    alrao = workbench.bin / "alrao"
    call(alrao, "train", "iris.csv", "--target", "kind", "--threads", "1", cwd=tmp_path)
    call(alrao, "predict", "new.csv", cwd=tmp_path)
    said = call(alrao, "export", cwd=tmp_path)
    assert "model.onnx: outputs differ" in said
    assert "model.pt2: outputs differ" in said
    assert (tmp_path / "model/README.md").exists()
    with (tmp_path / "predictions.csv").open() as file:
        predicted = [row["predicted kind"] for row in csv.DictReader(file)]
    assert len(predicted) == 30
    assert set(predicted) == {"setosa", "versicolor", "virginica"}


PICTURES = """
import numpy, pathlib
from PIL import Image
random = numpy.random.default_rng(0)
for place, kind in enumerate(("cat", "dog")):
    folder = pathlib.Path("pets", kind)
    folder.mkdir(parents=True)
    for number in range(14):
        pixels = random.normal(60 + 120 * place, 20, (40, 40, 3)).clip(0, 255).astype("uint8")
        Image.fromarray(pixels).save(folder / f"{number}.png")
pathlib.Path("story.txt").write_text("abcd" * 400)
pathlib.Path("start.txt").write_text("abcdab")
"""


def test_numbers_images_and_a_text_become_exported_models(workbench, tmp_path):
    workbench.lend("onnx", "onnxruntime", "onnxscript")
    for code in (DATA, PICTURES):
        call(workbench.bin / "python", "-I", "-c", code, cwd=tmp_path)
    alrao, brief = workbench.bin / "alrao", ("--epochs", "1", "--threads", "1")
    small = ("--model", "mobilenet_v3_small", "--image-size", "32", "--workers", "0", "--batch", "8")
    for data, new, options in (
        ("iris.csv", "iris.csv", ("--target", "petal width (cm)", "--seed", "0")),
        ("pets", "pets/cat", small),
        ("story.txt", "start.txt", ("--batch", "4", "--width", "0.2")),
    ):
        call(alrao, "train", data, *options, *brief, cwd=tmp_path)
        call(alrao, "predict", new, cwd=tmp_path)
        assert "model.onnx: outputs differ" in call(alrao, "export", "--to", f"of-{data}", cwd=tmp_path)
        card = (tmp_path / f"of-{data}" / "README.md").read_text("utf-8")
        assert data in card
        assert "## Limitations" in card


def test_a_comparison_names_the_winner_with_its_uncertainty(workbench, tmp_path):
    call(workbench.bin / "python", "-I", "-c", DATA, cwd=tmp_path)
    words = (
        "compare",
        "iris.csv",
        "--target",
        "kind",
        "--methods",
        "auto,adam",
        "--seeds",
        "2",
        "--epochs",
        "3",
    )
    said = " ".join(call(workbench.bin / "alrao", *words, "--threads", "1", cwd=tmp_path).split())
    assert "has the lowest test loss" in said
    assert "95 % interval over 2 and 2 seeds" in said
