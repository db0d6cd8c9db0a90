"""The benchmark of tasks without a likelihood: resumable, with measures that are what they say."""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
from support.tools import ROOT

pytest.importorskip("sklearn", reason="needs alrao-lab")
pytest.importorskip("prodigyopt", reason="needs alrao-lab[peers]")


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("any_loss_tasks")


@pytest.fixture
def run(tasks, monkeypatch, capsys):
    """Run the script in this process, and return what it printed."""
    script = importlib.import_module("any_loss")
    threads = torch.get_num_threads()

    def run(out, *arguments):
        argv = ["any_loss.py", "--tasks", "equation", "--part", "0.01", "--out", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        script.main()
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


def test_runs_are_kept_and_skipped_when_they_are_there(run, tmp_path):
    out = tmp_path / "runs.jsonl"
    run(out, "--seeds", "1", "--methods", "auto", "adam", "prodigy")
    kept = out.read_text("utf-8")
    assert [json.loads(line)["method"] for line in kept.splitlines()] == ["auto", "adam@0.001", "prodigy"]
    out.write_text(kept + '{"task": "equ', "utf-8")  # killed while it wrote
    text = run(out, "--seeds", "2", "--methods", "auto", "adam", "prodigy")
    lines = out.read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line != '{"task": "equ']
    assert sorted((row["method"], row["seed"]) for row in rows) == sorted(
        (method, seed) for method in ("auto", "adam@0.001", "prodigy") for seed in (0, 1)
    )
    assert text.count(" seed 0") == 0
    values = [row["value"] for row in rows if row["method"] == "auto"]
    assert f"| {np.mean(values):.3g} ± {np.std(values, ddof=1):.2g} |" in text


def test_the_distance_is_frechets(tasks):
    linalg = pytest.importorskip("scipy.linalg")
    samples = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    one, other = (tasks.judge()(images).double().numpy() for images in (samples, tasks.digits()[1]))
    root = linalg.sqrtm(np.cov(one.T) @ np.cov(other.T)).real
    gap = one.mean(0) - other.mean(0)
    expected = gap @ gap + np.trace(np.cov(one.T) + np.cov(other.T) - 2 * root)
    assert tasks.distance(samples) == pytest.approx(expected, rel=1e-2)
    assert tasks.distance(tasks.digits()[1]) == pytest.approx(0, abs=0.1)


def test_the_edit_distance(tasks):
    for path, label, expected in [
        ([1, 0, 2, 3], [1, 2, 3], 0),
        ([1, 3], [1, 2, 3], 1),
        ([2, 1], [1, 2], 2),
        ([], [1, 2], 2),
        ([4, 1, 2, 4], [1, 2], 2),
    ]:
        assert tasks.edits(torch.tensor(path), torch.tensor(label)) == expected


def test_the_equation_has_the_solution_that_is_measured(tasks):
    """By derivatives of the truth, as the loss computes them for a network."""
    x = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)[:, None].requires_grad_()
    u = (torch.pi * x).sin() + (4 * torch.pi * x).sin() / 4
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), x)
    f = (torch.pi**2 + 1) * (torch.pi * x).sin() + (16 * torch.pi**2 + 1) / 4 * (4 * torch.pi * x).sin()
    torch.testing.assert_close(u - ddu, f)
    assert np.isfinite(tasks.equation(0, lambda net: torch.optim.Adam(net.parameters()), 0.002))


def test_an_agent_is_trained_with_each_method_and_measured_by_its_return(tasks):
    pytest.importorskip("stable_baselines3", reason="needs alrao[rl]")
    methods = importlib.import_module("any_loss").METHODS
    task = tasks.ppo("CartPole-v1", 64, envs=2, n_steps=32, batch_size=32, n_epochs=1)
    found = {name: [task(0, methods[name](), 1.0) for _ in range(2)] for name in ("auto", "adam@0.001")}
    assert all(1 <= one == other <= 500 for one, other in found.values()), found
