"""The command line: its output, its help, and its errors in one line."""

import dataclasses
import html
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from alrao_lab import provenance
from alrao_lab import run as runs
from alrao_lab.cli import main
from alrao_lab.cli.app import cli
from alrao_lab.methods import METHODS, usual_methods
from alrao_lab.records import find_runs
from alrao_lab.render.cells import measure_text
from alrao_lab.render.terminal import out
from alrao_lab.settings import Settings
from alrao_lab.table import spread
from alrao_lab.tasks import TASKS, get_task

TINY = ("--epochs", "1", "--train-size", "64")


@pytest.fixture
def alrao(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALRAO_DATA", raising=False)
    monkeypatch.setattr(out, "_width", 100)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["alrao", *map(str, words)])
        capsys.readouterr()
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return SimpleNamespace(code=code or 0, out=said.out, err=said.err)

    return call


ERRORS = [
    ("train digits --method adam --copies 5", "--copies is for Alrao's methods"),
    ("tran digits", "unknown command 'tran': did you mean train?"),
    ("train", "Missing argument 'TASK'"),
    ("train digit", "unknown task 'digit': did you mean digits?"),
    ("train digits more", "unexpected extra argument"),
    ("train digits --epoch 3", "No such option '--epoch'"),
    ("train digits --epochs three", "'three' is not a valid integer"),
    ("train digits --epochs", "'--epochs' requires an argument"),
    ("train digits --model cmn", "unknown model 'cmn': did you mean cnn?"),
    ("train imagefolder --model resnet51", "did you mean resnet"),
    ("train digits --method adan", "unknown method 'adan': did you mean adam?"),
    ("train digits --method sgd", "sgd needs a rate: sgd@0.1"),
    ("train digits --method sgd@x", "a learning rate must be a number, got 'x'"),
    ("train digits --method sgd --lr -1", "not negative, got -1"),
    ("train digits --lr 10:1e-5", "from low to high, got 10:1e-5"),
    ("train digits --lr 0:1", "must be positive, got 0"),
    ("train digits --seed -1", "--seed must be at least 0, got -1"),
    ("train digits --epochs 0", "--epochs must be positive, got 0"),
    ("train digits --epochs -3", "--epochs must be positive, got -3"),
    ("train digits --method alrao --copies 0", "--copies must be positive"),
    ("train digits --batch 0", "--batch must be positive"),
    ("train digits --threads 0", "--threads must be between 1 and 1024, got 0"),
    ("train digits --threads 100000", "--threads must be between 1 and 1024, got 100000"),
    ("train digits --width 1e9", "--width must be positive and at most 1000, got 1000000000.0"),
    ("train digits --patience 0", "--patience must be positive"),
    ("train digits --clip 0", "--clip must be positive"),
    ("train digits --clip nan", "--clip must be a finite number"),
    ("train digits --width inf", "--width must be a finite number"),
    ("train digits --weight-decay nan", "--weight-decay must be a finite number"),
    ("train digits --weight-decay -1", "--weight-decay must be at least 0"),
    ("train digits --momentum 1", "--momentum must be at least 0 and less than 1"),
    ("train digits --momentum nan", "--momentum must be a finite number"),
    ("train digits --method alrao --theta 1", "--theta must be strictly between 0 and 1"),
    (
        "train digits --method alrao --averaging swich",
        "unknown value of --averaging 'swich': did you mean switch?",
    ),
    ("train digits --budget big", "unknown value of --budget 'big'"),
    ("train digits --schedule cos", "did you mean cosine"),
    ("train digits --device gpu", "--device gpu cannot be used here"),
    ("train digits --train-size 5000", "there are 1000 training examples"),
    ("train digits --level word", "--level does not apply to digits"),
    ("train digits --dropout 0.5", "--dropout does not apply to digits"),
    ("train digits --image-size 64", "--image-size does not apply to digits"),
    ("train regression --dropout 0.5", "--dropout does not apply to regression"),
    ("train ptb --dropout 1", "--dropout must be at least 0 and less than 1"),
    ("train digits --method dog --momentum 0.9", "dog has no momentum"),
    ("train cifar10", "neither --data nor ALRAO_DATA is set"),
    ("train ptb --data nowhere", "does not exist"),
    ("train ptb --data .", "there is no ptb."),
    ("train text", "name a text file of your own with --data FILE"),
    ("train text --data .", "is a directory, and a file is needed"),
    ("train text --data empty.txt", "empty.txt is empty"),
    ("train text --data short.txt", "too few"),
    ("train imagenet --data .", "train"),
    ("train regression --data short.txt", "--target"),
    ("train digits --out a.file", "could not be written: Not a directory"),
    ("compare digits --methods ,", "--methods must name at least one method"),
    ("compare digits --methods alrao,sdg", "unknown method 'sdg': did you mean sgd?"),
    ("compare digits --methods adam --lr 0.1", "--lr is for the methods of Alrao"),
    ("compare digits --seeds 0", "not in the range"),
    ("compare digits --jobs 0", "not in the range"),
    ("compare digits --method alrao", "No such option '--method'"),
    ("compare cifar10", "neither --data nor ALRAO_DATA is set"),
    ("triangle digits --method adam", "about alrao and alrao-adam"),
    ("triangle digits --method foo", "unknown method 'foo'"),
    ("triangle digits --rates 1,x", "must be a number, got 'x'"),
    ("table nowhere", "'nowhere' does not exist"),
    ("table", "neither runs/ nor results/ exists"),
    ("keep nowhere", "'nowhere' does not exist"),
    ("list tasks", "unexpected extra argument"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS, ids=[words for words, _ in ERRORS])
def test_errors_are_one_line_and_code_2(alrao, tmp_path, words, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("a few words")
    (tmp_path / "a.file").write_text("")
    said = alrao(*words.split())
    assert said.code == 2
    assert said.err.startswith("alrao: ")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not (tmp_path / "runs").exists(), "nothing was begun"


def test_no_command_is_a_question(alrao):
    said = alrao()
    assert said.code == 2
    assert "Commands:\n" in said.err


def test_version(alrao):
    assert re.search(r"\d+\.\d+\.\d+", alrao("--version").out)


@pytest.mark.parametrize("command", ["train", "compare", "triangle"])
def test_help_has_every_option(alrao, command):
    said = alrao(command, "--help")
    assert said.code == 0
    skipped = {"train": {"task"}, "compare": {"task", "method", "seed"}, "triangle": {"task", "lr"}}[command]
    skipped.add("former")  # which only rows have
    text = " ".join(said.out.split())
    for field in dataclasses.fields(Settings):
        flag = f"--{field.name.replace('_', '-')} "
        assert (flag in text) == (field.name not in skipped), flag
        for choice in field.metadata["choices"] if field.name not in skipped else ():
            assert choice in text
    extra = {"train": [], "compare": ["--methods", "--seeds", "--grid-seeds", "--jobs"]}
    for flag in [*extra.get(command, ["--rates", "--jobs"]), "--out", "--results"]:
        assert flag in text


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_explains_itself(alrao, command):
    said = alrao(command, "-h")
    assert said.code == 0
    assert len(said.out.split()) > 15
    for parameter in cli.commands[command].params:
        for flag in parameter.opts if parameter.param_type_name == "option" else ():
            assert flag in said.out
    assert command in alrao("--help").out


def test_train(alrao, tmp_path):
    said = alrao("train", "digits", *TINY)
    assert said.code == 0
    assert said.err == ""
    assert re.search(
        r"^epoch +1  train loss \S+  valid loss \S+, accuracy \S+ %  test loss \S+, accuracy \S+ %$",
        said.out,
        re.MULTILINE,
    )
    assert "test, at the best epoch on validation (1): loss" in said.out
    [directory] = find_runs([tmp_path / "runs"])
    assert said.out.endswith(f"run: {directory.path.relative_to(tmp_path)}\n")
    again = alrao("train", "digits", *TINY)
    assert again.out == said.out


def test_train_reports_divergence(alrao):
    said = alrao("train", "digits", "--method", "sgd@1e30", *TINY)
    assert said.code == 0
    assert "\ndiverged at step 2\n" in said.out


def test_a_directory_with_brackets(alrao):
    said = alrao("train", "digits", *TINY, "--out", "a [bold] place[/red]")
    assert said.code == 0
    assert "run: a [bold] place[/red]/digits" in said.out


def test_compare_table_keep(alrao, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "source_state", lambda: ("0123456789ab", False))
    words = ("compare", "digits", "--methods", "alrao,adam", "--seeds", "2", *TINY)
    said = alrao(*words)
    assert said.code == 0
    assert len(re.findall(r"^(Alrao|Adam), seed [01]: test loss", said.out, re.MULTILINE)) == 4
    rows = [line.split("│")[1].strip() for line in said.out.splitlines() if line.startswith("│")]
    assert rows == ["Alrao", "Adam"]
    again = alrao(*words)
    assert "seed 0" not in again.out
    assert alrao("keep").out == "4 runs added to results\n"
    assert alrao("keep").out == "0 runs added to results\n"
    table = alrao("table")
    assert table.code == 0
    assert table.out.splitlines()[0].strip().startswith("digits, mlp, budget mini, 1 epoch,")
    assert alrao("table", "results").out == table.out
    assert alrao("table", "--markdown", "page.md").out == ""
    assert "| **Alrao** |" in Path("page.md").read_text()


def test_a_table_lists_what_it_leaves_out(alrao, tmp_path):
    alrao("train", "digits", *TINY)
    [directory] = find_runs([tmp_path / "runs"])
    (directory.path / "result.json").unlink()
    said = alrao("table")
    assert said.code == 0
    assert said.err.startswith(f"{directory.path.relative_to(tmp_path)}: not finished (epoch 1 of 1)")


def test_a_comparison_with_a_failure_ends_with_code_1(alrao, monkeypatch):
    train = runs.train

    def maybe(problem, settings, *rest):
        if settings.method.name == "adam":
            raise RuntimeError("boom [/red]")
        train(problem, settings, *rest)

    monkeypatch.setattr(runs, "train", maybe)
    said = alrao("compare", "digits", "--methods", "adam,sgd@0.1", "--seeds", "1", *TINY)
    assert said.code == 1
    assert "Adam, seed 0: failed: RuntimeError: boom [/red]" in said.out
    assert "SGD 0.1, seed 0: test loss" in said.out
    assert re.search(r"^failed: runs/digits/mlp/adam-0-\w+: RuntimeError: boom \[/red\]$", said.err, re.M)


def test_a_comparison_lists_what_diverged(alrao):
    said = alrao("compare", "digits", "--methods", "sgd@1e30,adam", "--seeds", "1", *TINY)
    assert said.code == 0
    assert "SGD 1e+30, seed 0: diverged at step 2\n" in said.out


def test_triangle(alrao):
    said = alrao("triangle", "digits", "--rates", "0.1, 1", *TINY)
    assert said.code == 0
    assert "test loss for the rates from … to …" in " ".join(said.out.split())
    assert said.out.count("seed 0: test") == 3


def test_list(alrao):
    said = alrao("list")
    assert said.code == 0
    for name in [*METHODS, *TASKS, *get_task("digits").models]:
        assert name in said.out
    assert "frozen@RATE:P" in said.out


def test_params(alrao):
    said = alrao("params")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.out.splitlines() if "│" in line]
    assert len(rows) == 5
    for row in rows:
        assert row[1:3] == row[4:6], f"{row[0]} has other sizes than in the paper"


def test_a_new_text_of_one_s_own(alrao, tmp_path):
    (tmp_path / "mine.txt").write_text("to be or not to be\n" * 200)
    said = alrao("train", "text", "--data", "mine.txt", "--epochs", "1", "--width", "0.1")
    assert said.code == 0
    assert "bits" in said.out


def test_tensorboard(alrao, tmp_path):
    assert alrao("train", "digits", *TINY, "--tensorboard").code == 0
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 1


def test_interruption(alrao, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", interrupt)
    said = alrao("train", "digits", *TINY)
    assert said.code == 130
    assert said.err.strip() == "interrupted: run the same command to resume"


def test_a_network_that_does_not_fit_into_memory(alrao, monkeypatch):
    monkeypatch.setattr(runs, "train", lambda *_: torch.empty(2**57))
    said = alrao("train", "digits", *TINY)
    assert said.code == 2
    assert re.fullmatch(
        r"alrao: the memory of cpu is too small for this run \(.*can't allocate memory.*\): "
        r"choose a smaller --width, --batch or --copies, or another --model\n",
        said.err,
    )

    def bare(*_):
        raise MemoryError

    monkeypatch.setattr(runs, "train", bare)
    assert "too small for this run (MemoryError): choose" in alrao("train", "digits", *TINY).err
    monkeypatch.setattr(runs, "train", lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        alrao("train", "digits", *TINY)


def test_help_names_the_methods_that_compare_runs(alrao):
    line = re.search(r"alrao compare digits +(.*)", alrao("--help").out)[1]
    named = [method for method in ("Auto", "SGD", "Adam", "Alrao") if method in line.split()]
    assert [name.lower() for name in named] == usual_methods()[:3]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", -2.794e-08, "loss 0"), ("loss", 0.01234567, "loss 0.01235"), ("loss", 1e-9, "loss 1e-09"),
        ("return", -151.28, "return -151.3"), ("r2", -0.01, "r2 -0.01"), ("accuracy", 0.5, "accuracy 50.0 %"),
        ("loss", None, "loss –"),
    ],
)  # fmt: skip
def test_measures_have_their_names_and_no_loss_is_negative_by_rounding(name, value, text):
    assert measure_text(name, value) == text
    assert spread({"test loss": -2.794e-08}, "test loss") == "0.000"


def test_the_command_of_a_figure_names_the_data(alrao, tmp_path):
    """It is run again as it is written."""
    (tmp_path / "my data.csv").write_text(
        "a,b,c\n" + "".join(f"{i % 7},{i % 5},{i % 11}\n" for i in range(80))
    )
    words = ("regression", "--data", "my data.csv", "--target", "c", "--epochs", "1")
    said = alrao("compare", *words, "--methods", "adam", "--seeds", "1")
    assert said.code == 0, said.err
    text = (tmp_path / "runs" / "report-regression.html").read_text("utf-8")
    command = html.unescape(re.search(r"Made by <code>(.*?)</code>", text)[1])
    _, *words = shlex.split(command)
    assert {"--data", "my data.csv"} <= set(words)
    shutil.rmtree(tmp_path / "runs")
    assert alrao(*words).code == 0


def test_another_process_holds_the_run(alrao, tmp_path):
    from alrao_lab.store import RunDirectory

    alrao("train", "digits", *TINY)
    [directory] = find_runs([tmp_path / "runs"])
    (directory.path / "result.json").unlink()
    with RunDirectory(directory.path).locked():
        said = alrao("train", "digits", *TINY)
    assert said.code == 2
    assert f"process {os.getpid()} on {platform.node()} is working on the run" in said.err


# In processes of their own.


def test_ctrl_c(tmp_path):
    words = [sys.executable, "-m", "alrao_lab.cli", "train", "digits", "--epochs", "100000"]
    process = subprocess.Popen(
        [*words, "--patience", "100000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=50)
    finally:
        process.kill()
    assert (process.returncode, errors.strip()) == (130, "interrupted: run the same command to resume")


def test_ctrl_c_during_the_imports(tmp_path):
    code = """
import sys
from alrao_lab.cli import main

class Interrupt:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("package", ["click", "filelock"])
def test_a_package_of_the_workbench_is_missing(tmp_path, package):
    code = f"import sys; sys.modules[{package!r}] = None; from alrao_lab.cli import main; main()"
    environment = {**os.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "digits"],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"alrao: the command line needs the package {package}: pip install alrao-lab\n"
