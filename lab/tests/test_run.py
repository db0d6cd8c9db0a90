"""One run: divergence, early stopping, the best epoch, what is written."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab_support.runs import in_child, settings, strict, tiny
from torch import nn

import alrao
from alrao_lab.errors import LabError
from alrao_lab.methods import learner
from alrao_lab.resolve import resolve
from alrao_lab.run import pick_device, run
from alrao_lab.store import RunDirectory
from alrao_lab.tasks.images import ImagesInMemory
from alrao_lab.tasks.task import evaluate
from alrao_lab.team import Team

CPU = torch.device("cpu")


def all_files_are_strict_json(directory):
    for path in directory.path.glob("*.json*"):
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            strict(text)


def test_result_and_metrics_of_a_run(tmp_path):
    seen = []
    directory = tiny(tmp_path, lambda loop: seen.append((loop.progress.epoch, loop.step, len(loop.lines))))
    result, lines = directory.read("result"), directory.metrics()
    best = min(lines, key=lambda line: line["valid"]["loss"])
    assert result["status"] == "finished"
    assert result["diverged_at"] is None
    assert (result["best_epoch"], result["epochs"], result["steps"]) == (best["epoch"], 2, 14)
    assert {part: result[part] for part in ("train", "valid", "test")} == {
        part: best[part] for part in ("train", "valid", "test")
    }
    assert result["copy_rates"] == pytest.approx([10 ** (-5 + 6 * j / 9) for j in range(10)], rel=1e-5)
    assert result["parameters"] > 64 * 128
    assert seen == [(epoch, step, epoch - 1) for epoch in (1, 2) for step in range(1, 8)]
    all_files_are_strict_json(directory)


def test_config_repeats_the_run(tmp_path):
    config = tiny(tmp_path, epochs=1).config
    assert run(settings(**config["settings"]), [tmp_path]).config == config  # found again
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["alrao"] == alrao.__version__
    assert {"commit", "device", "threads", "platform", "started", "cores"} <= set(config)
    assert config["data"]["train"] == 200


def test_the_posterior_is_recorded_ever_more_rarely(tmp_path):
    lines = tiny(tmp_path, epochs=40, batch=50, patience=40).metrics()
    steps = [step for line in lines for step, _ in line.get("posterior", [])]
    assert steps == [*range(1, 100), *range(100, 161, 10)]
    for line in lines:
        for _, weights in line.get("posterior", []):
            assert len(weights) == 10
            assert sum(weights) == pytest.approx(1, abs=1e-2)


def test_features_and_their_movement(tmp_path):
    directory = tiny(tmp_path)
    layers = directory.features()
    assert [len(layer["rates"]) for layer in layers[:2]] == [128, 128]
    slow, fast = [], []
    for rate, start, moved in zip(*(layers[0][key] for key in ("rates", "start", "moved")), strict=True):
        assert start > 0
        (slow if rate < 1e-4 else fast if rate > 0.1 else []).append(moved)
    assert max(slow) < min(fast)
    assert tiny(tmp_path, method="adam").features() == []


def test_the_step_of_a_divergence(tmp_path):
    directory = tiny(tmp_path, method="sgd@1e30")
    result = directory.read("result")
    assert result["status"] == "diverged"
    assert result["diverged_at"] == 2
    assert result["test"] is None
    assert result["best_epoch"] is None
    assert result["seconds"] > 0
    assert directory.metrics() == []
    all_files_are_strict_json(directory)


def test_a_run_that_diverges_later_keeps_what_was_good(tmp_path, monkeypatch):
    """From its 10th batch on, the loss is not finite."""
    loss, calls = ImagesInMemory.loss, []
    monkeypatch.setattr(
        ImagesInMemory,
        "loss",
        lambda *args: calls.append(1) or loss(*args) * (math.inf if len(calls) > 9 else 1),
    )
    directory = tiny(tmp_path, method="adam", epochs=3)
    result = directory.result
    assert (result["status"], result["diverged_at"], result["best_epoch"]) == ("diverged", 10, 1)
    assert result["test"] == directory.metrics()[0]["test"]
    assert result["steps"] == 9


def test_a_diverged_run_is_not_run_again(tmp_path):
    directory = tiny(tmp_path, method="sgd@1e30")
    before = (directory.path / "result.json").stat().st_mtime_ns
    assert tiny(tmp_path, method="sgd@1e30").path == directory.path
    assert (directory.path / "result.json").stat().st_mtime_ns == before


def scores(monkeypatch, losses):
    """Each pass over the validation part has such a loss, in turn."""
    left = iter(losses)

    def fake(problem, model, part, device):
        if part == "test":
            return {"loss": 7.0, "accuracy": 0.5}
        return {"loss": next(left), "accuracy": math.nan}

    monkeypatch.setattr("alrao_lab.tasks.task.evaluate", fake)


def test_a_run_whose_validation_is_never_finite(tmp_path, monkeypatch):
    scores(monkeypatch, [math.nan, math.inf])
    directory = tiny(tmp_path)
    result = directory.result
    assert (result["status"], result["diverged_at"], result["epochs"]) == ("diverged", None, 2)
    assert [line["valid"]["loss"] for line in directory.metrics()] == [None, None]
    all_files_are_strict_json(directory)


def test_a_validation_that_is_not_finite_for_a_while(tmp_path, monkeypatch):
    scores(monkeypatch, [2.0, math.nan, 1.0, math.inf])
    result = tiny(tmp_path, epochs=4).result
    assert (result["status"], result["best_epoch"]) == ("finished", 3)
    assert result["valid"] == {"loss": 1.0, "accuracy": None}


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([3, 2, 1, 4, 4, 4, 4], 2, 5, 3),
        ([3, 3, 3, 3], 1, 2, 1),
        ([5, 6, 4, 6, 3, 6, 6, 6], 2, 7, 5),
        ([math.nan] * 5, 3, 3, None),
        ([3, 2, 1], 2, 3, 3),
    ],
)
def test_early_stopping(tmp_path, monkeypatch, losses, patience, epochs, best):
    scores(monkeypatch, losses)
    result = tiny(tmp_path, epochs=len(losses), patience=patience, train_size=32).result
    assert (result["epochs"], result["best_epoch"]) == (epochs, best)


def test_early_stopping_after_a_kill(tmp_path, monkeypatch):
    """The epochs without a better one count through it."""
    losses = [3.0, 4.0, 4.0, 4.0, 4.0]
    scores(monkeypatch, losses)
    in_child(lambda: tiny(tmp_path, lambda loop: loop.progress.epoch == 3 and exit(), epochs=5, patience=3))
    scores(monkeypatch, losses[2:])
    assert tiny(tmp_path, epochs=5, patience=3).result["epochs"] == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "alrao", "epochs": 4},
        {"method": "sgd@3", "epochs": 6},
        {"method": "dog", "model": "cnn"},
        {"method": "schedulefree", "model": "cnn"},
    ],
)
def test_the_best_weights_give_the_test_figures(tmp_path, changes):
    directory = tiny(tmp_path, **changes)
    task, resolved = resolve(settings(**changes))
    problem = task.load(resolved, CPU)
    model = learner(problem.network(), resolved, problem).model
    model.load_state_dict(directory.load(CPU)["best"])
    assert evaluate(problem, model.eval(), "test", Team(CPU)) == directory.result["test"]
    assert evaluate(problem, model, "valid", Team(CPU)) == directory.result["valid"]


def test_evaluation_leaves_no_trace_in_training(tmp_path):
    """Neither the model's mode nor the generator: with dropout, both would show."""
    task, resolved = resolve(settings())
    problem = task.load(resolved, CPU)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 10))
    for method in ("sgd@0.1", "schedulefree", "dog", "alrao"):
        made = learner(net, resolve(settings(method=method))[1], problem)
        made.train()
        x, y = next(problem.batches(1))
        made.step(problem.loss(made.model(x), y))
        before = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in net[2].named_buffers()}
        weights = [p.clone() for p in made.model.parameters()]
        with made.evaluating(x for x, _ in problem.batches(1)) as model:
            assert not model.training
            evaluate(problem, model, "valid", Team(CPU))
        assert made.model.training
        assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(buffers[name], buffer) for name, buffer in net[2].named_buffers())
        for p, w in zip(made.model.parameters(), weights, strict=True):
            torch.testing.assert_close(p, w)  # Schedule-Free goes there and back


def test_a_finished_run_is_found_in_every_root(tmp_path):
    first = tiny(tmp_path / "results")
    again = run(settings(), [tmp_path / "runs", tmp_path / "results"])
    assert again.path == first.path
    assert not (tmp_path / "runs").exists()


def test_threads_are_those_that_the_run_began_with(tmp_path):
    seen = []

    def watch(loop):
        seen.append(torch.get_num_threads())
        if loop.progress.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny(tmp_path, watch, threads=2)
    tiny(tmp_path, lambda loop: seen.append(torch.get_num_threads()), threads=1)
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


def test_devices():
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("gpu", "cuda:77", "meta"):
        with pytest.raises(LabError, match=f"--device {name} cannot be used here"):
            pick_device(name)


def test_a_run_that_stopped_between_checkpoint_and_result(tmp_path, monkeypatch):
    whole = tiny(tmp_path / "a")
    write = RunDirectory.write
    monkeypatch.setattr(
        RunDirectory,
        "write",
        lambda self, name, value: exit() if name == "result" else write(self, name, value),
    )
    in_child(lambda: tiny(tmp_path / "b"))
    monkeypatch.undo()
    steps = []
    again = tiny(tmp_path / "b", steps.append)
    assert steps == []
    assert replace_time(again.result) == replace_time(whole.result)


def replace_time(result):
    return {**result, "seconds": None, "cpu": None}


def test_event_files_are_complete_after_a_kill(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def stop(loop):
        if loop.progress.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny(tmp_path, stop, epochs=4, tensorboard=True)
    directory = tiny(tmp_path, epochs=4, tensorboard=True)
    for path in (directory.path, tiny(tmp_path / "later", epochs=4).path):
        run(replace(settings(epochs=4), tensorboard=True), [path.parents[2]])  # also once it is finished
        events = EventAccumulator(str(Path(path, "tensorboard")), size_guidance={"scalars": 0})
        events.Reload()
        lines = RunDirectory(path).metrics()
        for part in ("train", "valid", "test"):
            seen = [(event.step, event.value) for event in events.Scalars(f"loss/{part}")]
            assert [step for step, _ in seen] == [7, 14, 21, 28]
            assert [value for _, value in seen] == pytest.approx([line[part]["loss"] for line in lines])
        traced = [step for line in lines for step, _ in line["posterior"]]
        assert [event.step for event in events.Scalars("posterior/copy 3")] == traced


def test_metrics_have_a_line_for_each_epoch(tmp_path):
    directory = tiny(tmp_path)
    text = (directory.path / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    assert [json.loads(line)["epoch"] for line in text.splitlines()] == [1, 2]
    assert [json.loads(line)["step"] for line in text.splitlines()] == [7, 14]
